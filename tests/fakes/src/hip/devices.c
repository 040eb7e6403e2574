/* What a client can ask of a device. */
#include "fake_hip.h"

#include <stdio.h>
#include <string.h>

static bool parse_address(const char *text, unsigned parts[4]) {
    parts[3] = 0;
    return text && sscanf(text, "%x:%x:%x.%x", &parts[0], &parts[1], &parts[2], &parts[3]) >= 3;
}

/* 0x90a is gfx90a: major 9, minor 0, stepping 10. */
static unsigned target_of(int physical) {
    return (unsigned)number(field(physical, "target_graphics_version"), 0);
}

static void give_uuid(int physical, hipUUID_t *out) {
    const char *text = field(physical, "uuid");
    memset(out, 0, sizeof *out);
    if (text && strncmp(text, "GPU-", 4) == 0)
        memcpy(out->bytes, text + 4, strnlen(text + 4, sizeof out->bytes)); /* the digits themselves */
}

API hipDeviceGet(int *out, int ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(out);
    *out = ordinal;
    return hipSuccess;
}

API hipDeviceGetName(char *out, int size, int device) {
    ENTER_DEVICE(device);
    NEED(out && size > 0);
    copy_text(out, (size_t)size, field(visible_device(device), "name"));
    return hipSuccess;
}

API hipDeviceGetUuid(hipUUID_t *out, int device) {
    ENTER_DEVICE(device);
    NEED(out);
    give_uuid(visible_device(device), out);
    return hipSuccess;
}

API hipDeviceGetPCIBusId(char *out, int size, int device) {
    ENTER_DEVICE(device);
    unsigned part[4];
    NEED(out && size > 0 && parse_address(field(visible_device(device), "bdf"), part));
    NEED(snprintf(out, (size_t)size, "%04x:%02x:%02x.%x", part[0], part[1], part[2], part[3]) < size);
    return hipSuccess;
}

API hipDeviceGetByPCIBusId(int *out, const char *address) {
    ENTER();
    unsigned wanted[4], mine[4];
    NEED(out && parse_address(address, wanted));
    for (int device = 0; device < visible_count(); device++)
        if (parse_address(field(visible_device(device), "bdf"), mine) && memcmp(wanted, mine, sizeof mine) == 0) {
            *out = device;
            return hipSuccess;
        }
    return said(hipErrorInvalidDevice);
}

API hipDeviceTotalMem(size_t *out, int device) {
    ENTER_DEVICE(device);
    NEED(out);
    *out = number(field(visible_device(device), "vram_total"), 0);
    return hipSuccess;
}

API hipDeviceComputeCapability(int *major, int *minor, int device) {
    ENTER_DEVICE(device);
    NEED(major && minor);
    *major = (int)(target_of(visible_device(device)) >> 8);
    *minor = (int)(target_of(visible_device(device)) >> 4 & 15);
    return hipSuccess;
}

API hipDeviceCanAccessPeer(int *out, int device, int peer) {
    ENTER_DEVICE(device);
    NEED(out);
    int other = visible_device(peer);
    if (other < 0)
        return said(hipErrorInvalidDevice);
    *out = peer_possible(visible_device(device), other);
    return hipSuccess;
}

API hipGetDevicePropertiesR0600(hipDeviceProp_t *out, int device) {
    ENTER_DEVICE(device);
    NEED(out);
    int physical = visible_device(device);
    unsigned part[4] = {0}, target = target_of(physical);
    parse_address(field(physical, "bdf"), part);
    memset(out, 0, sizeof *out);
    copy_text(out->name, sizeof out->name, field(physical, "name"));
    give_uuid(physical, &out->uuid);
    out->totalGlobalMem = number(field(physical, "vram_total"), 0);
    out->pciDomainID = (int)part[0];
    out->pciBusID = (int)part[1];
    out->pciDeviceID = (int)part[2];
    out->major = (int)(target >> 8);
    out->minor = (int)(target >> 4 & 15);
    out->warpSize = out->major == 9 ? 64 : 32;
    out->multiProcessorCount = (int)number(field(physical, "compute_units"), 1);
    out->ECCEnabled = field(physical, "ecc_blocks") != NULL;
    out->canMapHostMemory = out->unifiedAddressing = out->hostRegisterSupported = 1;
    out->asyncEngineCount = 2;
    snprintf(out->gcnArchName, sizeof out->gcnArchName, "gfx%x", target);
    return hipSuccess;
}

/* Of attributes that nothing here depends on, `amd.0.attribute.NUMBER` can say something else than 0. */
API hipDeviceGetAttribute(int *out, int attribute, int device) {
    ENTER_DEVICE(device);
    NEED(out);
    int physical = visible_device(device);
    unsigned part[4] = {0};
    parse_address(field(physical, "bdf"), part);
    switch (attribute) {
    case hipDeviceAttributePciDomainId:
        *out = (int)part[0];
        break;
    case hipDeviceAttributePciBusId:
        *out = (int)part[1];
        break;
    case hipDeviceAttributePciDeviceId:
        *out = (int)part[2];
        break;
    case hipDeviceAttributeComputeCapabilityMajor:
        *out = (int)(target_of(physical) >> 8);
        break;
    case hipDeviceAttributeComputeCapabilityMinor:
        *out = (int)(target_of(physical) >> 4 & 15);
        break;
    case hipDeviceAttributeCanMapHostMemory:
    case hipDeviceAttributeHostRegisterSupported:
    case hipDeviceAttributeUnifiedAddressing:
        *out = 1;
        break;
    case hipDeviceAttributeAsyncEngineCount:
        *out = 2;
        break;
    default:
        *out = (int)number(described("%s.%d.attribute.%d", gpu_vendor, physical, attribute), 0);
    }
    return hipSuccess;
}
