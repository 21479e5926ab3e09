/* Stream capture and graphs.
 *
 * A capture stores work instead of running it. Each stream in it is a branch; nodes of a branch run in order. An event that is recorded
 * in one branch and waited for in another makes an edge between nodes. Launching a graph submits copies of the nodes: nodes of the first
 * branch go to the launching stream, and each other branch gets a separate stream.
 *
 * The rules of what a capture forbids follow the CUDA Programming Guide, "Prohibited and Unhandled Operations", and the three modes of
 * cudaThreadExchangeStreamCaptureMode.
 */
#include "device.h"

#undef cudaStreamGetCaptureInfo

#define BRANCHES_MAX 64

typedef struct {
    Work work;
    int branch, previous; /* the node before it in its branch, or -1 */
    int *after, count;    /* nodes of other branches that must have ended */
    bool needed;          /* another branch waits for it */
} Node;

typedef struct Graph {
    Node *nodes;
    int count, capacity, branches, users;
    int end_after[BRANCHES_MAX]; /* for each branch: its last node, which the first branch waits for at the end, or -1 */
    struct UserObject *objects;
} Graph;

struct Capture {
    unsigned long long id;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    bool broken, closed;
    Graph *graph;
    Stream *origin, *streams[BRANCHES_MAX];
    int last[BRANCHES_MAX];                         /* node of each branch */
    int *pending[BRANCHES_MAX], pending_count[BRANCHES_MAX]; /* nodes that the branch's next node must wait for */
    struct Capture *next;
};

typedef struct {
    Graph *graph;
    Stream *branch_streams[BRANCHES_MAX];
    uint32_t id;
} Executable;

static Capture *open_captures;
static unsigned long long next_capture = 1;
static uint32_t next_graph = 1;
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

bool is_capturing(Stream *stream) { return stream->capture != NULL; }
bool capture_is_open(Capture *capture) { return !capture->closed; }

cudaError_t break_capture(Capture *capture) {
    if (capture->closed) return cudaErrorCapturedEvent;
    bool before = capture->broken;
    if (!before) log_note("capture", capture->origin->device, "invalidated");
    capture->broken = true;
    return before ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnsupported;
}

/* A thread in relaxed mode may do anything. In thread-local mode, its captures forbid some calls. In global mode, captures that other
 * threads began in global mode also forbid these calls. */
cudaError_t unsafe_call(void) {
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    for (Capture *c = open_captures; c; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self());
        bool forbids = mine ? c->mode != cudaStreamCaptureModeRelaxed
                            : c->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
        if (forbids) return break_capture(c);
    }
    return cudaSuccess;
}

cudaError_t event_is_captured(Event *event) {
    break_capture(event->capture);
    return cudaErrorCapturedEvent;
}

static void add_pending(Capture *c, int branch, int node) {
    if (node < 0) return;
    c->pending[branch] = realloc(c->pending[branch], (c->pending_count[branch] + 1) * sizeof(int));
    c->pending[branch][c->pending_count[branch]++] = node;
    c->graph->nodes[node].needed = true;
}

void capture_work(Stream *stream, Work *w) {
    Capture *c = stream->capture;
    Graph *g = c->graph;
    if (g->count == g->capacity) g->nodes = realloc(g->nodes, (g->capacity = g->capacity ? 2 * g->capacity : 256) * sizeof(Node));
    int b = stream->branch;
    Node *node = &g->nodes[g->count];
    *node = (Node){.work = *w, .branch = b, .previous = c->last[b], .after = c->pending[b], .count = c->pending_count[b]};
    c->pending[b] = NULL;
    c->pending_count[b] = 0;
    c->last[b] = g->count++;
    free(w);
}

void capture_record(Stream *stream, Event *event) {
    Capture *c = stream->capture;
    event->capture = c;
    event->capture_branch = stream->branch;
    event->capture_node = c->last[stream->branch];
    /* A branch without nodes is replaced by the nodes that it waits for. */
    if (event->capture_node < 0 && c->pending_count[stream->branch]) event->capture_node = c->pending[stream->branch][0];
}

