/* Looks at every write and sync of a WAL (a file named *.log): does the thread hold Python's GIL?
 * And fails the next one if asked to. Preloaded in front of libc; driven through ctypes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WRITE, SYNC };
static int held[2], released[2], fails[2];

int canary_held(int op) { return held[op]; }
int canary_released(int op) { return released[op]; }
void canary_fail(int op, int error) { fails[op] = error; }

static int is_wal(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    return size > 4 && !memcmp(path + size - 4, ".log", 4);
}

static int seen(int op, int fd) {
    int kept = errno;
    if (is_wal(fd)) {
        int (*check)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
        if (check) check() ? held[op]++ : released[op]++;
        if (fails[op]) {
            errno = fails[op];
            fails[op] = 0;
            return -1;
        }
    }
    errno = kept;
    return 0;
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    return seen(WRITE, fd) ? -1 : real(fd, data, size);
}

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return seen(SYNC, fd) ? -1 : real(fd);
}

int fsync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return seen(SYNC, fd) ? -1 : real(fd);
}
