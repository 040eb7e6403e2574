/* A libnvidia-ml.so.1 without a driver. Compiled against NVIDIA's own nvml.h, so that the compiler checks every structure
 * and prototype. A field that the description does not have is NVML_ERROR_NOT_SUPPORTED, as on a board without it. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "description.h"

#include <nvml.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define API EXPORT nvmlReturn_t
#define VENDOR "nvidia"
#define MAX_DEVICES 16
#define MAX_INSTANCES 8

/* A GPU, or a MIG instance of it (`instance` >= 0). */
struct nvmlDevice_st {
    int gpu;
    int instance;
};

static struct nvmlDevice_st gpus[MAX_DEVICES];
static struct nvmlDevice_st instances[MAX_DEVICES][MAX_INSTANCES];
static int initialised;

static unsigned gpu_count(void) {
    return (unsigned)number(described(VENDOR ".count"), 0);
}

static const char *field(nvmlDevice_t device, const char *name) {
    if (device->instance >= 0)
        return described(VENDOR ".%d.mig.%d.%s", device->gpu, device->instance, name);
    return described(VENDOR ".%d.%s", device->gpu, name);
}

static uint64_t field_number(nvmlDevice_t device, const char *name, uint64_t otherwise) {
    return number(field(device, name), otherwise);
}

static int is_handle(nvmlDevice_t device) {
    return (device >= gpus && device < gpus + MAX_DEVICES)
        || (device >= instances[0] && device < instances[0] + MAX_DEVICES * MAX_INSTANCES);
}

static nvmlReturn_t enter_library(const char *function) {
    return initialised ? (nvmlReturn_t)enter(VENDOR, LIBRARY, function) : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t enter_device(nvmlDevice_t device, const void *out, const char *function) {
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    if (!is_handle(device) || !out)
        return NVML_ERROR_INVALID_ARGUMENT;
    return (nvmlReturn_t)enter(VENDOR, device->gpu, function);
}

#define ENTER_LIBRARY()                                                                                                \
    do {                                                                                                               \
        nvmlReturn_t status = enter_library(__func__);                                                                 \
        if (status != NVML_SUCCESS)                                                                                    \
            return status;                                                                                             \
    } while (0)

#define ENTER(device, out)                                                                                             \
    do {                                                                                                               \
        nvmlReturn_t status = enter_device(device, out, __func__);                                                     \
        if (status != NVML_SUCCESS)                                                                                    \
            return status;                                                                                             \
    } while (0)

static nvmlReturn_t give_text(const char *text, char *out, unsigned size) {
    if (!text)
        return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

#define TEXT(function, name)                                                                                           \
    API function(nvmlDevice_t device, char *out, unsigned size) {                                                      \
        ENTER(device, out);                                                                                            \
        return give_text(field(device, name), out, size);                                                              \
    }

#define NUMBER(function, type, name)                                                                                   \
    API function(nvmlDevice_t device, type *out) {                                                                     \
        ENTER(device, out);                                                                                            \
        if (!field(device, name))                                                                                      \
            return NVML_ERROR_NOT_SUPPORTED;                                                                           \
        *out = (type)field_number(device, name, 0);                                                                    \
        return NVML_SUCCESS;                                                                                           \
    }

/* ---- the library ---- */

API nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int status = enter(VENDOR, LIBRARY, "nvmlInitWithFlags");
    if (status)
        return (nvmlReturn_t)status;
    if (!described(VENDOR ".count"))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    for (int gpu = 0; gpu < MAX_DEVICES; gpu++) {
        gpus[gpu] = (struct nvmlDevice_st){gpu, -1};
        for (int instance = 0; instance < MAX_INSTANCES; instance++)
            instances[gpu][instance] = (struct nvmlDevice_st){gpu, instance};
    }
    __sync_fetch_and_add(&initialised, 1);
    return NVML_SUCCESS;
}

API nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

API nvmlShutdown(void) {
    ENTER_LIBRARY();
    __sync_fetch_and_sub(&initialised, 1);
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    static __thread char text[32];
    snprintf(text, sizeof text, "Fake NVML error %d", (int)result);
    return text;
}

API nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER_LIBRARY();
    return give_text(described(VENDOR ".driver_version"), out, size);
}

API nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    return give_text(described(VENDOR ".nvml_version"), out, size);
}

API nvmlSystemGetCudaDriverVersion(int *out) {
    ENTER_LIBRARY();
    if (!described(VENDOR ".cuda_driver_version"))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (int)number(described(VENDOR ".cuda_driver_version"), 0);
    return NVML_SUCCESS;
}

API nvmlSystemGetCudaDriverVersion_v2(int *out) {
    return nvmlSystemGetCudaDriverVersion(out);
}

API nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    ENTER_LIBRARY();
    char link[64], target[512];
    snprintf(link, sizeof link, "/proc/%u/exe", pid);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0)
        return NVML_ERROR_NOT_FOUND;
    target[length] = '\0';
    copy_text(out, size, target);
    return NVML_SUCCESS;
}

/* ---- handles ---- */

API nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER_LIBRARY();
    *out = gpu_count();
    return NVML_SUCCESS;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) {
    ENTER_LIBRARY();
    if (index >= gpu_count() || index >= MAX_DEVICES)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = &gpus[index];
    return (nvmlReturn_t)enter(VENDOR, (int)index, __func__);
}

API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    ENTER_LIBRARY();
    for (unsigned gpu = 0; gpu < gpu_count() && gpu < MAX_DEVICES; gpu++) {
        const char *mine = field(&gpus[gpu], "uuid");
        if (mine && strcmp(mine, uuid) == 0) {
            *out = &gpus[gpu];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static int parse_address(const char *text, unsigned parts[4]) {
    parts[3] = 0;
    return text && sscanf(text, "%x:%x:%x.%x", &parts[0], &parts[1], &parts[2], &parts[3]) >= 3;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *out) {
    ENTER_LIBRARY();
    unsigned wanted[4], mine[4];
    if (!parse_address(address, wanted))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned gpu = 0; gpu < gpu_count() && gpu < MAX_DEVICES; gpu++)
        if (parse_address(field(&gpus[gpu], "pci"), mine) && memcmp(wanted, mine, sizeof mine) == 0) {
            *out = &gpus[gpu];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out) {
    ENTER(device, out);
    *out = (unsigned)device->gpu;
    return NVML_SUCCESS;
}

/* ---- who it is ---- */

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER(nvmlDeviceGetMinorNumber, unsigned, "minor")
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, "architecture")
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, "cores")

API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out) {
    ENTER(device, out);
    unsigned part[4];
    if (!parse_address(field(device, "pci"), part))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->domain = part[0];
    out->bus = part[1];
    out->device = part[2];
    out->pciDeviceId = (unsigned)field_number(device, "pci_device_id", 0);
    out->pciSubSystemId = (unsigned)field_number(device, "pci_subsystem_id", 0);
    snprintf(out->busId, sizeof out->busId, NVML_DEVICE_PCI_BUS_ID_FMT, part[0], part[1], part[2]);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, part[0], part[1], part[2]);
    return NVML_SUCCESS;
}

API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    ENTER(device, major);
    const char *text = field(device, "compute_capability");
    return text && sscanf(text, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* ---- memory ---- */

static uint64_t memory_used(nvmlDevice_t device) {
    return field_number(device, "memory_used", 0) + users_memory(field(device, "users"));
}

API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    ENTER(device, out);
    if (!field(device, "memory_total"))
        return NVML_ERROR_NOT_SUPPORTED;
    out->total = field_number(device, "memory_total", 0);
    out->used = memory_used(device);
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    ENTER(device, out);
    if (out->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!field(device, "memory_total"))
        return NVML_ERROR_NOT_SUPPORTED;
    out->total = field_number(device, "memory_total", 0);
    out->used = memory_used(device);
    out->reserved = 0;
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

API nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out) {
    ENTER(device, out);
    if (!field(device, "bar1_total"))
        return NVML_ERROR_NOT_SUPPORTED;
    out->bar1Total = field_number(device, "bar1_total", 0);
    out->bar1Used = field_number(device, "bar1_used", 0);
    out->bar1Free = out->bar1Total - out->bar1Used;
    return NVML_SUCCESS;
}

/* ---- processes: `processes = PID:BYTES …`; 0xffffffffffffffff is "not available". `users` is a folder ---- */

static void give_process(nvmlDevice_t device, uint64_t pid, uint64_t bytes, nvmlProcessInfo_t *out) {
    int part = device->instance >= 0;
    memset(out, 0, sizeof *out);
    out->pid = (unsigned)pid;
    out->usedGpuMemory = bytes;
    out->gpuInstanceId = part ? (unsigned)field_number(device, "gi", 0) : 0xFFFFFFFFu;
    out->computeInstanceId = part ? (unsigned)field_number(device, "ci", 0) : 0xFFFFFFFFu;
}

static nvmlReturn_t give_processes(nvmlDevice_t device, const char *name, unsigned *count, nvmlProcessInfo_t *out) {
    uint64_t pid, bytes;
    unsigned room = *count, found = 0;
    for (const char *rest = field(device, name); (rest = next_process(rest, &pid, &bytes)); found++)
        if (found < room && out)
            give_process(device, pid, bytes, &out[found]);
    const char *folder = strcmp(name, "processes") == 0 ? field(device, "users") : NULL;
    for (size_t at = 0; (at = next_user(folder, at, &pid, &bytes)); found++)
        if (found < room && out)
            give_process(device, pid, bytes, &out[found]);
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out) {
    ENTER(device, count);
    return give_processes(device, "processes", count, out);
}

API nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out) {
    ENTER(device, count);
    return give_processes(device, "graphics_processes", count, out);
}

API nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out) {
    ENTER(device, count);
    return give_processes(device, "mps_processes", count, out);
}

API nvmlDeviceGetProcessUtilization(
    nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count, unsigned long long since) {
    ENTER(device, count);
    (void)out;
    (void)since;
    *count = 0;
    return NVML_ERROR_NOT_FOUND;
}

/* ---- where it is ---- */

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_max_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_max_width")
NUMBER(nvmlDeviceGetNumaNodeId, unsigned, "memory_numa_node")

API nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *out, nvmlAffinityScope_t scope) {
    ENTER(device, out);
    (void)scope;
    if (!field(device, "memory_affinity") || words == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(out, 0, words * sizeof *out);
    out[0] = field_number(device, "memory_affinity", 0);
    return NVML_SUCCESS;
}

/* Of a pair, the lower index first: `nvidia.p2p.0.1 = 0` is NVML_P2P_STATUS_OK. */
API nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *out) {
    ENTER(device, out);
    if (!is_handle(peer) || index >= NVML_P2P_CAPS_INDEX_UNKNOWN)
        return NVML_ERROR_INVALID_ARGUMENT;
    int low = device->gpu < peer->gpu ? device->gpu : peer->gpu, high = device->gpu + peer->gpu - low;
    *out = (nvmlGpuP2PStatus_t)number(described(VENDOR ".p2p.%d.%d", low, high), NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED);
    return NVML_SUCCESS;
}

/* ---- modes ---- */

static nvmlReturn_t give_mode(const char *now, const char *pending, unsigned *current, unsigned *next) {
    if (!now)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = (unsigned)number(now, 0);
    *next = (unsigned)number(pending, *current);
    return NVML_SUCCESS;
}

API nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
    ENTER(device, current);
    return give_mode(field(device, "ecc"), field(device, "ecc_pending"), current, pending);
}

API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    ENTER(device, current);
    return give_mode(field(device, "mig"), field(device, "mig_pending"), current, pending);
}

NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, "persistence")
NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, "compute_mode")

API nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, nvmlDriverModel_t *current, nvmlDriverModel_t *pending) {
    ENTER(device, current);
    (void)pending;
    return NVML_ERROR_NOT_SUPPORTED; /* of Windows; nvitop insists that the function exists */
}

API nvmlDeviceGetDriverModel(nvmlDevice_t device, nvmlDriverModel_t *current, nvmlDriverModel_t *pending) {
    return nvmlDeviceGetDriverModel_v2(device, current, pending);
}

/* ---- MIG: slots `nvidia.0.mig.0.…`; one without a UUID is empty ---- */

API nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *out) {
    ENTER(device, out);
    *out = (unsigned)field_number(device, "mig_slots", 0);
    return NVML_SUCCESS;
}

API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out) {
    ENTER(device, out);
    if (index >= field_number(device, "mig_slots", 0) || index >= MAX_INSTANCES)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = &instances[device->gpu][index];
    return field(*out, "uuid") ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *out) {
    ENTER(device, out);
    *out = device->instance >= 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out) {
    ENTER(device, out);
    *out = &gpus[device->gpu];
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetGpuInstanceId, unsigned, "gi")
NUMBER(nvmlDeviceGetComputeInstanceId, unsigned, "ci")

API nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out) {
    ENTER(device, out);
    if (device->instance < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    out->gpuInstanceSliceCount = (unsigned)field_number(device, "gpu_slices", 1);
    out->computeInstanceSliceCount = (unsigned)field_number(device, "compute_slices", 1);
    out->multiprocessorCount = (unsigned)field_number(device, "multiprocessors", 14);
    out->memorySizeMB = field_number(device, "memory_total", 0) >> 20;
    return NVML_SUCCESS;
}

/* ---- what monitors such as nvitop show ---- */

NUMBER(nvmlDeviceGetFanSpeed, unsigned, "fan")
NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power_mw")
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, "power_limit_mw")
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, "pstate")
NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, "display_active")
NUMBER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, "display_mode")

API nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned *out) {
    ENTER(device, out);
    if (sensor != NVML_TEMPERATURE_GPU || !field(device, "temperature"))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned)field_number(device, "temperature", 0);
    return NVML_SUCCESS;
}

API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    ENTER(device, out);
    out->gpu = (unsigned)field_number(device, "gpu_utilization", 0);
    out->memory = (unsigned)field_number(device, "memory_utilization", 0);
    return NVML_SUCCESS;
}

/* ---- health: errors of memory, repairs, what the driver wants done ---- */

