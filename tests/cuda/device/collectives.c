/* NCCL between processes, and between the devices of one process.
 *
 * The members of a communicator share a small table (a file in /dev/shm) and one file of bytes each. A collective has two steps:
 *   1. When a member's stream reaches it, the member writes its bytes and publishes its start.
 *   2. When all members have published, each reads what it needs. The collective ends, on all members, at the latest start plus the time
 *      of the transfer.
 * A member publishes its next collective after all members have read the previous one. Sends and receives use a table of pairs.
 * Files are unlinked after all members have opened them, so no files remain.
 */
#include "device.h"
#include <errno.h>
#include <fcntl.h>
/* nccl.h includes headers of half-precision types but does not use them. They need other headers, which torch's packages lack. */
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MEMBERS_MAX 64
#define FOLDER "/dev/shm"

typedef struct {
    atomic_long published, consumed; /* the last collective that this member published, and has read */
    Ns start[2];                     /* of the collectives with even and odd numbers */
    int color, key;                  /* of a split */
} Member;
typedef struct {
    atomic_long sent, received; /* the last message that the sender has written, and that the receiver has asked for */
    Ns send_start[2], receive_start[2];
} Pair;
typedef struct {
    atomic_int joined, connected, split_in, split_out;
    Member members[MEMBERS_MAX];
    Pair pairs[MEMBERS_MAX][MEMBERS_MAX]; /* [sender][receiver] */
} Table;

struct ncclComm {
    char base[96]; /* path of the table; the bytes of member 2 are in base.2 */
    int count, rank, device, splits;
    Table *table;
    int files[MEMBERS_MAX];
    long collectives, sent[MEMBERS_MAX], received[MEMBERS_MAX]; /* how many this member has begun */
    bool busy, aborted;
};

typedef enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, GATHER, SCATTER, SEND, RECEIVE } PartKind;
typedef enum { NEW, POSTED, DONE } PartState;
typedef struct Part {
    PartKind kind;
    PartState state;
    const void *send;
    void *receive;
    size_t count; /* elements: of each member's share */
    ncclDataType_t type;
    ncclRedOp_t operation;
    int peer; /* or root */
    long number;
    Ns start, end;
} Part;
struct Collective {
    struct ncclComm *comm;
    int count;
    bool begun;
    Part parts[];
};

/* Bytes and reductions */

static size_t size_of(ncclDataType_t type) {
    static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}
