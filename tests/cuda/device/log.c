/* The device's log: $SIMGPU_LOG/<pid>.tsv, with one line per piece of work.
 *
 * The file is a shared mapping, so lines that were written survive os._exit and SIGKILL. The file grows by whole pieces;
 * a reader strips the zero bytes at its end.
 */
#include "device.h"
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>

#define PIECE (4l << 20)
static char *piece;
static long used, piece_start;
static int file = -1;
static pid_t owner;

static void add(const char *line, int length) {
    if (!settings.log_folder) return;
    if (owner != getpid()) { /* the first line, or the first after a fork */
        char path[4096];
        snprintf(path, sizeof path, "%s/%d.tsv", settings.log_folder, (int)getpid());
        file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        owner = getpid();
        piece = NULL;
        piece_start = used = 0;
    }
    if (file < 0) return;
    if (!piece || used + length > PIECE) {
        /* The next piece begins at the page that holds the next byte. */
        long at = piece_start + used, page = at & ~4095l;
        if (piece) munmap(piece, PIECE);
        if (ftruncate(file, page + PIECE)) return;
        piece = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED, file, page);
        if (piece == MAP_FAILED) {
            piece = NULL;
            return;
        }
        piece_start = page;
        used = at - page;
    }
    memcpy(piece + used, line, length);
    used += length;
}

void log_work(const char *kind, int device, int stream, const Work *work, Ns start, Ns end, const char *name) {
    static const Work nothing;
    if (!settings.log_folder) return;
    if (!work) work = &nothing;
    char line[8192];
    int n = snprintf(line, sizeof line, "%s\t%d\t%d\t%u\t%u\t%lld\t%lld\t%llu\t%lld\t%d\t%llu\t%s\n", kind, device, stream, work->correlation,
                     work->graph, (long long)start, (long long)end, (unsigned long long)work->bytes, (long long)work->issued, work->thread,
                     (unsigned long long)work->external, name);
    if (n >= (int)sizeof line) n = sizeof line - 1, line[n - 1] = '\n';
    add(line, n);
}

void log_note(const char *kind, int device, const char *text) {
    Ns now = now_ns();
    log_work(kind, device, 0, NULL, now, now, text);
}

__attribute__((destructor)) static void cut_file(void) {
    if (file >= 0 && owner == getpid() && ftruncate(file, piece_start + used)) perror("simulated device: log");
}