static nvmlReturn_t give_counts(nvmlDevice_t device, const char *const *names, unsigned **out, unsigned count) {
    if (!field(device, names[0]))
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned at = 0; at < count; at++)
        *out[at] = (unsigned)field_number(device, names[at], 0);
    return NVML_SUCCESS;
}

API nvmlDeviceGetTotalEccErrors(
    nvmlDevice_t device, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t period, unsigned long long *out) {
    ENTER(device, out);
    static const char *const names[2][2] = {
        {"ecc_corrected_volatile", "ecc_corrected_aggregate"},
        {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"},
    };
    if (kind > NVML_MEMORY_ERROR_TYPE_UNCORRECTED || period > NVML_AGGREGATE_ECC)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (field_number(device, "ecc", 0) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = field_number(device, names[kind][period], 0);
    return NVML_SUCCESS;
}

API nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *out) {
    ENTER(device, out);
    if (out->version != nvmlEccSramErrorStatus_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!field(device, "sram_threshold_exceeded"))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->version = nvmlEccSramErrorStatus_v1;
    out->bThresholdExceeded = (unsigned)field_number(device, "sram_threshold_exceeded", 0);
    out->aggregateUncSecDed = field_number(device, "sram_uncorrectable_aggregate", 0);
    out->volatileUncSecDed = field_number(device, "sram_uncorrectable_volatile", 0);
    return NVML_SUCCESS;
}

API nvmlDeviceGetRemappedRows(
    nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failure) {
    ENTER(device, correctable);
    static const char *const names[] = {"rows_correctable", "rows_uncorrectable", "rows_pending", "rows_failure"};
    return give_counts(device, names, (unsigned *[]){correctable, uncorrectable, pending, failure}, 4);
}

API nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out) {
    ENTER(device, out);
    static const char *const names[] = {"banks_max", "banks_high", "banks_partial", "banks_low", "banks_none"};
    return give_counts(device, names, (unsigned *[]){&out->max, &out->high, &out->partial, &out->low, &out->none}, 5);
}

API nvmlDeviceGetRetiredPages(
    nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned *count, unsigned long long *out) {
    ENTER(device, count);
    int single = cause == NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS;
    const char *pages = field(device, single ? "pages_single_bit" : "pages_double_bit");
    if (!pages)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned found = (unsigned)number(pages, 0), room = *count;
    *count = found;
    if (found > 0 && (!out || room < found))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < found; at++)
        out[at] = 0x1000ull * (at + 1);
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t, "pages_pending")

API nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlUnrepairableMemoryStatus_v1_t *out) {
    ENTER(device, out);
    if (!field(device, "unrepairable_memory"))
        return NVML_ERROR_NOT_SUPPORTED;
    out->bUnrepairableMemory = (unsigned)field_number(device, "unrepairable_memory", 0);
    return NVML_SUCCESS;
}

API nvmlDeviceValidateInforom(nvmlDevice_t device) {
    ENTER(device, device);
    if (!field(device, "inforom"))
        return NVML_ERROR_NOT_SUPPORTED;
    return field_number(device, "inforom", 1) ? NVML_SUCCESS : NVML_ERROR_CORRUPTED_INFOROM;
}

/* Fields by their number: `nvidia.0.field.230 = 1`. */
API nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    ENTER(device, values);
    for (int at = 0; at < count; at++) {
        const char *text = described(VENDOR ".%d.field.%u", device->gpu, values[at].fieldId);
        values[at].nvmlReturn = text ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[at].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[at].value.uiVal = (unsigned)number(text, 0);
    }
    return NVML_SUCCESS;
}

API nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *out) {
    ENTER(device, out);
    return give_text(field(device, "gsp_firmware"), out, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

/* ---- health: heat and power ---- */

API nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t kind, unsigned *out) {
    ENTER(device, out);
    const char *text = described(VENDOR ".%d.threshold.%d", device->gpu, (int)kind);
    if (!text)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned)number(text, 0);
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_enforced_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "power_default_mw")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clocks_event_reasons")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replays")

/* ---- NVLink: `nvidia.0.nvlink.3.replay = 0`; a link without `up` is down ---- */

API nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *out) {
    ENTER(device, out);
    const char *up = described(VENDOR ".%d.nvlink.%u.up", device->gpu, link);
    if (!up)
        return link == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    *out = (nvmlEnableState_t)number(up, 0);
    return NVML_SUCCESS;
}

API nvmlDeviceGetNvLinkErrorCounter(
    nvmlDevice_t device, unsigned link, nvmlNvLinkErrorCounter_t counter, unsigned long long *out) {
    ENTER(device, out);
    static const char *const names[] = {"replay", "recovery", "crc"};
    if (counter > NVML_NVLINK_ERROR_DL_CRC_FLIT)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = number(described(VENDOR ".%d.nvlink.%u.%s", device->gpu, link, names[counter]), 0);
    return NVML_SUCCESS;
}
