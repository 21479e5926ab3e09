/* CUPTI's activity API: the part that Kineto calls.
 *
 * The record of a call is created when the call returns, and the record of device work when the work gets its times. Records have device
 * times until they are delivered. Kineto registers another clock (cuptiActivityRegisterTimestampCallback), so delivery converts the
 * times. For this, both clocks are read at registration and at delivery. Each time, the closest of several readings is used.
 */
#include "device.h"

typedef struct Record {
    struct Record *next;
    Ns start, end; /* on the device's clock */
    size_t bytes;
    char data[] __attribute__((aligned(8)));
} Record;
typedef struct {
    Record *head, **tail;
} List;
static List calls = {NULL, &calls.head}, works = {NULL, &works.head}; /* records of calls are delivered before those of work */

static bool enabled[512];
static bool call_disabled[2][4096]; /* runtime and driver, by callback id */
static CUpti_BuffersCallbackRequestFunc request_buffer;
static CUpti_BuffersCallbackCompleteFunc complete_buffer;
static CUpti_TimestampCallbackFunc their_clock;
static long device_records, dropped;

#define STACK_MAX 256
static __thread struct {
    CUpti_ExternalCorrelationKind kind;
    uint64_t id;
} external[STACK_MAX];
static __thread int external_count;

/* Clocks */

typedef struct {
    Ns ours;
    uint64_t theirs;
} Reading;
static Reading at_registration;

static Reading read_clocks(void) {
    Reading best = {0, 0};
    Ns shortest = INT64_MAX;
    for (int i = 0; i < 20; i++) {
        Ns before = now_ns();
        uint64_t theirs = their_clock();
        Ns after = now_ns();
        if (after - before < shortest) {
            shortest = after - before;
            best = (Reading){before + (after - before) / 2, theirs};
        }
    }
    return best;
}

/* Records */

/* CUPTI requests a buffer when it has a record to store. If there is no request, Kineto assumes that there was no device work. */
static uint8_t *early_buffer;
static size_t early_size;

static void take_buffer(uint8_t **buffer, size_t *size) {
    size_t limit = 0;
    *buffer = early_buffer;
    *size = early_size;
    early_buffer = NULL;
    if (!*buffer && request_buffer) request_buffer(buffer, size, &limit);
}

static void add_record(List *list, const void *data, size_t bytes, Ns start, Ns end) {
    if (!early_buffer) take_buffer(&early_buffer, &early_size);
    Record *r = malloc(sizeof *r + bytes);
    r->next = NULL;
    r->start = start;
    r->end = end;
    r->bytes = bytes;
    memcpy(r->data, data, bytes);
    *list->tail = r;
    list->tail = &r->next;
}
static void add_device_record(const void *data, size_t bytes, Ns start, Ns end) {
    device_records++;
    if (settings.drop_every && device_records % settings.drop_every == 0) {
        dropped++;
        return;
    }
    add_record(&works, data, bytes, start, end);
}

bool cupti_wants(CUpti_ActivityKind kind) { return enabled[kind]; }

static bool wants_call(bool driver, int cbid) {
    return enabled[driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME] && !call_disabled[driver][cbid & 4095];
}

void cupti_external_ids(uint32_t correlation) {
    if (!enabled[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION]) return;
    bool done[8] = {false};
    for (int i = external_count - 1; i >= 0; i--) { /* the innermost id of each kind */
        if (done[external[i].kind & 7]) continue;
        done[external[i].kind & 7] = true;
        CUpti_ActivityExternalCorrelation e = {.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, .externalKind = external[i].kind,
                                               .externalId = external[i].id, .correlationId = correlation};
        add_record(&calls, &e, sizeof e, 0, 0);
    }
}
uint64_t cupti_current_op(void) {
    for (int i = external_count - 1; i >= 0; i--)
        if (external[i].kind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0) return external[i].id;
    return 0;
}
void cupti_call(const Call *call, Ns end) {
    if (!wants_call(call->driver, call->cbid)) return;
    CUpti_ActivityAPI a = {.kind = call->driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME, .cbid = call->cbid,
                           .processId = getpid(), .threadId = (uint32_t)pthread_self(), .correlationId = call->correlation,
                           .returnValue = call->result};
    add_record(&calls, &a, sizeof a, call->start, end);
}

