/* The environment's settings, the clock, the lock and sleeping. */
#include "device.h"
#include <sched.h>
#include <sys/prctl.h>

Settings settings;

static double number(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text && *text ? atof(text) : otherwise;
}

/* Returns the number of devices in CUDA_VISIBLE_DEVICES before the first invalid entry. All devices are equal, so only the number matters. */
static int visible_devices(int all) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) return all;
    int count = 0;
    for (; *text; count++) {
        char *end;
        long index = strtol(text, &end, 10);
        if (end == text || index < 0 || index >= all) break;
        text = *end == ',' ? end + 1 : end;
    }
    return count;
}

__attribute__((constructor)) static void read_settings(void) {
    settings.all_devices = (int)number("SIMGPU_DEVICES", 1);
    if (settings.all_devices > DEVICES_MAX) settings.all_devices = DEVICES_MAX;
    settings.devices = visible_devices(settings.all_devices);
    settings.memory_bytes = (uint64_t)number("SIMGPU_MEMORY_MB", 8192) << 20;
    settings.seed = (uint64_t)number("SIMGPU_SEED", 1);
    settings.jitter = number("SIMGPU_JITTER", 0.02);
    settings.slowdown = number("SIMGPU_SLOWDOWN", 1);
    settings.log_folder = getenv("SIMGPU_LOG");
    const char *allocations = getenv("SIMGPU_OOM_AT");
    if (allocations && *allocations) {
        const char *dash = strchr(allocations, '-');
        settings.oom_first = atol(allocations);
        settings.oom_last = dash ? atol(dash + 1) : settings.oom_first;
    }
    settings.error_at_launch = (long)number("SIMGPU_ERROR_AT_LAUNCH", 0);
    settings.error_code = (int)number("SIMGPU_ERROR_CODE", cudaErrorAssert);
    settings.hang_at_launch = (long)number("SIMGPU_HANG_AT_LAUNCH", 0);
    settings.cupti_denied = number("SIMGPU_CUPTI_DENIED", 0) != 0;
    settings.cupti_taken = number("SIMGPU_CUPTI_TAKEN", 0) != 0;
    settings.drop_every = (long)number("SIMGPU_DROP_EVERY", 0);
    settings.link_bytes_per_ns = number("SIMGPU_LINK_GB_PER_S", 20);
}

Ns now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* A sleeping thread wakes up some ten microseconds late, so the last part of a wait is a busy loop. */
void sleep_until(Ns moment) {
    static __thread bool precise = false;
    if (!precise) {
        prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
        precise = true;
    }
    const Ns awake = 20000;
    if (moment - now_ns() > awake) {
        Ns t = moment - awake;
        struct timespec until = {t / 1000000000, t % 1000000000};
        while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL)) {}
    }
    while (now_ns() < moment) sched_yield();
}

pthread_mutex_t device_mutex = PTHREAD_MUTEX_INITIALIZER;
void lock_device(void) { pthread_mutex_lock(&device_mutex); }
void unlock_device(void) { pthread_mutex_unlock(&device_mutex); }

/* A forked child has a single thread. It must not inherit a lock that another thread holds. */
static void fresh_lock(void) { pthread_mutex_init(&device_mutex, NULL); }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(lock_device, unlock_device, fresh_lock); }

void pause_device(Ns until) {
    unlock_device();
    sleep_until(until);
    lock_device();
}

/* FNV-1a */
uint64_t hash_name(const char *name) {
    uint64_t h = 0xcbf29ce484222325ull ^ settings.seed;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
    return h;
}
