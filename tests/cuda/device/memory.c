/* Device memory, pinned memory, pools and copies.
 *
 * Device memory is host memory that is allocated lazily, so addresses are valid and copies work. Kernels do not compute, so memory that
 * they would write keeps its old value, usually zero.
 */
#include "device.h"
#include <sys/mman.h>

typedef struct {
    uintptr_t start;
    size_t bytes;
    int device; /* -1: pinned */
    bool counted;
} Range;
static Range *ranges; /* sorted by start */
static int range_count, range_capacity;
static uint64_t used[DEVICES_MAX];
static long allocations;

/* Returns the range that contains `address`, or the place where such a range would be inserted. */
static int find(uintptr_t address) {
    int low = 0, high = range_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (ranges[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}
static Range *range_of(uintptr_t address) {
    int i = find(address);
    return i >= 0 && address < ranges[i].start + ranges[i].bytes ? &ranges[i] : NULL;
}
static void add_range(Range range) {
    if (range_count == range_capacity) ranges = realloc(ranges, (range_capacity = range_capacity ? 2 * range_capacity : 256) * sizeof *ranges);
    int at = find(range.start) + 1;
    memmove(ranges + at + 1, ranges + at, (range_count - at) * sizeof *ranges);
    ranges[at] = range;
    range_count++;
}
static bool remove_range(uintptr_t start, Range *removed) {
    int i = find(start);
    if (i < 0 || ranges[i].start != start) return false;
    *removed = ranges[i];
    memmove(ranges + i, ranges + i + 1, (range_count - i - 1) * sizeof *ranges);
    range_count--;
    return true;
}

MemoryKind memory_kind(const void *address, int *device) {
    Range *range = range_of((uintptr_t)address);
    if (!range) return MEMORY_UNKNOWN;
    if (range->device < 0) return MEMORY_PINNED;
    if (device) *device = range->device;
    return MEMORY_DEVICE;
}
bool address_range(uintptr_t address, uintptr_t *start, size_t *bytes, int *device) {
    Range *range = range_of(address);
    if (!range || range->device < 0) return false;
    if (start) *start = range->start;
    if (bytes) *bytes = range->bytes;
    if (device) *device = range->device;
    return true;
}
/* Returns false if a device address exceeds its allocation. The copy then fails. */
bool is_safe(const void *address, size_t bytes) {
    Range *range = range_of((uintptr_t)address);
    return !range || (uintptr_t)address + bytes <= range->start + range->bytes;
}

cudaError_t take_memory(int device, size_t bytes) {
    allocations++;
    if (allocations >= settings.oom_first && allocations <= settings.oom_last) return cudaErrorMemoryAllocation;
    if (used[device] + bytes > settings.memory_bytes) return cudaErrorMemoryAllocation;
    used[device] += bytes;
    return cudaSuccess;
}
void give_memory(int device, size_t bytes) { used[device] -= bytes; }
uint64_t used_memory(int device) { return used[device]; }

static size_t whole_pages(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }

static cudaError_t map_range(void **address, size_t bytes, int device, bool counted, int protection) {
    void *p = mmap(NULL, whole_pages(bytes), protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return cudaErrorMemoryAllocation;
    add_range((Range){(uintptr_t)p, bytes, device, counted});
    *address = p;
    return cudaSuccess;
}

cudaError_t allocate_device(void **address, size_t bytes, int device) {
    need_context(device);
    *address = NULL;
    if (!bytes) return cudaSuccess;
    cudaError_t error = take_memory(device, bytes);
    if (error) return error;
    error = map_range(address, bytes, device, true, PROT_READ | PROT_WRITE);
    if (error) give_memory(device, bytes);
    return error;
}
cudaError_t free_device(void *address) {
    Range range;
    if (!remove_range((uintptr_t)address, &range)) return cudaErrorInvalidValue;
    if (range.counted) give_memory(range.device, range.bytes);
    munmap(address, whole_pages(range.bytes));
    return cudaSuccess;
}
cudaError_t reserve_address(void **address, size_t bytes, int device) { return map_range(address, bytes, device, false, PROT_NONE); }
cudaError_t release_address(void *address) { return free_device(address); }


/* Allocation */

API cudaError_t cudaMalloc(void **address, size_t bytes) {
    RUNTIME_CALL(cudaMalloc_v3020);
    BEGIN;
    cudaError_t error = unsafe_call();
    END(error ? error : allocate_device(address, bytes, current_device));
}
API cudaError_t cudaFree(void *address) {
    RUNTIME_CALL(cudaFree_v3020);
    BEGIN;
    need_context(current_device);
    if (!address) END(cudaSuccess);
    cudaError_t error = unsafe_call();
    if (error) END(error);
    int device = current_device;
    memory_kind(address, &device);
    for (Stream *s = first_stream(); s; s = s->next) /* cudaFree waits for the device */
        if (s->device == device) wait_for_stream(s);
    error = device_fault();
    END(error ? error : free_device(address));
}
API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    RUNTIME_CALL(cudaMemGetInfo_v3020);
    BEGIN;
    need_context(current_device);
    *total_bytes = settings.memory_bytes;
    *free_bytes = settings.memory_bytes - used[current_device];
    END(cudaSuccess);
}
API cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    RUNTIME_CALL(cudaHostAlloc_v3020);
    BEGIN;
    (void)flags;
    need_context(current_device);
    cudaError_t error = unsafe_call();
    END(error ? error : map_range(address, bytes ? bytes : 1, -1, false, PROT_READ | PROT_WRITE));
}
API cudaError_t cudaFreeHost(void *address) {
    RUNTIME_CALL(cudaFreeHost_v3020);
    BEGIN;
    cudaError_t error = unsafe_call();
    Range range;
    if (!error && remove_range((uintptr_t)address, &range)) munmap(address, whole_pages(range.bytes));
    END(error);
}
API cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags) {
    RUNTIME_CALL(cudaHostRegister_v4000);
    BEGIN;
    (void)flags;
    add_range((Range){(uintptr_t)address, bytes, -1, false});
    END(cudaSuccess);
}
API cudaError_t cudaHostUnregister(void *address) {
    RUNTIME_CALL(cudaHostUnregister_v4000);
    BEGIN;
    Range range;
    END(remove_range((uintptr_t)address, &range) ? cudaSuccess : cudaErrorInvalidValue);
}
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
    RUNTIME_CALL(cudaPointerGetAttributes_v4000);
    BEGIN;
    memset(attributes, 0, sizeof *attributes);
    attributes->device = current_device;
    switch (memory_kind(address, &attributes->device)) {
    case MEMORY_DEVICE:
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = (void *)address;
        break;
    case MEMORY_PINNED:
        attributes->type = cudaMemoryTypeHost;
        attributes->devicePointer = attributes->hostPointer = (void *)address;
        break;
    default:
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = -2;
    }
    END(cudaSuccess);
}