void cupti_work(const Work *w, const Stream *stream, Ns start, Ns end) {
    uint32_t device = stream->device, context = device + 1;
    switch (w->kind) {
    case WORK_KERNEL:
    case WORK_COLLECTIVE: {
        CUpti_ActivityKernel10 k;
        memset(&k, 0, sizeof k);
        k.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        k.deviceId = device, k.contextId = context, k.streamId = stream->id, k.correlationId = w->correlation;
        k.gridX = w->grid.x, k.gridY = w->grid.y, k.gridZ = w->grid.z;
        k.blockX = w->block.x, k.blockY = w->block.y, k.blockZ = w->block.z;
        k.registersPerThread = 32;
        k.dynamicSharedMemory = w->shared_bytes;
        k.name = w->name;
        k.graphId = w->graph, k.graphNodeId = w->graph_node;
        k.gridId = w->correlation;
        add_device_record(&k, sizeof k, start, end);
        break;
    }
    case WORK_COPY:
        if (w->copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP && enabled[CUPTI_ACTIVITY_KIND_MEMCPY2]) {
            CUpti_ActivityMemcpyPtoP4 p;
            memset(&p, 0, sizeof p);
            p.kind = CUPTI_ACTIVITY_KIND_MEMCPY2;
            p.copyKind = w->copy_kind, p.srcKind = w->source_kind, p.dstKind = w->target_kind, p.bytes = w->bytes;
            p.deviceId = device, p.contextId = context, p.streamId = stream->id, p.correlationId = w->correlation;
            p.srcDeviceId = w->source_device, p.srcContextId = w->source_device + 1;
            p.dstDeviceId = w->target_device, p.dstContextId = w->target_device + 1;
            p.graphId = w->graph, p.graphNodeId = w->graph_node;
            add_device_record(&p, sizeof p, start, end);
        } else {
            CUpti_ActivityMemcpy6 m;
            memset(&m, 0, sizeof m);
            m.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
            m.copyKind = w->copy_kind, m.srcKind = w->source_kind, m.dstKind = w->target_kind, m.bytes = w->bytes;
            m.deviceId = device, m.contextId = context, m.streamId = stream->id, m.correlationId = w->correlation;
            m.graphId = w->graph, m.graphNodeId = w->graph_node;
            m.copyCount = 1;
            add_device_record(&m, sizeof m, start, end);
        }
        break;
    case WORK_SET: {
        CUpti_ActivityMemset4 s;
        memset(&s, 0, sizeof s);
        s.kind = CUPTI_ACTIVITY_KIND_MEMSET;
        s.value = w->value, s.bytes = w->bytes, s.memoryKind = w->target_kind;
        s.deviceId = device, s.contextId = context, s.streamId = stream->id, s.correlationId = w->correlation;
        s.graphId = w->graph, s.graphNodeId = w->graph_node;
        add_device_record(&s, sizeof s, start, end);
        break;
    }
    default:
        break;
    }
}

void cupti_sync(int type, const Stream *stream, const Event *event, uint32_t correlation, Ns start, Ns end) {
    if (!enabled[CUPTI_ACTIVITY_KIND_SYNCHRONIZATION]) return;
    CUpti_ActivitySynchronization2 s = {.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, .type = type, .correlationId = correlation,
                                        .contextId = stream->device + 1,
                                        .streamId = type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE || type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE
                                                        ? (uint32_t)CUPTI_SYNCHRONIZATION_INVALID_VALUE : (uint32_t)stream->id,
                                        .cudaEventId = event ? event->id : (uint32_t)CUPTI_SYNCHRONIZATION_INVALID_VALUE,
                                        .cudaEventSyncId = event ? event->sync_id : 0};
    add_record(&calls, &s, sizeof s, start, end);
}
void cupti_event(const Event *event, const Stream *stream, uint32_t correlation, Ns at) {
    if (!enabled[CUPTI_ACTIVITY_KIND_CUDA_EVENT]) return;
    CUpti_ActivityCudaEvent2 e;
    memset(&e, 0, sizeof e);
    e.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
    e.correlationId = correlation, e.contextId = stream->device + 1, e.streamId = stream->id, e.eventId = event->id;
    e.deviceId = stream->device;
    e.cudaEventSyncId = event->sync_id;
    add_record(&calls, &e, sizeof e, at, at);
}
void cupti_overhead(int kind, Ns start, Ns end) {
    if (!enabled[CUPTI_ACTIVITY_KIND_OVERHEAD]) return;
    CUpti_ActivityOverhead3 o;
    memset(&o, 0, sizeof o);
    o.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
    o.overheadKind = kind;
    o.objectKind = CUPTI_ACTIVITY_OBJECT_THREAD;
    o.objectId.pt.processId = getpid();
    o.objectId.pt.threadId = (uint32_t)pthread_self();
    add_record(&calls, &o, sizeof o, start, end);
}

