/* The CUDA runtime: devices, streams, events, launches and errors. */
#include "device.h"

#undef cudaStreamGetCaptureInfo
#undef cudaGetDeviceProperties

__thread int current_device;
static __thread cudaError_t last_error;
static uint32_t next_correlation = 1;
static bool is_initialized, was_forked_after; /* a child of a process that has initialized CUDA cannot use CUDA */
static bool contexts[DEVICES_MAX];
static Ns fault_ns = FOREVER;
static long launches;

/* Calls and errors */

Call begin_call(bool driver, int cbid) {
    Call call = {.driver = driver, .cbid = cbid};
    lock_device();
    call.correlation = next_correlation++;
    cupti_external_ids(call.correlation);
    unlock_device();
    call.start = now_ns();
    return call;
}

void end_call(Call *call) {
    Ns end = now_ns();
    lock_device();
    cupti_call(call, end);
    unlock_device();
}

cudaError_t failed(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

static void in_child(void) { was_forked_after = is_initialized; }
static void initialize(void) {
    if (!is_initialized) pthread_atfork(NULL, NULL, in_child);
    is_initialized = true;
}

cudaError_t device_fault(void) {
    if (was_forked_after) return cudaErrorInitializationError;
    return now_ns() >= fault_ns ? (cudaError_t)settings.error_code : cudaSuccess;
}

void fault_at(Ns moment) {
    if (moment < fault_ns) fault_ns = moment;
}

bool device_has_faulted_at(Ns moment) { return moment > fault_ns; }

static __thread bool is_context_current; /* the driver keeps a current context for each thread */
void need_context(int device) {
    is_context_current = true;
    initialize();
    if (contexts[device]) return;
    contexts[device] = true;
    log_note("context", device, "created");
}
bool has_context(int device) { return contexts[device]; }
bool has_current_context(void) { return is_context_current; }

int not_simulated(const char *name) {
    fprintf(stderr, "simulated device: %s is not simulated\n", name);
    return 801; /* cudaErrorNotSupported; an error in every library */
}


API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    lock_device();
    cudaError_t fault = device_fault();
    unlock_device();
    return fault ? fault : error;
}
API cudaError_t cudaPeekAtLastError(void) {
    lock_device();
    cudaError_t fault = device_fault();
    unlock_device();
    return fault ? fault : last_error;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {903, "cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"},
    {904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {905, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {906, "cudaErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "cudaErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread"},
};
API const char *cudaGetErrorString(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)error) return errors[i].text;
    return "unrecognized error code";
}
API const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)error) return errors[i].name;
    return "cudaErrorUnknown";
}

/* Devices */

API cudaError_t cudaGetDeviceCount(int *count) {
    BEGIN;
    initialize(); /* the call initializes the driver, without a context */
    *count = settings.devices;
    END(settings.devices ? cudaSuccess : cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
    BEGIN;
    if (device < 0 || device >= settings.devices) END(cudaErrorInvalidDevice);
    current_device = device;
    need_context(device); /* since CUDA 12 */
    END(cudaSuccess);
}
API cudaError_t cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    RUNTIME_CALL(cudaGetDeviceProperties_v12000);
    memset(p, 0, sizeof *p);
    strcpy(p->name, "Simulated GPU");
    p->totalGlobalMem = settings.memory_bytes;
    p->major = 8;
    p->multiProcessorCount = 108;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT32_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 163 << 10;
    p->sharedMemPerMultiprocessor = 164 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->l2CacheSize = 40 << 20;
    p->memoryBusWidth = 5120;
    p->totalConstMem = 65536;
    p->unifiedAddressing = p->concurrentKernels = p->cooperativeLaunch = 1;
    p->asyncEngineCount = ENGINES;
    p->memoryPoolsSupported = 1;
    p->pciBusID = device + 1;
    for (int i = 0; i < 16; i++) p->uuid.bytes[i] = (char)(i + device);
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    (void)device;
    memset(&p, 0, sizeof p);
    switch ((int)attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = INT32_MAX; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 163 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 164 << 10; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrClockRate: *value = 1410000; break;
    case cudaDevAttrMemoryClockRate: *value = 1215000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
    case cudaDevAttrL2CacheSize: *value = 40 << 20; break;
    case cudaDevAttrMultiProcessorCount: *value = 108; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrAsyncEngineCount: *value = ENGINES; break;
    case cudaDevAttrMemoryPoolsSupported: case cudaDevAttrUnifiedAddressing: case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrConcurrentKernels: case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
    default: *value = 0;
    }
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, length, "0000:%02X:00.0", device + 1);
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return cudaSuccess;
}
API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    static bool enabled[DEVICES_MAX][DEVICES_MAX];
    (void)flags;
    BEGIN;
    bool *pair = &enabled[current_device][peer];
    cudaError_t error = *pair ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
    *pair = true;
    END(error);
}