static float from_half(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float magnitude = exponent ? (float)(mantissa + 1024) : (float)mantissa * 2;
    for (int i = exponent; i < 25; i++) magnitude *= 0.5f;
    for (int i = 25; i < exponent; i++) magnitude *= 2;
    return h >> 15 ? -magnitude : magnitude;
}
static uint16_t to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    int exponent = (int)(bits >> 23 & 255) - 112;
    uint16_t sign = bits >> 16 & 0x8000;
    if (exponent <= 0) return sign;
    if (exponent >= 31) return sign | 0x7c00;
    return sign | exponent << 10 | (bits >> 13 & 1023);
}
static float from_bfloat(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static uint16_t to_bfloat(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define COMBINE(a, b) (op == ncclProd ? (a) * (b) : op == ncclMax ? ((a) > (b) ? (a) : (b)) : op == ncclMin ? ((a) < (b) ? (a) : (b)) : (a) + (b))
#define REDUCE_AS(type)                                                                                                            \
    for (size_t i = 0; i < count; i++) ((type *)into)[i] = (type)COMBINE(((type *)into)[i], ((const type *)from)[i]);              \
    break
#define REDUCE_BY(read, write)                                                                                                     \
    for (size_t i = 0; i < count; i++) {                                                                                           \
        float a = read(((uint16_t *)into)[i]), b = read(((const uint16_t *)from)[i]);                                              \
        ((uint16_t *)into)[i] = write(COMBINE(a, b));                                                                              \
    }                                                                                                                              \
    break
static void reduce_into(void *into, const void *from, size_t count, ncclDataType_t type, ncclRedOp_t op) {
    switch (type) {
    case ncclInt8: REDUCE_AS(int8_t);
    case ncclUint8: REDUCE_AS(uint8_t);
    case ncclInt32: REDUCE_AS(int32_t);
    case ncclUint32: REDUCE_AS(uint32_t);
    case ncclInt64: REDUCE_AS(int64_t);
    case ncclUint64: REDUCE_AS(uint64_t);
    case ncclFloat16: REDUCE_BY(from_half, to_half);
    case ncclBfloat16: REDUCE_BY(from_bfloat, to_bfloat);
    case ncclFloat32: REDUCE_AS(float);
    case ncclFloat64: REDUCE_AS(double);
    default: break;
    }
}
static void divide(void *into, size_t count, ncclDataType_t type, int by) {
    for (size_t i = 0; i < count; i++) {
        if (type == ncclFloat32) ((float *)into)[i] /= by;
        if (type == ncclFloat64) ((double *)into)[i] /= by;
        if (type == ncclFloat16) ((uint16_t *)into)[i] = to_half(from_half(((uint16_t *)into)[i]) / by);
        if (type == ncclBfloat16) ((uint16_t *)into)[i] = to_bfloat(from_bfloat(((uint16_t *)into)[i]) / by);
    }
}

/* Files */

static void write_bytes(int file, const void *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t n = pwrite(file, (const char *)bytes + done, count - done, done);
        if (n < 0 && errno != EINTR) {
            perror("simulated device: a collective's bytes cannot be written to " FOLDER);
            return;
        }
        if (n > 0) done += n;
    }
}
static void read_bytes(int file, void *bytes, size_t count, size_t offset) {
    for (size_t done = 0; done < count;) {
        ssize_t n = pread(file, (char *)bytes + done, count - done, offset + done);
        if (n <= 0 && errno != EINTR) return;
        if (n > 0) done += n;
    }
}
static void message_path(char *path, size_t size, const struct ncclComm *c, int from, int to, long number) {
    snprintf(path, size, "%s.%d-%d.%ld", c->base, from, to, number);
}

/* Advances one part of a collective. Returns true once the part has ended. */

static Ns transfer_time(const Part *p, int members) {
    double bytes = (double)p->count * size_of(p->type), share = members > 1 ? (double)(members - 1) / members : 0;
    double moved = bytes;
    switch (p->kind) {
    case ALL_REDUCE: moved = 2 * share * bytes; break;
    case ALL_GATHER: case REDUCE_SCATTER: case ALL_TO_ALL: case GATHER: case SCATTER: moved = share * bytes * members; break;
    default: break;
    }
    /* All members must compute the same time, so the variation depends on the number of the collective, not on a random stream. */
    double unit = (double)((uint64_t)p->number * 2654435761u % 2001) / 1000 - 1;
    double ns = 6000 + 2500.0 * members + moved / settings.link_bytes_per_ns;
    return (Ns)(ns * settings.slowdown * (1 + settings.jitter * unit));
}

static bool run_part(struct ncclComm *c, Part *p) {
    Member *me = &c->table->members[c->rank];
    size_t size = size_of(p->type), bytes = p->count * size;
    if (p->state == NEW) {
        p->number = ++c->collectives;
        p->state = POSTED;
    }
    if (atomic_load(&me->published) < p->number) {
        for (int r = 0; r < c->count; r++)
            if (atomic_load(&c->table->members[r].consumed) < p->number - 1) return false;
        bool root = p->peer == c->rank;
        size_t mine = p->kind == REDUCE_SCATTER || p->kind == ALL_TO_ALL || (p->kind == SCATTER && root) ? bytes * c->count
                      : (p->kind == BROADCAST || p->kind == SCATTER) && !root                             ? 0
                                                                                                          : bytes;
        write_bytes(c->files[c->rank], p->send, mine);
        me->start[p->number & 1] = p->start;
        atomic_store(&me->published, p->number);
    }
    Ns latest = 0;
    for (int r = 0; r < c->count; r++) {
        if (atomic_load(&c->table->members[r].published) < p->number) return false;
        Ns start = c->table->members[r].start[p->number & 1];
        if (start > latest) latest = start;
    }
    char *out = p->receive;
    switch (p->kind) {
    case ALL_REDUCE: case REDUCE: case REDUCE_SCATTER: {
        if (p->kind == REDUCE && p->peer != c->rank) break;
        size_t offset = p->kind == REDUCE_SCATTER ? bytes * c->rank : 0;
        char *other = malloc(bytes + 1), *sum = malloc(bytes + 1);
        read_bytes(c->files[0], sum, bytes, offset);
        for (int r = 1; r < c->count; r++) {
            read_bytes(c->files[r], other, bytes, offset);
            reduce_into(sum, other, p->count, p->type, p->operation);
        }
        if (p->operation == ncclAvg) divide(sum, p->count, p->type, c->count);
        memcpy(out, sum, bytes);
        free(other);
        free(sum);
        break;
    }
    case GATHER:
        if (p->peer != c->rank) break; /* else as ALL_GATHER */
        /* fall through */
    case ALL_GATHER:
        for (int r = 0; r < c->count; r++) read_bytes(c->files[r], out + r * bytes, bytes, 0);
        break;
    case BROADCAST: read_bytes(c->files[p->peer], out, bytes, 0); break;
    case ALL_TO_ALL:
        for (int r = 0; r < c->count; r++) read_bytes(c->files[r], out + r * bytes, bytes, bytes * c->rank);
        break;
    case SCATTER: read_bytes(c->files[p->peer], out, bytes, bytes * c->rank); break;
    default: break;
    }
    atomic_store(&me->consumed, p->number);
    p->end = latest + transfer_time(p, c->count);
    p->state = DONE;
    return true;
}

/* A message ends at the later of the two starts plus its transfer. */
static bool run_message(struct ncclComm *c, Part *p) {
    bool sends = p->kind == SEND;
    int from = sends ? c->rank : p->peer, to = sends ? p->peer : c->rank;
    Pair *pair = &c->table->pairs[from][to];
    size_t bytes = p->count * size_of(p->type);
    char path[160];
    if (p->state == NEW) {
        p->number = sends ? ++c->sent[p->peer] : ++c->received[p->peer];
        message_path(path, sizeof path, c, from, to, p->number);
        (sends ? pair->send_start : pair->receive_start)[p->number & 1] = p->start;
        if (sends) {
            int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
            write_bytes(file, p->send, bytes);
            close(file);
        }
        atomic_store(sends ? &pair->sent : &pair->received, p->number);
        p->state = POSTED;
    }
    if (atomic_load(sends ? &pair->received : &pair->sent) < p->number) return false;
    if (!sends) {
        message_path(path, sizeof path, c, from, to, p->number);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        read_bytes(file, p->receive, bytes, 0);
        close(file);
        unlink(path);
    }
    Ns a = pair->send_start[p->number & 1], b = pair->receive_start[p->number & 1];
    p->end = (a > b ? a : b) + transfer_time(p, c->count);
    p->state = DONE;
    return true;
}

bool run_collective(Collective *collective, Ns start, Ns *end) {
    struct ncclComm *c = collective->comm;
    *end = start;
    if (c->aborted) {
        *end = now_ns() > start ? now_ns() : start;
        return true;
    }
    if (!collective->begun) {
        if (c->busy) return false; /* another stream runs one on this communicator */
        c->busy = collective->begun = true;
    }
    bool done = true;
    for (int i = 0; i < collective->count; i++) { /* all messages are posted before one is waited for */
        Part *p = &collective->parts[i];
        if (p->state == NEW) p->start = start;
        bool message = p->kind == SEND || p->kind == RECEIVE;
        if (p->state != DONE && !(message ? run_message(c, p) : run_part(c, p))) {
            done = false;
            if (!message) break; /* collectives keep their order */
        }
    }
    if (!done) return false;
    for (int i = 0; i < collective->count; i++)
        if (collective->parts[i].end > *end) *end = collective->parts[i].end;
    c->busy = false;
    return true;
}

static size_t collective_size(int parts) { return sizeof(Collective) + parts * sizeof(Part); }
Collective *copy_collective(Collective *from) {
    Collective *copy = malloc(collective_size(from->count));
    memcpy(copy, from, collective_size(from->count));
    return copy;
}
void free_collective(Collective *collective) { free(collective); }

/* Joining */

static struct ncclComm *create(const char *base, int count, int rank, int device) {
    if (count > MEMBERS_MAX) return NULL;
    struct ncclComm *c = calloc(1, sizeof *c);
    snprintf(c->base, sizeof c->base, "%s", base);
    c->count = count;
    c->rank = rank;
    c->device = device;
    int file = open(base, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Table))) {
        perror("simulated device: no communicator in " FOLDER);
        free(c);
        return NULL;
    }
    c->table = mmap(NULL, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    char path[128];
    snprintf(path, sizeof path, "%s.%d", base, rank);
    c->files[rank] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    atomic_fetch_add(&c->table->joined, 1);
    return c;
}
static void wait_until(atomic_int *counter, int value) {
    struct timespec nap = {0, 200000};
    while (atomic_load(counter) < value) nanosleep(&nap, NULL);
}
static void connect_members(struct ncclComm *c) {
    char path[128];
    wait_until(&c->table->joined, c->count);
    for (int r = 0; r < c->count; r++) {
        snprintf(path, sizeof path, "%s.%d", c->base, r);
        if (r != c->rank) c->files[r] = open(path, O_RDWR | O_CLOEXEC);
    }
    atomic_fetch_add(&c->table->connected, 1);
}
static void forget_files(struct ncclComm *c) {
    char path[128];
    wait_until(&c->table->connected, c->count);
    snprintf(path, sizeof path, "%s.%d", c->base, c->rank);
    unlink(path);
    if (!c->rank) unlink(c->base);
}

