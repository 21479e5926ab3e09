/* Streams and time: when each piece of work starts and ends.
 *
 * The start and end of a piece of work are computed when all its dependencies are known. For a kernel on an idle stream, this happens
 * inside the launch call. Kernels take no real time, and the host only sleeps when it waits. Work whose times are not known yet (a
 * collective that waits for other ranks, and all work behind it) stays in the list of its stream. A thread retries these lists until they
 * are empty.
 */
#include "device.h"

#define LAUNCH_LATENCY 3000 /* from the call to the earliest start */
#define GAP 700             /* between two pieces of work on one stream */

static Stream defaults[DEVICES_MAX];
static Stream *streams;
static int next_stream_id = 13; /* CUPTI calls the default stream 7, and others from 13 on */
static int waiting;             /* pieces of work without times */
static pthread_cond_t something_waits;
static pid_t helper_of;

Moment *new_moment(void) {
    Moment *m = calloc(1, sizeof *m);
    m->users = 1;
    return m;
}
Moment *keep_moment(Moment *m) {
    if (m) m->users++;
    return m;
}
void drop_moment(Moment *m) {
    if (m && !--m->users) free(m);
}

Stream *default_stream(int device) {
    Stream *s = &defaults[device];
    if (!s->id) {
        s->id = 7;
        s->device = device;
        s->tail = &s->head;
        s->next = streams;
        streams = s;
    }
    return s;
}
Stream *stream_of(cudaStream_t handle) {
    if (!handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return default_stream(current_device);
    return (Stream *)handle;
}
Stream *new_stream(int device, unsigned flags, int priority) {
    Stream *s = calloc(1, sizeof *s);
    *s = (Stream){.device = device, .id = next_stream_id++, .flags = flags, .priority = priority, .next = streams};
    s->tail = &s->head;
    streams = s;
    return s;
}
Stream *first_stream(void) { return streams; }

/* Names */

typedef struct Name {
    struct Name *next;
    char text[];
} Name;
static Name *names[4096];

const char *keep_name(const char *name) {
    Name **slot = &names[hash_name(name) % 4096];
    for (Name *n = *slot; n; n = n->next)
        if (!strcmp(n->text, name)) return n->text;
    size_t length = strlen(name) + 1;
    Name *n = malloc(sizeof *n + length);
    memcpy(n->text, name, length);
    n->next = *slot;
    *slot = n;
    return n->text;
}

/* Durations */

/* The duration of a kernel is a base time plus a time per wave of blocks. Both times follow from the name and the seed, so they differ
 * between kernels but are the same in each run. */
Ns kernel_duration(const char *name, dim3 grid, dim3 block) {
    uint64_t h = hash_name(name);
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    uint64_t resident = 108 * (threads > 256 ? 4 : 8); /* blocks that run at the same time */
    Ns base = 1500 + h % 3500, wave = 400 + (h >> 20) % 1600;
    return base + (Ns)((double)wave * blocks / resident);
}

Ns with_jitter(Ns duration) {
    static uint64_t state;
    if (!state) state = settings.seed * 0x9e3779b97f4a7c15ull | 1;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    double unit = (double)(state >> 11) / (1ull << 53) * 2 - 1;
    Ns result = (Ns)(duration * settings.slowdown * (1 + settings.jitter * unit));
    return result < 500 ? 500 : result;
}

/* The busy intervals of a copy engine. A copy uses the first gap that is long enough, because copies of several streams share an engine
 * in the order in which they become ready, not in the order of their calls. */

#define TAKEN 64
typedef struct {
    Ns start, end;
} Interval;
static Interval taken[DEVICES_MAX][ENGINES][TAKEN]; /* sorted; empty ones (0, 0) first */

static Ns place_on_engine(int device, Engine engine, Ns start, Ns duration) {
    Interval *t = taken[device][engine];
    for (int i = 0; i < TAKEN; i++)
        if (t[i].end > start && t[i].start < start + duration) start = t[i].end;
    memmove(t, t + 1, sizeof *t * (TAKEN - 1));
    int at = TAKEN - 1;
    for (; at > 0 && t[at - 1].start > start; at--) t[at] = t[at - 1];
    t[at] = (Interval){start, start + duration};
    return start;
}

/* Computing times */

Work *new_work(WorkKind kind, const Call *call) {
    static __thread int thread;
    if (!thread) thread = gettid();
    Work *w = calloc(1, sizeof *w);
    *w = (Work){.kind = kind, .engine = ENGINE_NONE, .issued = now_ns(), .thread = thread};
    if (call) w->correlation = call->correlation, w->external = cupti_current_op();
    return w;
}

static const char *copy_name(const Work *w) {
    static const char *kinds[] = {"unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"};
    static const char *memories[] = {"Unknown", "Pageable", "Pinned", "Device", "Array", "Managed"};
    char text[80];
    snprintf(text, sizeof text, "Memcpy %s (%s -> %s)", kinds[w->copy_kind], memories[w->source_kind], memories[w->target_kind]);
    return keep_name(text);
}

static void finish(Stream *stream, Work *w, Ns start, Ns end) {
    stream->ready = end;
    stream->ends[stream->timed++ % QUEUE_DEPTH] = end;
    /* After a fault nothing runs any more. */
    if (device_has_faulted_at(start)) return;
    switch (w->kind) {
    case WORK_KERNEL:
    case WORK_COLLECTIVE:
        if (w->fill.elements) do_fill(&w->fill);
        log_work("kernel", stream->device, stream->id, w, start, end, w->name);
        break;
    case WORK_COPY:
        do_copy(w);
        log_work("memcpy", stream->device, stream->id, w, start, end, copy_name(w));
        break;
    case WORK_SET:
        do_set(w);
        log_work("memset", stream->device, stream->id, w, start, end, "Memset (Device)");
        break;
    case WORK_RECORD:
        w->moment->known = true;
        w->moment->at = end;
        return;
    default:
        return;
    }
    if (w->profiled) cupti_work(w, stream, start, end);
}

static void free_work(Work *w) {
    drop_moment(w->moment);
    free(w->staged);
    if (w->collective) free_collective(w->collective);
    free(w);
}

/* Computes the times of `w` if its dependencies are known. */
static bool try_work(Stream *stream, Work *w) {
    bool marker = w->kind == WORK_RECORD || w->kind == WORK_WAIT;
    Ns start = stream->ready + (marker ? 0 : GAP), soonest = w->issued + (marker ? 0 : LAUNCH_LATENCY);
    if (stream->ready == FOREVER) start = FOREVER;
    if (start < soonest) start = soonest;
    if (w->kind == WORK_WAIT) {
        if (!w->moment->known) return false;
        if (start < w->moment->at) start = w->moment->at;
        finish(stream, w, start, start);
        return true;
    }
    if (start == FOREVER) {
        if (w->kind == WORK_RECORD) w->moment->known = true, w->moment->at = FOREVER;
        return w->kind == WORK_RECORD; /* never starts */
    }
    if (w->kind == WORK_HOST) {
        if (now_ns() < start) return false;
        void (*function)(void *) = w->host_function;
        w->host_function = NULL;
        if (function) {
            unlock_device();
            function(w->host_argument);
            lock_device();
        }
        finish(stream, w, start, now_ns());
        return true;
    }
    Ns end;
    if (w->kind == WORK_COLLECTIVE) {
        if (!run_collective(w->collective, start, &end)) return false;
    } else {
        if (w->engine != ENGINE_NONE) start = place_on_engine(w->engine_device, w->engine, start, w->duration);
        end = w->duration == FOREVER ? FOREVER : start + w->duration;
    }
    finish(stream, w, start, end);
    return true;
}

static bool run_stream(Stream *stream) {
    bool progress = false;
    if (stream->busy) return false;
    while (stream->head) {
        Work *w = stream->head;
        stream->busy = true;
        bool done = try_work(stream, w);
        stream->busy = false;
        if (!done) break;
        stream->head = w->next;
        if (!stream->head) stream->tail = &stream->head;
        waiting--;
        free_work(w);
        progress = true;
    }
    return progress;
}

void make_progress(void) {
    bool again = waiting > 0;
    while (again) {
        again = false;
        for (Stream *s = streams; s; s = s->next) again |= run_stream(s);
    }
}

static void *help(void *unused) {
    (void)unused;
    lock_device();
    for (;;) {
        while (!waiting) pthread_cond_wait(&something_waits, &device_mutex);
        make_progress();
        if (waiting) pause_device(now_ns() + 30000);
    }
    return NULL;
}

static void need_helper(void) {
    if (helper_of == getpid()) {
        pthread_cond_signal(&something_waits);
        return;
    }
    helper_of = getpid(); /* a child of fork has no threads but its own */
    pthread_cond_init(&something_waits, NULL);
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    pthread_create(&thread, &attributes, help, NULL);
}

void submit_now(Stream *stream, Work *w) {
    stream->issued++;
    w->next = NULL;
    if (!stream->head && try_work(stream, w)) {
        free_work(w);
        if (waiting) make_progress();
        return;
    }
    *stream->tail = w;
    stream->tail = &w->next;
    waiting++;
    need_helper();
    make_progress();
}

void submit(Stream *stream, Work *w) {
    if (stream->capture) {
        capture_work(stream, w);
        return;
    }
    /* The launch queue: a piece of work enters when the piece QUEUE_DEPTH before it has ended. */
    long place = stream->issued - QUEUE_DEPTH;
    while (place >= 0) {
        Ns until = now_ns() + 50000;
        if (place < stream->timed) {
            if (place < stream->timed - QUEUE_DEPTH) break; /* long gone */
            Ns end = stream->ends[place % QUEUE_DEPTH];
            if (end <= now_ns()) break;
            if (end < until) until = end;
        }
        pause_device(until);
        make_progress();
        if (device_fault()) break;
    }
    if (w->issued < now_ns()) w->issued = now_ns();
    submit_now(stream, w);
}

/* Waiting */

bool stream_is_done(Stream *stream) {
    make_progress();
    return !stream->head && stream->ready <= now_ns();
}

static void wait_a_little(bool known, Ns at) {
    Ns longest = now_ns() + (known ? 5000000 : 30000);
    pause_device(known && at < longest ? at : longest);
}

void wait_for_stream(Stream *stream) {
    /* Does not wait for work that other threads add later. */
    long until = stream->issued;
    while (!device_fault()) {
        make_progress();
        if (stream->timed >= until) {
            Ns at = stream->timed - until >= QUEUE_DEPTH || !until ? 0 : stream->ends[(until - 1) % QUEUE_DEPTH];
            if (at <= now_ns()) return;
            wait_a_little(true, at);
        } else {
            wait_a_little(false, 0);
        }
    }
}

bool moment_has_passed(Moment *moment) {
    make_progress();
    return moment->known && moment->at <= now_ns();
}

void wait_for_moment(Moment *moment) {
    keep_moment(moment);
    while (!device_fault() && !moment_has_passed(moment)) wait_a_little(moment->known, moment->at);
    drop_moment(moment);
}
