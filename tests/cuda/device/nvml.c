/* NVML: the calls that torch uses to count devices and for the text of out-of-memory errors. */
#include "device.h"

enum { NVML_SUCCESS = 0, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_INSUFFICIENT_SIZE = 7 };
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned instance, compute_instance;
} ProcessInfo;

API int nvmlInit_v2(void) { return NVML_SUCCESS; }
API int nvmlInit(void) { return NVML_SUCCESS; }
API int nvmlShutdown(void) { return NVML_SUCCESS; }
API int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = settings.all_devices;
    return NVML_SUCCESS;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(intptr_t)(index + 1);
    return (int)index < settings.all_devices ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    unsigned domain, number;
    if (sscanf(bus, "%x:%x", &domain, &number) != 2 || !number) return NVML_INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(number - 1, handle);
}
API int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    snprintf(text, length, "GPU-00000000-0000-0000-0000-%012d", (int)(intptr_t)handle - 1);
    return NVML_SUCCESS;
}
API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return NVML_SUCCESS;
}
/* Lists only this process, because each process has a separate simulated device. */
API int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, ProcessInfo *processes) {
    if (*count < 1) {
        *count = 1;
        return NVML_INSUFFICIENT_SIZE;
    }
    *count = 1;
    lock_device();
    processes[0] = (ProcessInfo){(unsigned)getpid(), used_memory((int)(intptr_t)handle - 1), 0, 0};
    unlock_device();
    return NVML_SUCCESS;
}
API int nvmlDeviceGetGpuFabricInfoV(void *handle, void *info) {
    (void)handle, (void)info;
    return NVML_NOT_SUPPORTED;
}
/* torch looks up these functions, but calls them only for symmetric memory, which is not simulated. */
API int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NVML_NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NVML_NOT_SUPPORTED; }
