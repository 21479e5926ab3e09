/* Declarations that the parts of the simulated device share: settings, streams, work, and the current call of a thread.
 *
 * Time is integer nanoseconds on CLOCK_REALTIME, so the device's log and Kineto's traces can be compared directly.
 * One lock (`lock_device`) guards all state. Functions whose comment says "locked" expect it to be held.
 */
#ifndef SIMULATED_DEVICE_H
#define SIMULATED_DEVICE_H

#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <cuda.h>
#include <cupti.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define DEVICES_MAX 16
#define QUEUE_DEPTH 1024 /* launches that a stream takes before it blocks the host, as on hardware */
#define FOREVER INT64_MAX

typedef int64_t Ns;

/* settings.c: read once from the environment, see README.md. */
typedef struct {
    int devices;                /* that CUDA_VISIBLE_DEVICES leaves visible */
    int all_devices;
    uint64_t memory_bytes;      /* per device */
    uint64_t seed;              /* of the duration law and of jitter */
    double jitter;              /* a kernel's duration varies by this fraction either way */
    double slowdown;            /* every kernel's duration is multiplied by it */
    const char *log_folder;     /* NULL: no log */
    long oom_first, oom_last;   /* device allocations that fail, counted from 1 */
    long error_at_launch;       /* the launch that ends in a sticky error, counted from 1 */
    int error_code;
    long hang_at_launch;        /* the launch that never ends */
    bool cupti_denied;          /* CUPTI lacks privileges */
    bool cupti_taken;           /* another profiler has subscribed */
    long drop_every;            /* CUPTI loses every n-th device record */
    double link_bytes_per_ns;   /* between devices and between ranks */
} Settings;
extern Settings settings;
Ns now_ns(void);
void sleep_until(Ns moment);
extern pthread_mutex_t device_mutex;
void lock_device(void);
void unlock_device(void);
/* Sleeps for a short time without the lock; for loops that wait until work is done. Locked. */
void pause_device(Ns until);
uint64_t hash_name(const char *name);

/* log.c: the log of the device, with one line per piece of work. */
struct Work;
void log_work(const char *kind, int device, int stream, const struct Work *work, Ns start, Ns end, const char *name);
void log_note(const char *kind, int device, const char *text);

/* A point in a stream. Its time is known when the work before it has its times. */
typedef struct {
    int users;
    bool known;
    Ns at;
} Moment;
Moment *new_moment(void);
Moment *keep_moment(Moment *moment);
void drop_moment(Moment *moment);

typedef struct Capture Capture;
typedef struct Stream Stream;
typedef struct Collective Collective;

typedef enum { WORK_KERNEL, WORK_COPY, WORK_SET, WORK_RECORD, WORK_WAIT, WORK_HOST, WORK_COLLECTIVE } WorkKind;

/* Copy engines run in parallel with kernels. Each device has one engine per direction. */
typedef enum { ENGINE_NONE = -1, ENGINE_TO_DEVICE, ENGINE_TO_HOST, ENGINE_TO_PEER, ENGINES } Engine;

/* A value that a kernel writes to each element. Without elements, the kernel writes nothing. */
#define MOST_FILLED_BYTES (1 << 20) /* larger fills write nothing */

typedef struct {
    void *target;
    size_t elements, element_bytes;
    unsigned char value[16];
} Fill;

/* The current runtime or driver call of a thread. */
typedef struct {
    bool driver;
    int cbid;
    uint32_t correlation;
    Ns start;
    int result;
} Call;

typedef struct Work {
    struct Work *next;
    WorkKind kind;
    const char *name; /* of a kernel; lives as long as the process */
    Ns issued, duration;
    uint32_t correlation, graph;
    uint64_t graph_node;
    bool profiled;          /* CUPTI was recording when this was launched */
    uint64_t external;      /* Kineto's id of the op that launched it; 0: none */
    int thread;             /* system id of the launching thread */
    dim3 grid, block;
    int shared_bytes;
    Engine engine;
    int engine_device;
    uint64_t bytes;
    int copy_kind, source_kind, target_kind; /* CUPTI's numbers */
    int source_device, target_device;
    void *target;
    const void *source;
    void *staged;           /* bytes of a pageable source, copied when the call was made; freed with the work */
    size_t pitch_target, pitch_source, rows; /* of a 2-D copy; rows 0: flat */
    int value;              /* of a memset */
    Fill fill;              /* of a kernel */
    Moment *moment;         /* to record or to wait for */
    void (*host_function)(void *);
    void *host_argument;
    Collective *collective;
} Work;

struct Stream {
    int device, id, priority;
    unsigned flags;
    Ns ready;               /* when the last work that has its times ends */
    Work *head, **tail;     /* work without times yet, in order */
    long issued, timed;     /* numbers of pieces of work: submitted to the stream, and with known times */
    Ns ends[QUEUE_DEPTH];   /* of the last pieces that have their times */
    bool busy;              /* a thread runs its first piece; a host function runs without the lock */
    bool destroyed;
    Capture *capture;
    int branch;             /* of this stream within its capture */
    Stream *next;
};

typedef struct Event {
    int device, id;
    unsigned flags;
    Moment *moment;         /* NULL: never recorded */
    Capture *capture;       /* recorded by a stream that was capturing */
    int capture_node;       /* the last node before it, or -1 */
    int capture_branch;
    int stream;
    uint32_t correlation;
    uint64_t sync_id;
} Event;