/* Waits for all work that was submitted to the device. Locked. */
static void wait_for_device(int device) {
    for (Stream *s = first_stream(); s; s = s->next)
        if (s->device == device) wait_for_stream(s);
}

API cudaError_t cudaDeviceSynchronize(void) {
    RUNTIME_CALL(cudaDeviceSynchronize_v3020);
    BEGIN;
    need_context(current_device);
    cudaError_t error = unsafe_call();
    if (error) END(error);
    Ns start = now_ns();
    wait_for_device(current_device);
    cupti_sync(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE, default_stream(current_device), NULL, call.correlation, start, now_ns());
    END(device_fault());
}
API cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
API cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

/* Streams */

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    RUNTIME_CALL(cudaStreamCreateWithPriority_v5050);
    BEGIN;
    need_context(current_device);
    *stream = (cudaStream_t)new_stream(current_device, flags, priority);
    END(cudaSuccess);
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
API cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    BEGIN;
    ((Stream *)stream)->destroyed = true; /* its work still ends, so the structure stays */
    END(cudaSuccess);
}
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    BEGIN;
    *priority = stream_of(stream)->priority;
    END(cudaSuccess);
}
API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    RUNTIME_CALL(cudaStreamSynchronize_v3020);
    BEGIN;
    need_context(current_device);
    Stream *stream = stream_of(handle);
    if (stream->capture) END(break_capture(stream->capture));
    cudaError_t error = unsafe_call();
    if (error) END(error);
    Ns start = now_ns();
    wait_for_stream(stream);
    cupti_sync(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE, stream, NULL, call.correlation, start, now_ns());
    END(device_fault());
}
API cudaError_t cudaStreamQuery(cudaStream_t handle) {
    RUNTIME_CALL(cudaStreamQuery_v3020);
    BEGIN;
    need_context(current_device);
    Stream *stream = stream_of(handle);
    if (stream->capture) END(break_capture(stream->capture));
    cudaError_t error = unsafe_call();
    if (error) END(error);
    END(stream_is_done(stream) ? cudaSuccess : cudaErrorNotReady);
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
    RUNTIME_CALL(cudaStreamWaitEvent_v3020);
    BEGIN;
    (void)flags;
    Stream *stream = stream_of(handle);
    Event *event = (Event *)event_handle;
    if (event->capture || stream->capture) END(capture_wait(stream, event));
    if (event->moment) {
        Work *w = new_work(WORK_WAIT, &call);
        w->moment = keep_moment(event->moment);
        submit_now(stream, w);
        cupti_sync(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT, stream, event, call.correlation, call.start, now_ns());
    }
    END(cudaSuccess);
}

cudaError_t add_host_function(Stream *stream, void (*function)(void *), void *argument) {
    Work *w = new_work(WORK_HOST, NULL);
    w->host_function = function;
    w->host_argument = argument;
    submit(stream, w);
    return cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
    RUNTIME_CALL(cudaLaunchHostFunc_v10000);
    BEGIN;
    END(add_host_function(stream_of(stream), function, argument));
}
typedef struct {
    cudaStream_t stream;
    cudaStreamCallback_t function;
    void *argument;
} Callback;
static void run_callback(void *argument) {
    Callback callback = *(Callback *)argument;
    free(argument);
    callback.function(callback.stream, cudaSuccess, callback.argument);
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *argument, unsigned flags) {
    RUNTIME_CALL(cudaStreamAddCallback_v5000);
    BEGIN;
    (void)flags;
    if (stream_of(stream)->capture) END(break_capture(stream_of(stream)->capture));
    Callback *callback = malloc(sizeof *callback);
    *callback = (Callback){stream, function, argument};
    END(add_host_function(stream_of(stream), run_callback, callback));
}