/* Stream-ordered pools, with one default pool per device. Freed blocks stay in the pool until it is trimmed, and can be reused at once,
 * in the order of the calls. For a single stream, this is the order of the stream. */

typedef struct Block {
    void *address;
    size_t bytes;
    struct Block *next;
} Block;
static struct Pool {
    Block *free;
    uint64_t threshold, reserved, reserved_high, used, used_high;
} pools[DEVICES_MAX];

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    *pool = (cudaMemPool_t)&pools[device];
    return cudaSuccess;
}
static cudaError_t pool_attribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value, bool set) {
    struct Pool *pool = (struct Pool *)handle;
    uint64_t *field, small = 1;
    switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold: field = &pool->threshold; break;
    case cudaMemPoolAttrReservedMemCurrent: field = &pool->reserved; break;
    case cudaMemPoolAttrReservedMemHigh: field = &pool->reserved_high; break;
    case cudaMemPoolAttrUsedMemCurrent: field = &pool->used; break;
    case cudaMemPoolAttrUsedMemHigh: field = &pool->used_high; break;
    default: /* which reuses are allowed: ints */
        if (!set) *(int *)value = (int)small;
        return cudaSuccess;
    }
    if (set)
        *field = *(uint64_t *)value;
    else
        *(uint64_t *)value = *field;
    return cudaSuccess;
}
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    BEGIN;
    END(pool_attribute(pool, attribute, value, false));
}
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    BEGIN;
    END(pool_attribute(pool, attribute, value, true));
}
API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t count) {
    (void)pool, (void)list, (void)count;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value) {
    (void)device, (void)attribute;
    *(uint64_t *)value = 0;
    return cudaSuccess;
}
API cudaError_t cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value) {
    (void)device, (void)attribute, (void)value;
    return cudaSuccess;
}
static void trim(struct Pool *pool, uint64_t keep) {
    while (pool->free && pool->reserved > keep) {
        Block *block = pool->free;
        pool->free = block->next;
        pool->reserved -= block->bytes;
        free_device(block->address);
        free(block);
    }
}
API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
    BEGIN;
    trim((struct Pool *)pool, keep);
    END(cudaSuccess);
}
API cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t handle) {
    RUNTIME_CALL(cudaMallocAsync_v11020);
    BEGIN;
    int device = stream_of(handle)->device;
    struct Pool *pool = &pools[device];
    bytes = (bytes + 511) & ~(size_t)511;
    for (Block **p = &pool->free; *p; p = &(*p)->next)
        if ((*p)->bytes == bytes) {
            Block *block = *p;
            *address = block->address;
            *p = block->next;
            free(block);
            goto taken;
        }
    cudaError_t error = allocate_device(address, bytes, device);
    if (error && pool->free) {
        trim(pool, 0);
        error = allocate_device(address, bytes, device);
    }
    if (error) END(error);
    pool->reserved += bytes;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
taken:
    pool->used += bytes;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    END(cudaSuccess);
}
API cudaError_t cudaFreeAsync(void *address, cudaStream_t handle) {
    RUNTIME_CALL(cudaFreeAsync_v11020);
    BEGIN;
    (void)handle;
    size_t bytes;
    int device;
    uintptr_t start;
    if (!address_range((uintptr_t)address, &start, &bytes, &device)) END(cudaErrorInvalidValue);
    Block *block = malloc(sizeof *block);
    *block = (Block){address, bytes, pools[device].free};
    pools[device].free = block;
    pools[device].used -= bytes;
    END(cudaSuccess);
}

