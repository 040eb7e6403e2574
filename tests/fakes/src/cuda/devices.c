/* What a client can ask of a device without a context. */
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

API cuDeviceGetCount(int *out) {
    ENTER();
    NEED(out);
    *out = visible_count();
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *out, int ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(out);
    *out = ordinal;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *out, int size, CUdevice device) {
    ENTER_DEVICE(device);
    NEED(out);
    copy_text(out, (size_t)size, field(visible_device(device), "name"));
    return CUDA_SUCCESS;
}

static CUresult give_uuid(CUuuid *out, CUdevice device) {
    NEED(out);
    const char *text = field(visible_device(device), "uuid");
    memset(out, 0, sizeof *out);
    if (text && strncmp(text, "GPU-", 4) == 0)
        text += 4;
    for (unsigned digit = 0; text && *text && digit < 2 * sizeof out->bytes; text++) {
        char one[2] = {*text, '\0'};
        if (*text != '-')
            out->bytes[digit / 2] |= (char)(strtol(one, NULL, 16) << (digit % 2 ? 0 : 4)), digit++;
    }
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *out, CUdevice device) {
    ENTER_DEVICE(device);
    return give_uuid(out, device);
}

#undef cuDeviceGetUuid
API cuDeviceGetUuid(CUuuid *out, CUdevice device) {
    ENTER_DEVICE(device);
    return give_uuid(out, device);
}

API cuDeviceGetPCIBusId(char *out, int size, CUdevice device) {
    ENTER_DEVICE(device);
    NEED(out);
    unsigned part[4];
    if (!parse_address(field(visible_device(device), "pci"), part))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (snprintf(out, (size_t)size, "%04X:%02X:%02X.%X", part[0], part[1], part[2], part[3]) >= size)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(CUdevice *out, const char *address) {
    ENTER();
    NEED(out && address);
    unsigned wanted[4], mine[4];
    if (!parse_address(address, wanted))
        return CUDA_ERROR_INVALID_VALUE;
    for (int device = 0; device < visible_count(); device++)
        if (parse_address(field(visible_device(device), "pci"), mine) && memcmp(wanted, mine, sizeof mine) == 0) {
            *out = device;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

API cuDeviceTotalMem(size_t *out, CUdevice device) {
    ENTER_DEVICE(device);
    NEED(out);
    *out = number(field(visible_device(device), "memory_total"), 0);
    return CUDA_SUCCESS;
}

/* Of attributes that nothing here depends on, `nvidia.0.attribute.NUMBER` can say something else than 0. */
API cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device) {
    ENTER_DEVICE(device);
    NEED(out);
    int physical = visible_device(device), major = 0, minor = 0;
    unsigned part[4] = {0};
    const char *capability = field(physical, "compute_capability");
    if (capability)
        sscanf(capability, "%d.%d", &major, &minor);
    parse_address(field(physical, "pci"), part);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *out = major;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *out = minor;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *out = (int)part[0];
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *out = (int)part[1];
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *out = (int)part[2];
        break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
        *out = 1;
        break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *out = 2;
        break;
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
        *out = (int)number(field(physical, "ecc"), 0);
        break;
    default:
        *out = (int)number(described("%s.%d.attribute.%d", gpu_vendor, physical, (int)attribute), 0);
    }
    return CUDA_SUCCESS;
}

API cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer) {
    ENTER_DEVICE(device);
    NEED(out);
    int other = visible_device(peer);
    if (other < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = peer_possible(visible_device(device), other);
    return CUDA_SUCCESS;
}

API cuDeviceGetP2PAttribute(int *out, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer) {
    ENTER_DEVICE(device);
    NEED(out);
    int other = visible_device(peer);
    if (other < 0 || other == visible_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED && peer_possible(visible_device(device), other);
    return CUDA_SUCCESS;
}