/* Events */

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags) {
    static int next_id = 1;
    RUNTIME_CALL(cudaEventCreateWithFlags_v3020);
    BEGIN;
    need_context(current_device);
    Event *event = calloc(1, sizeof *event);
    *event = (Event){.device = current_device, .id = next_id++, .flags = flags, .capture_node = -1};
    *handle = (cudaEvent_t)event;
    END(cudaSuccess);
}
API cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    RUNTIME_CALL(cudaEventDestroy_v3020);
    BEGIN;
    Event *event = (Event *)handle;
    drop_moment(event->moment);
    free(event);
    END(cudaSuccess);
}

static cudaError_t record(Event *event, Stream *stream, unsigned flags, uint32_t correlation) {
    static uint64_t next_sync = 1;
    if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
    need_context(stream->device);
    if (stream->capture && !(flags & cudaEventRecordExternal)) {
        capture_record(stream, event);
        return cudaSuccess;
    }
    event->capture = NULL;
    drop_moment(event->moment);
    event->moment = new_moment();
    event->stream = stream->id;
    event->correlation = correlation;
    event->sync_id = next_sync++;
    Work *w = new_work(WORK_RECORD, NULL);
    w->moment = keep_moment(event->moment);
    if (stream->capture)
        capture_work(stream, w);
    else
        submit_now(stream, w);
    if (event->moment->known) cupti_event(event, stream, correlation, event->moment->at);
    return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    RUNTIME_CALL(cudaEventRecordWithFlags_v11010);
    BEGIN;
    END(record((Event *)event, stream_of(stream), flags, call.correlation));
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    RUNTIME_CALL(cudaEventRecord_v3020);
    BEGIN;
    END(record((Event *)event, stream_of(stream), 0, call.correlation));
}
API cudaError_t cudaEventQuery(cudaEvent_t handle) {
    RUNTIME_CALL(cudaEventQuery_v3020);
    BEGIN;
    Event *event = (Event *)handle;
    cudaError_t error = event->capture ? event_is_captured(event) : unsafe_call();
    if (error) END(error);
    END(!event->moment || moment_has_passed(event->moment) ? cudaSuccess : cudaErrorNotReady);
}
API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    RUNTIME_CALL(cudaEventSynchronize_v3020);
    BEGIN;
    Event *event = (Event *)handle;
    cudaError_t error = event->capture ? event_is_captured(event) : unsafe_call();
    if (error) END(error);
    Ns start = now_ns();
    if (event->moment) wait_for_moment(event->moment);
    cupti_sync(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE, default_stream(event->device), event, call.correlation, start, now_ns());
    END(device_fault());
}
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    RUNTIME_CALL(cudaEventElapsedTime_v3020);
    BEGIN;
    need_context(current_device); /* as a comment in torch's CUDAEvent::elapsed_time says */
    Event *a = (Event *)from, *b = (Event *)to;
    if ((a->flags | b->flags) & cudaEventDisableTiming) END(cudaErrorInvalidResourceHandle);
    if (a->capture || b->capture) END(cudaErrorCapturedEvent);
    if (!a->moment || !b->moment || a->device != b->device) END(cudaErrorInvalidResourceHandle);
    if (!moment_has_passed(a->moment) || !moment_has_passed(b->moment)) END(cudaErrorNotReady);
    *ms = (float)((double)(b->moment->at - a->moment->at) * 1e-6);
    END(cudaSuccess);
}

/* Launches */

