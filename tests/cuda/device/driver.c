/* libcuda: contexts, modules and launches as Triton uses them, and the virtual memory that expandable segments use. */
#include "device.h"
#include <sys/mman.h>

#undef cuDeviceTotalMem
#undef cuCtxCreate
#undef cuLinkCreate

#define STATUS(error) ((CUresult)(error)) /* the runtime's and the driver's numbers are the same where both exist */

static CUcontext context_of(int device) { return (CUcontext)(intptr_t)(device + 1); }

API CUresult cuInit(unsigned flags) {
    int count;
    (void)flags;
    return STATUS(cudaGetDeviceCount(&count));
}
API CUresult cuDriverGetVersion(int *version) { return STATUS(cudaDriverGetVersion(version)); }
API CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = cudaGetErrorString((cudaError_t)error);
    return 0;
}
API CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = cudaGetErrorName((cudaError_t)error);
    return 0;
}
API CUresult cuDeviceGetCount(int *count) { return STATUS(cudaGetDeviceCount(count)); }
API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return 0;
}
API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    (void)device;
    snprintf(name, length, "Simulated GPU");
    return 0;
}
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return STATUS(cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device));
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = settings.memory_bytes;
    return 0;
}
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    for (int i = 0; i < 16; i++) uuid->bytes[i] = (char)(i + device);
    return 0;
}
API CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = has_current_context() ? context_of(current_device) : NULL;
    return 0;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
    return context ? STATUS(cudaSetDevice((int)(intptr_t)context - 1)) : 0;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) { return cuCtxSetCurrent(context); }
API CUresult cuCtxPopCurrent_v2(CUcontext *context) { return cuCtxGetCurrent(context); }
API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = current_device;
    return 0;
}
API CUresult cuCtxSynchronize(void) { return STATUS(cudaDeviceSynchronize()); }
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (flags) *flags = 0;
    *active = has_context(device);
    return 0;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    BEGIN;
    need_context(device);
    *context = context_of(device);
    END(0);
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    return 0;
}

/* Modules: any text or binary is accepted. A function consists of its name. */
API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    (void)image;
    *module = (CUmodule)1;
    return 0;
}
API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}
API CUresult cuModuleLoad(CUmodule *module, const char *path) {
    return access(path, R_OK) ? CUDA_ERROR_FILE_NOT_FOUND : cuModuleLoadData(module, path);
}
API CUresult cuModuleUnload(CUmodule module) {
    (void)module;
    return 0;
}
API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module;
    lock_device();
    *function = (CUfunction)keep_name(name);
    unlock_device();
    return 0;
}
API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return 0;
}
API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return 0;
}
API CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
    (void)function, (void)config;
    return 0;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) {
    (void)function, (void)shared;
    *blocks = 2048 / (threads > 0 ? threads : 1);
    return 0;
}
static CUresult launch(Call *call, CUfunction function, dim3 grid, dim3 block, unsigned shared, CUstream stream) {
    BEGIN;
    const char *name = (const char *)function;
    END(launch_kernel(call, stream_of((cudaStream_t)stream), name, grid, block, (int)shared, kernel_duration(name, grid, block), NULL));
}
API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void **arguments, void **extra) {
    DRIVER_CALL(cuLaunchKernel);
    (void)arguments, (void)extra;
    return launch(&call, function, (dim3){gx, gy, gz}, (dim3){bx, by, bz}, shared, stream);
}
API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                       CUstream stream, void **arguments) {
    DRIVER_CALL(cuLaunchCooperativeKernel);
    (void)arguments;
    return launch(&call, function, (dim3){gx, gy, gz}, (dim3){bx, by, bz}, shared, stream);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    DRIVER_CALL(cuLaunchKernelEx);
    (void)arguments, (void)extra;
    return launch(&call, function, (dim3){config->gridDimX, config->gridDimY, config->gridDimZ}, (dim3){config->blockDimX, config->blockDimY, config->blockDimZ},
                  config->sharedMemBytes, config->hStream);
}
API CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    int device = 0;
    lock_device();
    MemoryKind kind = memory_kind((void *)address, &device);
    unlock_device();
    if (kind == MEMORY_UNKNOWN) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = address; return 0;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = kind == MEMORY_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; return 0;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = device; return 0;
    default: return STATUS(not_simulated("this attribute of cuPointerGetAttribute"));
    }
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address) {
    uintptr_t first;
    lock_device();
    bool found = address_range(address, &first, bytes, NULL);
    unlock_device();
    if (found && start) *start = first;
    return found ? 0 : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
    return STATUS(cudaMemsetAsync((void *)target, (int)(value & 255), count * 4, (cudaStream_t)stream));
}

/* Virtual memory: reserve addresses, create memory, map it. */
typedef struct {
    size_t bytes;
    int device;
    int users; /* the handle and each mapping */
    bool counted;
} Physical;

API CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags flags) {
    (void)prop, (void)flags;
    *bytes = 2 << 20;
    return 0;
}
API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
    (void)alignment, (void)wish, (void)flags;
    void *p = NULL;
    BEGIN;
    cudaError_t error = reserve_address(&p, bytes, current_device);
    *address = (CUdeviceptr)p;
    END(error);
}
API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    (void)bytes;
    BEGIN;
    END(release_address((void *)address));
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags) {
    DRIVER_CALL(cuMemCreate);
    (void)flags;
    BEGIN;
    cudaError_t error = unsafe_call();
    if (!error) error = take_memory(prop->location.id, bytes);
    if (error) END(error);
    Physical *p = calloc(1, sizeof *p);
    *p = (Physical){bytes, prop->location.id, 1, true};
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
    END(cudaSuccess);
}
/* Returns the memory that is mapped at an address. */
typedef struct Mapping {
    CUdeviceptr address;
    Physical *physical;
    struct Mapping *next;
} Mapping;
static Mapping *mappings;

static void drop_physical(Physical *p) {
    if (--p->users) return;
    give_memory(p->device, p->bytes);
    free(p);
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    BEGIN;
    drop_physical((Physical *)(uintptr_t)handle);
    END(cudaSuccess);
}
API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    (void)bytes, (void)offset, (void)flags;
    BEGIN;
    Mapping *m = calloc(1, sizeof *m);
    *m = (Mapping){address, (Physical *)(uintptr_t)handle, mappings};
    m->physical->users++;
    mappings = m;
    END(cudaSuccess);
}
API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    (void)access, (void)count;
    return mprotect((void *)address, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE : 0;
}
API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    DRIVER_CALL(cuMemUnmap);
    BEGIN;
    for (Mapping **p = &mappings; *p;) {
        Mapping *m = *p;
        if (m->address < address || m->address >= address + bytes) {
            p = &m->next;
            continue;
        }
        *p = m->next;
        drop_physical(m->physical);
        free(m);
    }
    madvise((void *)address, bytes, MADV_DONTNEED);
    END(cudaSuccess);
}

/* Functions that are not defined here are not found. torch reports their names. */
void *driver_function(const char *name) {
    char versioned[128];
    void *found = alias_of(name);
    for (int version = 3; !found && version >= 2; version--) {
        snprintf(versioned, sizeof versioned, "%s_v%d", name, version);
        found = alias_of(versioned);
    }
    return found;
}
API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    (void)version, (void)flags;
    *function = driver_function(name);
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