/* Delivery */

static size_t size_of(CUpti_ActivityKind kind) {
    size_t bytes;
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: bytes = sizeof(CUpti_ActivityKernel10); break;
    case CUPTI_ACTIVITY_KIND_MEMCPY: bytes = sizeof(CUpti_ActivityMemcpy6); break;
    case CUPTI_ACTIVITY_KIND_MEMCPY2: bytes = sizeof(CUpti_ActivityMemcpyPtoP4); break;
    case CUPTI_ACTIVITY_KIND_MEMSET: bytes = sizeof(CUpti_ActivityMemset4); break;
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: bytes = sizeof(CUpti_ActivitySynchronization2); break;
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: bytes = sizeof(CUpti_ActivityExternalCorrelation); break;
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: bytes = sizeof(CUpti_ActivityCudaEvent2); break;
    case CUPTI_ACTIVITY_KIND_OVERHEAD: bytes = sizeof(CUpti_ActivityOverhead3); break;
    default: bytes = sizeof(CUpti_ActivityAPI);
    }
    return (bytes + 7) & ~(size_t)7;
}

static Reading delivery;
static uint64_t convert(Ns ns) {
    if (!their_clock || !ns) return ns;
    double rate = (double)(delivery.theirs - at_registration.theirs) / (double)(delivery.ours - at_registration.ours);
    return delivery.theirs + (int64_t)(rate * (double)(ns - delivery.ours));
}

static void set_times(Record *r) {
    uint64_t start = convert(r->start), end = convert(r->end);
    switch (*(CUpti_ActivityKind *)r->data) {
#define SET(kind_, type)                                                                                                           \
    case kind_:                                                                                                                    \
        ((type *)r->data)->start = start;                                                                                          \
        ((type *)r->data)->end = end;                                                                                              \
        break;
        SET(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUpti_ActivityKernel10)
        SET(CUPTI_ACTIVITY_KIND_MEMCPY, CUpti_ActivityMemcpy6)
        SET(CUPTI_ACTIVITY_KIND_MEMCPY2, CUpti_ActivityMemcpyPtoP4)
        SET(CUPTI_ACTIVITY_KIND_MEMSET, CUpti_ActivityMemset4)
        SET(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUpti_ActivitySynchronization2)
        SET(CUPTI_ACTIVITY_KIND_OVERHEAD, CUpti_ActivityOverhead3)
        SET(CUPTI_ACTIVITY_KIND_RUNTIME, CUpti_ActivityAPI)
        SET(CUPTI_ACTIVITY_KIND_DRIVER, CUpti_ActivityAPI)
#undef SET
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT:
        ((CUpti_ActivityCudaEvent2 *)r->data)->deviceTimestamp = start;
        break;
    default:
        break;
    }
}

static void add_all(List *to, List *from, Ns until) {
    Record **place = &from->head;
    while (*place) {
        Record *r = *place;
        if (r->end > until) { /* has not ended: stays for the next delivery */
            place = &r->next;
            continue;
        }
        *place = r->next;
        r->next = NULL;
        *to->tail = r;
        to->tail = &r->next;
    }
    from->tail = place;
}