cudaError_t launch_kernel(Call *call, Stream *stream, const char *name, dim3 grid, dim3 block, int shared_bytes, Ns duration, const Fill *fill) {
    need_context(stream->device);
    Work *w = new_work(WORK_KERNEL, call);
    w->name = name;
    w->duration = with_jitter(duration);
    w->profiled = cupti_wants(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    w->grid = grid;
    w->block = block;
    w->shared_bytes = shared_bytes;
    if (fill) w->fill = *fill;
    launches++;
    if (launches == settings.hang_at_launch) w->duration = FOREVER;
    bool fault = launches == settings.error_at_launch;
    submit(stream, w);
    if (fault) fault_at(stream->ready);
    return cudaSuccess;
}

typedef struct {
    const void *function;
    const char *name;
} Registered;
static Registered *registered;
static int registered_count, registered_sorted;

static int by_function(const void *a, const void *b) {
    const void *x = ((const Registered *)a)->function, *y = ((const Registered *)b)->function;
    return x < y ? -1 : x > y;
}
static const char *name_of(const void *function) {
    if (registered_sorted != registered_count) {
        qsort(registered, registered_count, sizeof *registered, by_function);
        registered_sorted = registered_count;
    }
    Registered key = {function, NULL}, *found = bsearch(&key, registered, registered_count, sizeof key, by_function);
    return found ? found->name : "unknown_kernel";
}
API void **__cudaRegisterFatBinary(void *binary) {
    static void *handle[4];
    (void)binary;
    return handle;
}
API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
API void __cudaRegisterVar(void) {}
API char __cudaInitModule(void **handle) {
    (void)handle;
    return 0;
}
API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *a, void *b, void *c, void *d, int *e) {
    static int capacity;
    (void)handle, (void)device, (void)limit, (void)a, (void)b, (void)c, (void)d, (void)e;
    if (registered_count == capacity) registered = realloc(registered, (capacity = capacity ? capacity * 2 : 4096) * sizeof *registered);
    registered[registered_count++] = (Registered){host, name};
}

/* Returns the value that PyTorch's kernel for filling a contiguous tensor writes:
 * vectorized_elementwise_kernel(int, FillFunctor<T>, char *[1]). Scripts read filled tensors, for example GradScaler's flag for infinite gradients, which is filled with 0. */
static Fill fill_of(const char *name, void **arguments) {
    Fill fill = {0};
    const char *kernel = strstr(name, "vectorized_elementwise_kernel"), *type = kernel ? strstr(kernel, "11FillFunctorI") : NULL;
    if (!type) return fill;
    type += strlen("11FillFunctorI");
    if (strchr("dlmxy", *type)) fill.element_bytes = 8;
    else if (strchr("fij", *type)) fill.element_bytes = 4;
    else if (strchr("st", *type) || !strncmp(type, "N3c104Half", 10) || !strncmp(type, "N3c108BFloat16", 14)) fill.element_bytes = 2;
    else if (strchr("ahbc", *type)) fill.element_bytes = 1;
    else return fill;
    fill.elements = *(int *)arguments[0];
    memcpy(fill.value, arguments[1], fill.element_bytes);
    fill.target = *(void **)arguments[2];
    return fill;
}
static cudaError_t launch(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream, Call *call) {
    BEGIN;
    const char *name = name_of(function);
    Fill fill = fill_of(name, arguments);
    END(launch_kernel(call, stream_of(stream), name, grid, block, (int)shared, kernel_duration(name, grid, block), &fill));
}
API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    RUNTIME_CALL(cudaLaunchKernel_v7000);
    return launch(function, grid, block, arguments, shared, stream, &call);
}
API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    RUNTIME_CALL(cudaLaunchCooperativeKernel_v9000);
    return launch(function, grid, block, arguments, shared, stream, &call);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    RUNTIME_CALL(cudaLaunchKernelExC_v11060);
    return launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream, &call);
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    RUNTIME_CALL(cudaLaunchKernel_v7000);
    return launch(kernel, grid, block, arguments, shared, stream, &call);
}
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}
static __thread struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} pushed;
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
    return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(void **)stream = pushed.stream;
    return cudaSuccess;
}

cudaError_t library_kernel(void *stream, const char *name, dim3 grid, dim3 block, Ns duration) {
    RUNTIME_CALL(cudaLaunchKernel_v7000);
    BEGIN;
    END(launch_kernel(&call, stream_of(stream), name, grid, block, 0, duration, NULL));
}

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    RUNTIME_CALL(cudaFuncGetAttributes_v3020);
    (void)function;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->binaryVersion = attributes->ptxVersion = 80;
    attributes->numRegs = 32;
    return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads, size_t shared, unsigned flags) {
    RUNTIME_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags_v7000);
    (void)function, (void)shared, (void)flags;
    *blocks = 2048 / (threads > 0 ? threads : 1);
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
/* A symbol on the device, such as a table of constants, has an address, but is never read. */
API cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    *address = (void *)symbol;
    return cudaSuccess;
}
API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *source, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
    (void)symbol, (void)source, (void)bytes, (void)offset, (void)kind;
    return cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *status) {
    (void)version, (void)flags;
    *function = driver_function(name);
    if (status) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