/* Copies */

void do_copy(Work *w) {
    const char *source = w->staged ? w->staged : w->source;
    if (!w->rows) {
        if (is_safe(w->target, w->bytes) && is_safe(source, w->bytes)) memmove(w->target, source, w->bytes);
        return;
    }
    size_t width = w->bytes / w->rows;
    for (size_t i = 0; i < w->rows; i++) memmove((char *)w->target + i * w->pitch_target, source + i * w->pitch_source, width);
}
void do_set(Work *w) {
    if (is_safe(w->target, w->bytes)) memset(w->target, w->value, w->bytes);
}

void do_fill(const Fill *fill) {
    /* While Inductor compares kernels, it clears a buffer of the L2 cache's size thousands of times and never reads the buffer. */
    if (fill->elements * fill->element_bytes > MOST_FILLED_BYTES) return;
    if (!is_safe(fill->target, fill->elements * fill->element_bytes)) return;
    for (size_t i = 0; i < fill->elements; i++) memcpy((char *)fill->target + i * fill->element_bytes, fill->value, fill->element_bytes);
}

#define PAGEABLE_AT_ONCE (64 << 10) /* a smaller pageable source is staged, and the call returns */

/* Sets engine, kinds and duration, which follow from the two addresses. */
static void describe_copy(Work *w, Stream *stream) {
    int source_device = stream->device, target_device = stream->device;
    MemoryKind source = memory_kind(w->source, &source_device), target = memory_kind(w->target, &target_device);
    const int kinds[] = {CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, CUPTI_ACTIVITY_MEMORY_KIND_PINNED};
    w->source_kind = kinds[source];
    w->target_kind = kinds[target];
    w->source_device = source_device;
    w->target_device = target_device;
    w->engine_device = stream->device;
    double bytes_per_ns;
    Ns base = 1500;
    if (source == MEMORY_DEVICE && target == MEMORY_DEVICE) {
        bool peer = source_device != target_device;
        w->copy_kind = peer ? CUPTI_ACTIVITY_MEMCPY_KIND_PTOP : CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
        w->engine = peer ? ENGINE_TO_PEER : ENGINE_NONE; /* within a device the multiprocessors copy */
        w->engine_device = source_device;
        bytes_per_ns = peer ? settings.link_bytes_per_ns : 600;
    } else if (target == MEMORY_DEVICE) {
        w->copy_kind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
        w->engine = ENGINE_TO_DEVICE;
        bytes_per_ns = source == MEMORY_PINNED ? 12 : 5;
    } else if (source == MEMORY_DEVICE) {
        w->copy_kind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
        w->engine = ENGINE_TO_HOST;
        bytes_per_ns = target == MEMORY_PINNED ? 12 : 5;
    } else {
        w->copy_kind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
        w->engine = ENGINE_NONE;
        bytes_per_ns = 8;
    }
    w->duration = with_jitter(base + (Ns)(w->bytes / bytes_per_ns));
}