API CUptiResult cuptiActivityFlushAll(uint32_t flags) {
    (void)flags;
    Ns begun = now_ns();
    lock_device();
    make_progress();
    List out = {NULL, &out.head};
    if (their_clock) delivery = read_clocks();
    Ns now = now_ns();
    add_all(&out, &calls, FOREVER);
    add_all(&out, &works, now);
    unlock_device();
    while (out.head) {
        uint8_t *buffer = NULL;
        size_t size = 0, used = 0;
        take_buffer(&buffer, &size);
        if (!buffer) break;
        while (out.head) {
            Record *r = out.head;
            size_t bytes = size_of(*(CUpti_ActivityKind *)r->data);
            if (used + bytes > size) break;
            set_times(r);
            memset(buffer + used, 0, bytes);
            memcpy(buffer + used, r->data, r->bytes);
            used += bytes;
            out.head = r->next;
            free(r);
        }
        complete_buffer(NULL, 0, buffer, size, used);
    }
    lock_device();
    cupti_overhead(CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH, begun, now_ns());
    unlock_device();
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record) {
    uint8_t *next = *record ? (uint8_t *)*record + size_of((*record)->kind) : buffer;
    if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *count) {
    (void)context, (void)stream;
    lock_device();
    *count = dropped;
    dropped = 0;
    unlock_device();
    return CUPTI_SUCCESS;
}

/* Control */

static CUptiResult refusal(void) {
    if (settings.cupti_denied) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
    if (settings.cupti_taken) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    return CUPTI_SUCCESS;
}
static CUptiResult enable(CUpti_ActivityKind kind, bool on) {
    CUptiResult refused = refusal();
    if (refused) return refused;
    lock_device();
    enabled[kind] = on;
    unlock_device();
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { return enable(kind, true); }
API CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return enable(kind, false); }
API CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId cbid, uint8_t on) {
    call_disabled[0][cbid & 4095] = !on;
    return refusal();
}
API CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId cbid, uint8_t on) {
    call_disabled[1][cbid & 4095] = !on;
    return refusal();
}
API CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t on) {
    (void)on;
    return refusal();
}
API CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete) {
    request_buffer = request;
    complete_buffer = complete;
    return refusal();
}
API CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc function) {
    lock_device();
    their_clock = function;
    at_registration = read_clocks();
    unlock_device();
    return refusal();
}
API CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t *bytes, void *value) {
    (void)attribute, (void)bytes, (void)value;
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    if (external_count == STACK_MAX) return CUPTI_ERROR_OUT_OF_MEMORY;
    external[external_count].kind = kind;
    external[external_count++].id = id;
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *id) {
    for (int i = external_count - 1; i >= 0; i--)
        if (external[i].kind == kind) {
            if (id) *id = external[i].id;
            memmove(external + i, external + i + 1, (external_count - i - 1) * sizeof *external);
            external_count--;
            return CUPTI_SUCCESS;
        }
    return CUPTI_ERROR_QUEUE_EMPTY;
}
API CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *handle, CUpti_CallbackFunc function, void *argument) {
    (void)function, (void)argument;
    *handle = (CUpti_SubscriberHandle)1;
    return refusal();
}
API CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle) {
    (void)handle;
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiEnableCallback(uint32_t on, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain, CUpti_CallbackId cbid) {
    (void)on, (void)handle, (void)domain, (void)cbid;
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiEnableDomain(uint32_t on, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain) {
    (void)on, (void)handle, (void)domain;
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiFinalize(void) { return CUPTI_SUCCESS; }
API CUptiResult cuptiGetVersion(uint32_t *version) {
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
    *text = result == CUPTI_SUCCESS                                       ? "CUPTI_SUCCESS"
            : result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES              ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
            : result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                                                           : "CUPTI_ERROR_UNKNOWN";
    return CUPTI_SUCCESS;
}

/* These tables are generated from cupti_runtime_cbid.h and cupti_driver_cbid.h. */
extern const char *const runtime_call_names[], *const driver_call_names[];
extern const int runtime_call_count, driver_call_count;

API CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t cbid, const char **name) {
    bool driver = domain == CUPTI_CB_DOMAIN_DRIVER_API;
    bool known = (int)cbid < (driver ? driver_call_count : runtime_call_count);
    *name = known ? (driver ? driver_call_names : runtime_call_names)[cbid] : NULL;
    if (!*name) *name = "INVALID";
    return known ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}
