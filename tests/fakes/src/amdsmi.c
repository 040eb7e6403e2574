/* A libamd_smi.so without a driver. The structures are those of the installed amdsmi package (`amdsmi_abi.py`); functions
 * that are not written here are stubs that say AMDSMI_STATUS_NOT_SUPPORTED. So does a field that is not described. */
#include "description.h"

#include "amdsmi_abi.h"

#include <stdio.h>
#include <string.h>

#define API EXPORT int
#define VENDOR "amd"
#define MAX_DEVICES 16

struct handle {
    int gpu;
};

static struct handle sockets[MAX_DEVICES], gpus[MAX_DEVICES];
static int initialised;

static unsigned gpu_count(void) {
    unsigned count = (unsigned)number(described(VENDOR ".count"), 0);
    return count < MAX_DEVICES ? count : MAX_DEVICES;
}

static const char *field(const struct handle *device, const char *name) {
    return described(VENDOR ".%d.%s", device->gpu, name);
}

static uint64_t field_number(const struct handle *device, const char *name, uint64_t otherwise) {
    return number(field(device, name), otherwise);
}

static int is_gpu(const struct handle *device) {
    return device >= gpus && device < gpus + MAX_DEVICES;
}

static int enter_library(const char *function) {
    return initialised ? enter(VENDOR, LIBRARY, function) : AMDSMI_STATUS_NOT_INIT;
}

static int enter_device(const struct handle *device, const void *out, const char *function) {
    if (!initialised)
        return AMDSMI_STATUS_NOT_INIT;
    if (!is_gpu(device) || !out)
        return AMDSMI_STATUS_INVAL;
    return enter(VENDOR, device->gpu, function);
}

#define ENTER_LIBRARY()                                                                                                \
    do {                                                                                                               \
        int status = enter_library(__func__);                                                                          \
        if (status)                                                                                                    \
            return status;                                                                                             \
    } while (0)

#define ENTER(device, out)                                                                                             \
    do {                                                                                                               \
        int status = enter_device(device, out, __func__);                                                              \
        if (status)                                                                                                    \
            return status;                                                                                             \
    } while (0)

#define NUMBER(function, type, name)                                                                                   \
    API function(struct handle *device, type *out) {                                                                   \
        ENTER(device, out);                                                                                            \
        if (!field(device, name))                                                                                      \
            return AMDSMI_STATUS_NOT_SUPPORTED;                                                                        \
        *out = (type)field_number(device, name, 0);                                                                    \
        return AMDSMI_STATUS_SUCCESS;                                                                                  \
    }

#define COPY(target, device, name) copy_text((char *)(target), sizeof(target), field(device, name))

/* ---- the library ---- */