static cudaError_t copy(Work *w, cudaStream_t handle, bool blocking) {
    BEGIN;
    Stream *stream = stream_of(handle);
    need_context(stream->device);
    if (!w->bytes) {
        free(w);
        END(cudaSuccess);
    }
    if (blocking) {
        cudaError_t error = unsafe_call();
        if (error) END(error);
    }
    describe_copy(w, stream);
    if (!w->rows && !(is_safe(w->target, w->bytes) && is_safe(w->source, w->bytes))) {
        free(w);
        END(cudaErrorInvalidValue);
    }
    bool pageable_source = w->source_kind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE, pageable_target = w->target_kind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
    bool wait = blocking || (!stream->capture && (pageable_target || (pageable_source && w->bytes > PAGEABLE_AT_ONCE)));
    if (pageable_source && !w->rows && !wait) {
        w->staged = malloc(w->bytes);
        memcpy(w->staged, w->source, w->bytes);
    }
    w->profiled = cupti_wants(CUPTI_ACTIVITY_KIND_MEMCPY);
    submit(stream, w);
    if (wait) wait_for_stream(stream);
    END(device_fault());
}
static Work *new_copy(const Call *call, void *target, const void *source, size_t bytes) {
    Work *w = new_work(WORK_COPY, call);
    w->target = target;
    w->source = source;
    w->bytes = bytes;
    return w;
}
API cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    RUNTIME_CALL(cudaMemcpyAsync_v3020);
    (void)kind;
    return copy(new_copy(&call, target, source, bytes), stream, false);
}
API cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind) {
    RUNTIME_CALL(cudaMemcpy_v3020);
    (void)kind;
    return copy(new_copy(&call, target, source, bytes), 0, true);
}
API cudaError_t cudaMemcpyPeerAsync(void *target, int target_device, const void *source, int source_device, size_t bytes, cudaStream_t stream) {
    RUNTIME_CALL(cudaMemcpyPeerAsync_v4000);
    (void)target_device, (void)source_device;
    return copy(new_copy(&call, target, source, bytes), stream, false);
}
API cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width, size_t height,
                                  enum cudaMemcpyKind kind, cudaStream_t stream) {
    RUNTIME_CALL(cudaMemcpy2DAsync_v3020);
    (void)kind;
    Work *w = new_copy(&call, target, source, width * height);
    w->rows = height, w->pitch_target = target_pitch, w->pitch_source = source_pitch;
    return copy(w, stream, false);
}
static cudaError_t set(Call *call, void *target, int value, size_t bytes, cudaStream_t handle, bool blocking) {
    BEGIN;
    Stream *stream = stream_of(handle);
    need_context(stream->device);
    if (blocking) {
        cudaError_t error = unsafe_call();
        if (error) END(error);
    }
    if (!bytes) END(cudaSuccess);
    if (!is_safe(target, bytes)) END(cudaErrorInvalidValue);
    Work *w = new_work(WORK_SET, call);
    w->duration = with_jitter(1200 + (Ns)(bytes / 800));
    w->profiled = cupti_wants(CUPTI_ACTIVITY_KIND_MEMSET);
    w->bytes = bytes;
    w->target = target;
    w->value = value;
    w->target_kind = memory_kind(target, NULL) == MEMORY_PINNED ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    submit(stream, w);
    if (blocking) wait_for_stream(stream);
    END(device_fault());
}
API cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
    RUNTIME_CALL(cudaMemsetAsync_v3020);
    return set(&call, target, value, bytes, stream, false);
}
API cudaError_t cudaMemset(void *target, int value, size_t bytes) {
    RUNTIME_CALL(cudaMemset_v3020);
    return set(&call, target, value, bytes, 0, true);
}