/* Groups: calls between ncclGroupStart and ncclGroupEnd take effect at the end. */

typedef struct {
    struct ncclComm *comm;
    cudaStream_t stream;
    Part part;
} Waiting;
static __thread int depth, waiting_count, waiting_capacity, joining_count;
static __thread Waiting *waiting_parts;
static __thread struct ncclComm *joining[MEMBERS_MAX];

static void finish_joining(void) {
    for (int i = 0; i < joining_count; i++) connect_members(joining[i]);
    for (int i = 0; i < joining_count; i++) forget_files(joining[i]);
    joining_count = 0;
}

static const char *kernel_name(const Part *p) {
    static const char *kinds[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "SendRecv", "SendRecv", "SendRecv", "SendRecv", "SendRecv"};
    static const char *types[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
    static const char *operations[] = {"Sum", "Prod", "MinMax", "MinMax", "SumPostDiv"};
    char name[120];
    const char *arguments = "(ncclDevKernelArgsStorage<4096ul>)";
    if (p->kind == ALL_REDUCE || p->kind == REDUCE_SCATTER || p->kind == REDUCE)
        snprintf(name, sizeof name, "ncclDevKernel_%s_%s_%s_RING_LL%s", kinds[p->kind], operations[p->operation < 5 ? p->operation : 0], types[p->type], arguments);
    else if (p->kind == ALL_GATHER || p->kind == BROADCAST)
        snprintf(name, sizeof name, "ncclDevKernel_%s_RING_LL%s", kinds[p->kind], arguments);
    else
        snprintf(name, sizeof name, "ncclDevKernel_SendRecv%s", arguments);
    return keep_name(name);
}

static ncclResult_t launch_parts(struct ncclComm *c, cudaStream_t handle, const Part *parts, int count) {
    RUNTIME_CALL(cudaLaunchKernelExC_v11060);
    lock_device();
    if (device_fault()) {
        unlock_device();
        return ncclUnhandledCudaError;
    }
    Stream *stream = handle ? stream_of(handle) : default_stream(c->device);
    Collective *collective = calloc(1, collective_size(count));
    collective->comm = c;
    collective->count = count;
    memcpy(collective->parts, parts, count * sizeof *parts);
    Work *w = new_work(WORK_COLLECTIVE, &call);
    w->name = kernel_name(parts);
    w->profiled = cupti_wants(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    w->grid = (dim3){4, 1, 1};
    w->block = (dim3){544, 1, 1};
    w->collective = collective;
    submit(stream, w);
    unlock_device();
    return ncclSuccess;
}

static ncclResult_t add_part(struct ncclComm *c, cudaStream_t stream, Part part) {
    if (part.operation >= ncclNumOps) return ncclInvalidArgument;
    if (!depth) return launch_parts(c, stream, &part, 1);
    if (waiting_count == waiting_capacity)
        waiting_parts = realloc(waiting_parts, (waiting_capacity = waiting_capacity ? 2 * waiting_capacity : 64) * sizeof *waiting_parts);
    waiting_parts[waiting_count++] = (Waiting){c, stream, part};
    return ncclSuccess;
}
API ncclResult_t ncclGroupStart(void) {
    depth++;
    return ncclSuccess;
}
API ncclResult_t ncclGroupEnd(void) {
    if (--depth) return ncclSuccess;
    finish_joining();
    ncclResult_t result = ncclSuccess;
    Part *parts = malloc((waiting_count + 1) * sizeof *parts);
    for (int i = 0; i < waiting_count; i++) {
        struct ncclComm *c = waiting_parts[i].comm;
        if (!c) continue;
        int count = 0;
        for (int k = i; k < waiting_count; k++) /* one kernel for what a group does on one communicator and stream */
            if (waiting_parts[k].comm == c && waiting_parts[k].stream == waiting_parts[i].stream) {
                parts[count++] = waiting_parts[k].part;
                if (k > i) waiting_parts[k].comm = NULL;
            }
        ncclResult_t one = launch_parts(c, waiting_parts[i].stream, parts, count);
        if (one) result = one;
    }
    free(parts);
    waiting_count = 0;
    return result;
}

/* Communicators */

API ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
API ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static atomic_int next;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, FOLDER "/simgpu-%d-%llx-%d", (int)getpid(), (unsigned long long)now_ns(), atomic_fetch_add(&next, 1));
    return ncclSuccess;
}
API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int count, ncclUniqueId id, int rank, ncclConfig_t *config) {
    (void)config;
    lock_device();
    need_context(current_device);
    unlock_device();
    id.internal[sizeof id.internal - 1] = 0;
    if (strncmp(id.internal, FOLDER "/simgpu-", strlen(FOLDER "/simgpu-"))) return ncclInvalidArgument;
    *comm = create(id.internal, count, rank, current_device);
    if (!*comm) return ncclSystemError;
    joining[joining_count++] = *comm;
    if (!depth) finish_joining();
    return ncclSuccess;
}
API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int count, ncclUniqueId id, int rank) { return ncclCommInitRankConfig(comm, count, id, rank, NULL); }
API ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    int before = current_device;
    ncclGroupStart();
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < count && !result; r++) {
        current_device = devices ? devices[r] : r;
        result = ncclCommInitRank(&comms[r], count, id, r);
    }
    ncclGroupEnd();
    current_device = before;
    return result;
}
API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *new_comm, ncclConfig_t *config) {
    (void)config;
    Table *t = comm->table;
    t->members[comm->rank].color = color;
    t->members[comm->rank].key = key;
    int round = ++comm->splits;
    atomic_fetch_add(&t->split_in, 1);
    wait_until(&t->split_in, round * comm->count);
    int count = 0, rank = 0;
    for (int r = 0; r < comm->count; r++) {
        if (t->members[r].color != color) continue;
        count++;
        int other = t->members[r].key;
        rank += other < key || (other == key && r < comm->rank);
    }
    atomic_fetch_add(&t->split_out, 1); /* no member changes the colors for the next split before all members have read them */
    wait_until(&t->split_out, round * comm->count);
    *new_comm = NULL;
    if (color < 0) return ncclSuccess; /* NCCL_SPLIT_NOCOLOR */
    char base[96];
    snprintf(base, sizeof base, "%.70s-s%dc%d", comm->base, round, color);
    *new_comm = create(base, count, rank, comm->device);
    if (!*new_comm) return ncclSystemError;
    joining[joining_count++] = *new_comm;
    if (!depth) finish_joining();
    return ncclSuccess;
}
API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    (void)comm;
    return ncclSuccess;
}
API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    (void)comm; /* work that still waits refers to it */
    return ncclSuccess;
}
API ncclResult_t ncclCommAbort(ncclComm_t comm) {
    lock_device();
    comm->aborted = true;
    make_progress();
    unlock_device();
    return ncclSuccess;
}
API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    (void)comm;
    *error = ncclSuccess;
    return ncclSuccess;
}
API ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    *count = comm->count;
    return ncclSuccess;
}
API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    *rank = comm->rank;
    return ncclSuccess;
}
API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    *device = comm->device;
    return ncclSuccess;
}
API ncclResult_t ncclCommRegister(const ncclComm_t comm, void *address, size_t bytes, void **handle) {
    (void)comm, (void)bytes;
    *handle = address;
    return ncclSuccess;
}
API ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    (void)comm, (void)handle;
    return ncclSuccess;
}
API ncclResult_t ncclMemAlloc(void **address, size_t bytes) { return cudaMalloc(address, bytes) ? ncclUnhandledCudaError : ncclSuccess; }
API ncclResult_t ncclMemFree(void *address) { return cudaFree(address) ? ncclUnhandledCudaError : ncclSuccess; }
API const char *ncclGetErrorString(ncclResult_t result) {
    static const char *texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
    return result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}