/* timeline.c */
Stream *stream_of(cudaStream_t handle);             /* locked */
Stream *default_stream(int device);                 /* locked */
Stream *new_stream(int device, unsigned flags, int priority); /* locked */
Stream *first_stream(void);
void submit(Stream *stream, Work *work);            /* submits work to a stream or to its capture, and takes ownership. Locked */
void submit_now(Stream *stream, Work *work);        /* the same, but never captured, and not counted in the launch queue. Locked */
void make_progress(void);                           /* computes the times of all work whose dependencies are known. Locked */
bool stream_is_done(Stream *stream);                /* locked */
void wait_for_stream(Stream *stream);               /* locked; sleeps without the lock */
void wait_for_moment(Moment *moment);               /* locked */
bool moment_has_passed(Moment *moment);             /* locked */
Ns kernel_duration(const char *name, dim3 grid, dim3 block);
Ns with_jitter(Ns duration);
const char *keep_name(const char *name);            /* one copy of each name, never freed */
Work *new_work(WorkKind kind, const Call *call);    /* issued now, by this thread; `call` may be NULL. Locked */

/* runtime.c: calls and errors. */
Call begin_call(bool driver, int cbid);
void end_call(Call *call);
#define RUNTIME_CALL(name) __attribute__((cleanup(end_call))) Call call = begin_call(false, CUPTI_RUNTIME_TRACE_CBID_##name)
#define DRIVER_CALL(name) __attribute__((cleanup(end_call))) Call call = begin_call(true, CUPTI_DRIVER_TRACE_CBID_##name)
extern __thread int current_device;
cudaError_t failed(cudaError_t error);              /* remembers the thread's last error */
/* Returns cudaSuccess, or the error of all further calls: a sticky error, or a fork after CUDA was initialized. Locked. */
cudaError_t device_fault(void);

/* Takes the lock, and returns the device's fault if there is one. END releases it. */
#define BEGIN \
    lock_device(); \
    { \
        cudaError_t fault = device_fault(); \
        if (fault) { \
            unlock_device(); \
            return failed(fault); \
        } \
    }
#define END(error) \
    do { \
        cudaError_t result = (error); \
        unlock_device(); \
        return failed(result); \
    } while (0)
void fault_at(Ns moment);                           /* locked */
bool device_has_faulted_at(Ns moment);              /* locked */
void need_context(int device); /* creates the primary context if needed, and makes it current in the calling thread. Locked */
bool has_context(int device);
bool has_current_context(void); /* in the calling thread */
/* `fill` may be NULL. Locked. */
cudaError_t launch_kernel(Call *call, Stream *stream, const char *name, dim3 grid, dim3 block, int shared_bytes, Ns duration, const Fill *fill);
/* For libraries such as cuBLAS: launches as the runtime's cudaLaunchKernel does. */
cudaError_t library_kernel(void *stream, const char *name, dim3 grid, dim3 block, Ns duration);
cudaError_t add_host_function(Stream *stream, void (*function)(void *), void *argument);
int not_simulated(const char *name);

/* memory.c */
typedef enum { MEMORY_UNKNOWN, MEMORY_DEVICE, MEMORY_PINNED } MemoryKind;
MemoryKind memory_kind(const void *address, int *device); /* locked */
bool is_safe(const void *address, size_t bytes);    /* all of it is device memory, or the host's. Locked */
cudaError_t allocate_device(void **address, size_t bytes, int device); /* locked */
cudaError_t free_device(void *address);             /* locked */
bool address_range(uintptr_t address, uintptr_t *start, size_t *bytes, int *device); /* locked */
cudaError_t reserve_address(void **address, size_t bytes, int device); /* without memory behind it. Locked */
cudaError_t release_address(void *address);         /* locked */
cudaError_t take_memory(int device, size_t bytes);  /* counts it against the limit. Locked */
void give_memory(int device, size_t bytes);         /* locked */
uint64_t used_memory(int device);                   /* locked */
void do_copy(Work *work);
void do_set(Work *work);
void do_fill(const Fill *fill);

/* capture.c */
bool is_capturing(Stream *stream);
void capture_work(Stream *stream, Work *work);      /* locked */
/* An unsafe call. If captures forbid it, it invalidates them and returns the error. Locked. */
cudaError_t unsafe_call(void);
cudaError_t break_capture(Capture *capture);        /* locked */
bool capture_is_open(Capture *capture);             /* locked */
cudaError_t capture_wait(Stream *stream, Event *event); /* locked */
void capture_record(Stream *stream, Event *event);  /* locked */
cudaError_t event_is_captured(Event *event);        /* locked */

/* collectives.c: advances a piece of NCCL work. Returns true once its end is known. Locked. */
bool run_collective(Collective *collective, Ns start, Ns *end);
Collective *copy_collective(Collective *collective);
void free_collective(Collective *collective);

/* cupti.c */
bool cupti_wants(CUpti_ActivityKind kind);          /* locked */
void cupti_call(const Call *call, Ns end);          /* locked */
void cupti_external_ids(uint32_t correlation);      /* locked */
uint64_t cupti_current_op(void);                    /* the External id of the calling thread's innermost op, or 0 */
void cupti_work(const Work *work, const Stream *stream, Ns start, Ns end); /* locked */
void cupti_sync(int type, const Stream *stream, const Event *event, uint32_t correlation, Ns start, Ns end); /* locked */
void cupti_event(const Event *event, const Stream *stream, uint32_t correlation, Ns at); /* locked */
void cupti_overhead(int kind, Ns start, Ns end);    /* locked */

/* driver.c: the function with this name, or NULL. */
void *driver_function(const char *name);
void *alias_of(const char *name); /* generated: NAME -> address of a simulated cu* function */

#endif