API amdsmi_init(uint64_t flags) {
    (void)flags;
    int status = enter(VENDOR, LIBRARY, __func__);
    if (status)
        return status;
    if (!described(VENDOR ".count"))
        return AMDSMI_STATUS_DRIVER_NOT_LOADED;
    for (int gpu = 0; gpu < MAX_DEVICES; gpu++)
        sockets[gpu].gpu = gpus[gpu].gpu = gpu;
    initialised++;
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_shut_down(void) {
    ENTER_LIBRARY();
    initialised--;
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_status_code_to_string(int status, const char **out) {
    static __thread char text[40];
    snprintf(text, sizeof text, "Fake AMD SMI status %d", status);
    *out = text;
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_get_lib_version(amdsmi_version_t *out) {
    static char build[] = "0";
    memset(out, 0, sizeof *out);
    sscanf(described(VENDOR ".library_version") ?: "26.0.2", "%u.%u.%u", &out->major, &out->minor, &out->release);
    out->build = (void *)build;
    return AMDSMI_STATUS_SUCCESS;
}

/* ---- handles: a socket for each GPU ---- */

API amdsmi_get_socket_handles(uint32_t *count, struct handle **out) {
    ENTER_LIBRARY();
    for (uint32_t at = 0; out && at < *count && at < gpu_count(); at++)
        out[at] = &sockets[at];
    *count = gpu_count();
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_get_processor_handles(struct handle *socket, uint32_t *count, struct handle **out) {
    ENTER_LIBRARY();
    if (socket < sockets || socket >= sockets + MAX_DEVICES)
        return AMDSMI_STATUS_INVAL;
    if (out && *count > 0)
        out[0] = &gpus[socket->gpu];
    *count = 1;
    return AMDSMI_STATUS_SUCCESS;
}

/* ---- who it is ---- */

API amdsmi_get_gpu_device_bdf(struct handle *device, amdsmi_bdf_t *out) {
    ENTER(device, out);
    unsigned domain, bus, slot, function;
    const char *text = field(device, "bdf");
    if (!text || sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
        return AMDSMI_STATUS_NO_DATA;
    uint64_t packed = ((uint64_t)domain << 16) | ((uint64_t)bus << 8) | (slot << 3) | function; /* amdsmi.h */
    _Static_assert(sizeof *out == sizeof packed, "amdsmi_bdf_t is a union with one 64-bit integer");
    memcpy(out, &packed, sizeof packed);
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_get_gpu_device_uuid(struct handle *device, uint32_t *size, char *out) {
    ENTER(device, out);
    copy_text(out, *size, field(device, "smi_uuid"));
    return AMDSMI_STATUS_SUCCESS;
}

#ifdef HAS_amdsmi_enumeration_info_t_hip_uuid
API amdsmi_get_gpu_enumeration_info(struct handle *device, amdsmi_enumeration_info_t *out) {
    ENTER(device, out);
    memset(out, 0, sizeof *out);
    out->drm_render = 128 + (uint32_t)device->gpu;
    out->drm_card = (uint32_t)device->gpu;
    out->hsa_id = 1 + (uint32_t)device->gpu;
    out->hip_id = (uint32_t)device->gpu;
    COPY(out->hip_uuid, device, "uuid");
    return AMDSMI_STATUS_SUCCESS;
}
#endif

API amdsmi_get_gpu_asic_info(struct handle *device, amdsmi_asic_info_t *out) {
    ENTER(device, out);
    memset(out, 0, sizeof *out);
    COPY(out->market_name, device, "name");
    COPY(out->asic_serial, device, "asic_serial");
    copy_text((char *)out->vendor_name, sizeof out->vendor_name, "Advanced Micro Devices Inc. [AMD/ATI]");
    out->vendor_id = 0x1002;
    out->device_id = field_number(device, "device_id", 0);
    out->rev_id = (uint32_t)field_number(device, "rev_id", 0);
#ifdef HAS_amdsmi_asic_info_t_target_graphics_version
    out->target_graphics_version = field_number(device, "target_graphics_version", 0);
    out->num_of_compute_units = (uint32_t)field_number(device, "compute_units", 0xFFFFFFFFu);
#endif
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_get_gpu_driver_info(struct handle *device, amdsmi_driver_info_t *out) {
    ENTER(device, out);
    memset(out, 0, sizeof *out);
    copy_text((char *)out->driver_name, sizeof out->driver_name, "amdgpu");
    copy_text((char *)out->driver_version, sizeof out->driver_version, described(VENDOR ".driver_version"));
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_get_gpu_vbios_info(struct handle *device, amdsmi_vbios_info_t *out) {
    ENTER(device, out);
    memset(out, 0, sizeof *out);
    COPY(out->version, device, "vbios_version");
    COPY(out->part_number, device, "vbios_part_number");
    return AMDSMI_STATUS_SUCCESS;
}

#ifdef HAS_amdsmi_kfd_info_t_kfd_id
API amdsmi_get_gpu_kfd_info(struct handle *device, amdsmi_kfd_info_t *out) {
    ENTER(device, out);
    if (!field(device, "kfd_node"))
        return AMDSMI_STATUS_NOT_SUPPORTED;
    memset(out, 0xff, sizeof *out);
    out->kfd_id = field_number(device, "kfd_id", ~0ull);
    out->node_id = (uint32_t)field_number(device, "kfd_node", 0);
    out->current_partition_id = (uint32_t)field_number(device, "partition_id", 0xFFFFFFFFu);
    return AMDSMI_STATUS_SUCCESS;
}
#endif

static int give_text(const char *text, char *out, uint32_t size) {
    if (!text)
        return AMDSMI_STATUS_NOT_SUPPORTED;
    copy_text(out, size, text);
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_get_gpu_compute_partition(struct handle *device, char *out, uint32_t size) {
    ENTER(device, out);
    return give_text(field(device, "compute_partition"), out, size);
}

API amdsmi_get_gpu_memory_partition(struct handle *device, char *out, uint32_t size) {
    ENTER(device, out);
    return give_text(field(device, "memory_partition"), out, size);
}

/* ---- memory ---- */

static int give_memory(struct handle *device, uint32_t kind, const char *name, uint64_t *out) {
    if (kind != AMDSMI_MEM_TYPE_VRAM || !field(device, name))
        return AMDSMI_STATUS_NOT_SUPPORTED;
    *out = field_number(device, name, 0);
    if (strcmp(name, "vram_used") == 0)
        *out += users_memory(field(device, "users"));
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_get_gpu_memory_total(struct handle *device, uint32_t kind, uint64_t *out) {
    ENTER(device, out);
    return give_memory(device, kind, "vram_total", out);
}

API amdsmi_get_gpu_memory_usage(struct handle *device, uint32_t kind, uint64_t *out) {
    ENTER(device, out);
    return give_memory(device, kind, "vram_used", out);
}

API amdsmi_get_gpu_vram_usage(struct handle *device, amdsmi_vram_usage_t *out) { /* in MiB */
    ENTER(device, out);
    if (!field(device, "vram_total"))
        return AMDSMI_STATUS_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->vram_total = (uint32_t)(field_number(device, "vram_total", 0) >> 20);
    out->vram_used = (uint32_t)((field_number(device, "vram_used", 0) + users_memory(field(device, "users"))) >> 20);
    return AMDSMI_STATUS_SUCCESS;
}

NUMBER(amdsmi_get_gpu_ecc_enabled, uint64_t, "ecc_blocks")

API amdsmi_get_gpu_total_ecc_count(struct handle *device, amdsmi_error_count_t *out) {
    ENTER(device, out);
    if (!field(device, "ecc_correctable"))
        return AMDSMI_STATUS_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->correctable_count = field_number(device, "ecc_correctable", 0);
    out->uncorrectable_count = field_number(device, "ecc_uncorrectable", 0);
    out->deferred_count = field_number(device, "ecc_deferred", 0);
    return AMDSMI_STATUS_SUCCESS;
}

/* ---- processes: `processes = PID:BYTES …`, and those of the folder `users` ---- */

static void give_process(struct handle *device, uint64_t pid, uint64_t bytes, amdsmi_proc_info_t *out) {
    memset(out, 0, sizeof *out);
    out->pid = (uint32_t)pid;
    out->mem = out->memory_usage.vram_mem = bytes;
    COPY(out->name, device, "process_name");
}

API amdsmi_get_gpu_process_list(struct handle *device, uint32_t *count, amdsmi_proc_info_t *out) {
    ENTER(device, count);
    uint64_t pid, bytes;
    uint32_t room = *count, found = 0;
    for (const char *rest = field(device, "processes"); (rest = next_process(rest, &pid, &bytes)); found++)
        if (found < room && out)
            give_process(device, pid, bytes, &out[found]);
    for (size_t at = 0; (at = next_user(field(device, "users"), at, &pid, &bytes)); found++)
        if (found < room && out)
            give_process(device, pid, bytes, &out[found]);
    *count = found < room ? found : room;
    return AMDSMI_STATUS_SUCCESS;
}

/* ---- where it is ---- */

NUMBER(amdsmi_topo_get_numa_node_number, uint32_t, "numa_node")

API amdsmi_get_pcie_info(struct handle *device, amdsmi_pcie_info_t *out) {
    ENTER(device, out);
    if (!field(device, "pcie_mtps"))
        return AMDSMI_STATUS_NOT_SUPPORTED;
    memset(out, 0xff, sizeof *out);
    out->pcie_static.slot_type = 0;
    out->pcie_static.max_pcie_width = (uint16_t)field_number(device, "pcie_max_width", 0xFFFF);
    out->pcie_static.max_pcie_speed = (uint32_t)field_number(device, "pcie_max_mtps", 0xFFFFFFFFu);
    out->pcie_metric.pcie_width = (uint16_t)field_number(device, "pcie_width", 0xFFFF);
    out->pcie_metric.pcie_speed = (uint32_t)field_number(device, "pcie_mtps", 0xFFFFFFFFu);
    return AMDSMI_STATUS_SUCCESS;
}

/* Of a pair, the lower index first: `amd.p2p.0.1 = 1`, `amd.link.0.1 = TYPE HOPS`. */
static const char *pair(const char *what, const struct handle *one, const struct handle *other) {
    int low = one->gpu < other->gpu ? one->gpu : other->gpu, high = one->gpu + other->gpu - low;
    return described(VENDOR ".%s.%d.%d", what, low, high);
}

API amdsmi_topo_get_link_type(struct handle *device, struct handle *peer, uint64_t *hops, uint32_t *type) {
    ENTER(device, hops);
    unsigned kind;
    unsigned long long distance;
    const char *text = is_gpu(peer) ? pair("link", device, peer) : NULL;
    if (!text || sscanf(text, "%u %llu", &kind, &distance) != 2)
        return AMDSMI_STATUS_NOT_SUPPORTED;
    *type = kind;
    *hops = distance;
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_is_P2P_accessible(struct handle *device, struct handle *peer, bool *out) {
    ENTER(device, out);
    if (!is_gpu(peer))
        return AMDSMI_STATUS_INVAL;
    *out = number(pair("p2p", device, peer), 0) != 0;
    return AMDSMI_STATUS_SUCCESS;
}

/* ---- health ---- */

NUMBER(amdsmi_get_gpu_bad_page_threshold, uint32_t, "bad_page_threshold")
NUMBER(amdsmi_gpu_xgmi_error_status, uint32_t, "xgmi_error")

/* Degrees: `amd.0.temperature.SENSOR.METRIC` by the wrapper's numbers. */
API amdsmi_get_temp_metric(struct handle *device, uint32_t sensor, uint32_t metric, int64_t *out) {
    ENTER(device, out);
    const char *text = described(VENDOR ".%d.temperature.%u.%u", device->gpu, sensor, metric);
    if (!text)
        return AMDSMI_STATUS_NOT_SUPPORTED;
    *out = (int64_t)number(text, 0);
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_get_power_cap_info(struct handle *device, uint32_t sensor, amdsmi_power_cap_info_t *out) {
    ENTER(device, out);
    (void)sensor;
    if (!field(device, "power_cap"))
        return AMDSMI_STATUS_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->power_cap = field_number(device, "power_cap", 0);
    out->default_power_cap = field_number(device, "power_cap_default", 0);
    return AMDSMI_STATUS_SUCCESS;
}

API amdsmi_get_gpu_activity(struct handle *device, amdsmi_engine_usage_t *out) {
    ENTER(device, out);
    if (!field(device, "activity"))
        return AMDSMI_STATUS_NOT_SUPPORTED;
    memset(out, 0xff, sizeof *out);
    out->gfx_activity = (uint32_t)field_number(device, "activity", 0);
    return AMDSMI_STATUS_SUCCESS;
}

#ifdef HAS_amdsmi_violation_status_t_active_ppt_pwr
API amdsmi_get_violation_status(struct handle *device, amdsmi_violation_status_t *out) {
    ENTER(device, out);
    if (!field(device, "violation_power"))
        return AMDSMI_STATUS_NOT_SUPPORTED;
    memset(out, 0xff, sizeof *out);
    out->active_ppt_pwr = (uint8_t)field_number(device, "violation_power", 0);
    out->active_socket_thrm = (uint8_t)field_number(device, "violation_socket", 0);
    return AMDSMI_STATUS_SUCCESS;
}
#endif