cudaError_t capture_wait(Stream *stream, Event *event) {
    Capture *c = event->capture;
    if (!c) { /* a captured stream must not depend on work outside */
        if (!event->moment) return cudaSuccess;
        stream->capture->broken = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (c->closed) return cudaErrorCapturedEvent;
    if (!stream->capture) {
        if (stream->id == 7) {
            c->broken = true;
            return cudaErrorStreamCaptureImplicit;
        }
        if (c->graph->branches == BRANCHES_MAX) return cudaErrorNotSupported;
        stream->capture = c;
        stream->branch = c->graph->branches++;
        c->streams[stream->branch] = stream;
        c->last[stream->branch] = -1;
    } else if (stream->capture != c) {
        c->broken = stream->capture->broken = true;
        return 902; /* cudaErrorStreamCaptureMerge */
    }
    if (event->capture_branch != stream->branch) add_pending(c, stream->branch, event->capture_node);
    return cudaSuccess;
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
    RUNTIME_CALL(cudaStreamBeginCapture_v10000);
    BEGIN;
    Stream *stream = stream_of(handle);
    if (stream->id == 7) END(cudaErrorStreamCaptureUnsupported);
    if (stream->capture) END(cudaErrorInvalidValue);
    Capture *c = calloc(1, sizeof *c);
    c->id = next_capture++;
    c->mode = mode;
    c->thread = pthread_self();
    c->graph = calloc(1, sizeof *c->graph);
    c->graph->users = 1;
    c->graph->branches = 1;
    c->origin = c->streams[0] = stream;
    c->last[0] = -1;
    c->next = open_captures;
    open_captures = c;
    stream->capture = c;
    stream->branch = 0;
    log_note("capture", stream->device, "begun");
    END(cudaSuccess);
}

/* Marks `node` and all nodes that run before it in `seen`. */
static void mark_before(const Graph *g, int node, char *seen) {
    while (node >= 0 && !seen[node]) {
        seen[node] = 1;
        for (int i = 0; i < g->nodes[node].count; i++) mark_before(g, g->nodes[node].after[i], seen);
        node = g->nodes[node].previous;
    }
}

API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    RUNTIME_CALL(cudaStreamEndCapture_v10000);
    BEGIN;
    Stream *stream = stream_of(handle);
    Capture *c = stream->capture;
    *graph = NULL;
    if (!c || c->origin != stream) END(cudaErrorStreamCaptureUnmatched);
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self())) END(cudaErrorStreamCaptureWrongThread);
    Graph *g = c->graph;
    for (int b = 0; b < g->branches; b++) c->streams[b]->capture = NULL;
    for (Capture **p = &open_captures; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    c->closed = true; /* events that were recorded in it still refer to it */
    bool joined = true;
    char *seen = calloc(1, g->count + 1);
    mark_before(g, c->last[0], seen);
    for (int i = 0; i < c->pending_count[0]; i++) mark_before(g, c->pending[0][i], seen);
    for (int b = 1; b < g->branches; b++) joined &= c->last[b] < 0 || seen[c->last[b]];
    free(seen);
    for (int b = 0; b < g->branches; b++) {
        g->end_after[b] = b ? c->last[b] : -1;
        if (b && c->last[b] >= 0) g->nodes[c->last[b]].needed = true;
    }
    log_note("capture", stream->device, c->broken ? "ended invalid" : joined ? "ended" : "ended unjoined");
    if (c->broken) END(cudaErrorStreamCaptureInvalidated);
    if (!joined) END(cudaErrorStreamCaptureUnjoined);
    *graph = (cudaGraph_t)g;
    END(cudaSuccess);
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
    RUNTIME_CALL(cudaStreamIsCapturing_v10000);
    BEGIN;
    Capture *c = stream_of(handle)->capture;
    *status = !c ? cudaStreamCaptureStatusNone : c->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    END(cudaSuccess);
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                         const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges, size_t *count) {
    RUNTIME_CALL(cudaStreamGetCaptureInfo_v12030);
    BEGIN;
    Capture *c = stream_of(handle)->capture;
    *status = !c ? cudaStreamCaptureStatusNone : c->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    if (id) *id = c ? c->id : 0;
    if (graph) *graph = c ? (cudaGraph_t)c->graph : NULL;
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    END(cudaSuccess);
}