API const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return "";
}

/* Operations */

#define OPERATION(name, kind_, parameters, send_, receive_, operation_, peer_)                                                     \
    API ncclResult_t name parameters {                                                                                             \
        return add_part(comm, stream, (Part){.kind = kind_, .send = send_, .receive = receive_, .count = count, .type = type, .operation = operation_, .peer = peer_}); \
    }
OPERATION(ncclAllReduce, ALL_REDUCE, (const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream), send, receive, op, 0)
OPERATION(ncclReduce, REDUCE, (const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream), send, receive, op, root)
OPERATION(ncclReduceScatter, REDUCE_SCATTER, (const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream), send, receive, op, 0)
OPERATION(ncclAllGather, ALL_GATHER, (const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream), send, receive, ncclSum, 0)
OPERATION(ncclBroadcast, BROADCAST, (const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream), send, receive, ncclSum, root)
OPERATION(ncclBcast, BROADCAST, (void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream), buffer, buffer, ncclSum, root)
OPERATION(ncclAlltoAll, ALL_TO_ALL, (const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream), send, receive, ncclSum, 0)
OPERATION(ncclGather, GATHER, (const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream), send, receive, ncclSum, root)
OPERATION(ncclScatter, SCATTER, (const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream), send, receive, ncclSum, root)
OPERATION(ncclSend, SEND, (const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream), send, NULL, ncclSum, peer)
OPERATION(ncclRecv, RECEIVE, (void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream), NULL, receive, ncclSum, peer)