/* Graphs */

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t handle, unsigned long long flags) {
    RUNTIME_CALL(cudaGraphInstantiateWithFlags_v11040);
    BEGIN;
    (void)flags;
    Executable *e = calloc(1, sizeof *e);
    e->graph = (Graph *)handle;
    e->graph->users++;
    e->id = next_graph++;
    *executable = (cudaGraphExec_t)e;
    END(cudaSuccess);
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

typedef struct UserObject {
    void *object;
    void (*destroy)(void *);
    int users;
    struct UserObject *next; /* of the same graph */
} UserObject;

static void drop_object(UserObject *object) {
    if (--object->users) return;
    unlock_device();
    object->destroy(object->object);
    lock_device();
    free(object);
}
API cudaError_t cudaUserObjectCreate(cudaUserObject_t *handle, void *object, cudaHostFn_t destroy, unsigned users, unsigned flags) {
    (void)flags;
    UserObject *o = calloc(1, sizeof *o);
    *o = (UserObject){object, destroy, (int)users, NULL};
    *handle = (cudaUserObject_t)o;
    return cudaSuccess;
}
API cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned count) {
    BEGIN;
    while (count--) drop_object((UserObject *)handle);
    END(cudaSuccess);
}
API cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t handle, unsigned count, unsigned flags) {
    BEGIN;
    UserObject *o = (UserObject *)handle;
    if (!(flags & cudaGraphUserObjectMove)) o->users += (int)count;
    o->next = ((Graph *)graph)->objects;
    ((Graph *)graph)->objects = o;
    END(cudaSuccess);
}

static void drop_graph(Graph *g) {
    if (--g->users) return;
    for (int i = 0; i < g->count; i++) free(g->nodes[i].after);
    for (UserObject *o = g->objects, *next; o; o = next) {
        next = o->next;
        drop_object(o);
    }
    free(g->nodes);
    free(g);
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    BEGIN;
    drop_graph((Graph *)graph);
    END(cudaSuccess);
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
    BEGIN;
    drop_graph(((Executable *)handle)->graph);
    free(handle);
    END(cudaSuccess);
}
/* Nodes are numbered from 1, so no handle is NULL. */
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    BEGIN;
    Graph *g = (Graph *)graph;
    for (int i = 0; nodes && i < g->count && i < (int)*count; i++) nodes[i] = (cudaGraphNode_t)(intptr_t)(i + 1);
    if (!nodes || (int)*count > g->count) *count = g->count;
    END(cudaSuccess);
}

static Work *copy_of(const Work *template, const Call *call, Ns issued, uint32_t graph, int node) {
    Work *w = new_work(template->kind, call), launched = *w;
    *w = *template;
    w->next = NULL;
    w->correlation = launched.correlation;
    w->external = launched.external;
    w->thread = launched.thread;
    w->issued = issued;
    w->graph = graph;
    w->graph_node = (uint64_t)graph << 32 | (unsigned)(node + 1);
    w->duration = with_jitter(w->duration);
    w->profiled = cupti_wants(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    keep_moment(w->moment);
    if (w->staged) {
        w->staged = malloc(w->bytes);
        memcpy(w->staged, template->staged, w->bytes);
    }
    if (w->collective) w->collective = copy_collective(w->collective);
    return w;
}
static void wait_in(Stream *stream, Moment *moment, Ns issued) {
    Work *w = new_work(WORK_WAIT, NULL);
    w->issued = issued;
    w->moment = keep_moment(moment);
    submit_now(stream, w);
}
static Moment *record_in(Stream *stream, Ns issued) {
    Work *w = new_work(WORK_RECORD, NULL);
    Moment *moment = new_moment();
    w->issued = issued;
    w->moment = keep_moment(moment);
    submit_now(stream, w);
    return moment;
}

static void launch_graph(Executable *e, Stream *stream, const Call *call) {
    Graph *g = e->graph;
    Ns issued = now_ns();
    Moment *begin = record_in(stream, issued), **ends = calloc(g->count + 1, sizeof *ends);
    for (int b = 1; b < g->branches; b++) {
        if (!e->branch_streams[b]) e->branch_streams[b] = new_stream(stream->device, cudaStreamNonBlocking, 0);
        wait_in(e->branch_streams[b], begin, issued);
    }
    drop_moment(begin);
    for (int i = 0; i < g->count; i++) {
        Node *node = &g->nodes[i];
        Stream *on = node->branch ? e->branch_streams[node->branch] : stream;
        for (int k = 0; k < node->count; k++) wait_in(on, ends[node->after[k]], issued);
        submit_now(on, copy_of(&node->work, call, issued, e->id, i));
        if (node->needed) ends[i] = record_in(on, issued);
    }
    for (int b = 1; b < g->branches; b++)
        if (g->end_after[b] >= 0) wait_in(stream, ends[g->end_after[b]], issued);
    for (int i = 0; i < g->count; i++) drop_moment(ends[i]);
    free(ends);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
    RUNTIME_CALL(cudaGraphLaunch_v10000);
    BEGIN;
    Stream *stream = stream_of(stream_handle);
    if (stream->capture) END(not_simulated("cudaGraphLaunch during capture"));
    launch_graph((Executable *)handle, stream, &call);
    END(cudaSuccess);
}
