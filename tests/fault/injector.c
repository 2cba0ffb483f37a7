/* Fails the n-th call of one kind on files of one store, and writes down what was called.
 *
 * Preloaded in front of libc. One rule at a time, set from inside the process (injector.py): which
 * operation, on which paths (fnmatch patterns between bars), from which call on, how often, with
 * which errno. A torn write puts half of its bytes down before it fails, as a full disk does.
 * Nothing is touched outside the folder that is watched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE, SYNC, OPEN, RENAME, TRUNCATE, UNLINK, LINK, MKDIR, READ };
enum { EVENTS_MAX = 1 << 16, PATH_BYTES = 512 };

struct event { int op, failed; long size; char path[PATH_BYTES]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_BYTES], patterns[PATH_BYTES];
static int rule_op = -1, rule_errno, rule_torn;
static long rule_nth, rule_times, seen, hits, event_count;
static struct event *events;

#define REAL(name) ((__typeof__(&name))real(&real_##name, #name))
static void *real(void **kept, const char *name) {
    if (!*kept) *kept = dlsym(RTLD_NEXT, name);
    return *kept;
}

/* -- control ------------------------------------------------------------------------------- */

void lodeq_fault_watch(const char *path) {
    pthread_mutex_lock(&lock);
    snprintf(root, sizeof root, "%s", path);
    if (!events) events = calloc(EVENTS_MAX, sizeof *events);
    event_count = 0;
    pthread_mutex_unlock(&lock);
}

void lodeq_fault_arm(int op, const char *globs, long nth, long times, int error, int torn) {
    pthread_mutex_lock(&lock);
    snprintf(patterns, sizeof patterns, "%s", globs);
    rule_op = op; rule_nth = nth; rule_times = times; rule_errno = error; rule_torn = torn;
    seen = hits = 0;
    pthread_mutex_unlock(&lock);
}

void lodeq_fault_disarm(void) {
    pthread_mutex_lock(&lock);
    rule_op = -1;
    pthread_mutex_unlock(&lock);
}

long lodeq_fault_hits(void) { return hits; }
long lodeq_fault_events(void) { return event_count; }
const struct event *lodeq_fault_event(long i) { return &events[i]; }

/* -- the decision -------------------------------------------------------------------------- */

static int is_watched(const char *path) {
    size_t n = strlen(root);
    return n && !strncmp(path, root, n) && (path[n] == '/' || !path[n]);
}

static int matches(const char *path) {
    char copy[PATH_BYTES], *rest, *glob;
    snprintf(copy, sizeof copy, "%s", patterns);
    for (glob = strtok_r(copy, "|", &rest); glob; glob = strtok_r(NULL, "|", &rest))
        if (!fnmatch(glob, path, 0)) return 1;
    return 0;
}

/* 0: go on. Otherwise the errno to fail with. `other`: the second path of a rename or link. */
static int judge(int op, const char *path, const char *other, int *torn, long *at) {
    int error = 0;
    *at = -1;
    if (!is_watched(path)) return 0;
    pthread_mutex_lock(&lock);
    if (op == rule_op && (matches(path) || (other && matches(other)))) {
        seen++;
        if (seen >= rule_nth && hits < rule_times) { hits++; error = rule_errno; }
    }
    if (torn) *torn = error && rule_torn;
    if ((op != READ || error) && event_count < EVENTS_MAX) {
        struct event *e = &events[*at = event_count++];
        e->op = op; e->failed = error; e->size = -1;
        snprintf(e->path, sizeof e->path, "%s", path);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static int judge_fd(int op, int fd, int *torn, long *at) {
    char link[64], path[PATH_BYTES];
    *at = -1;
    if (torn) *torn = 0;
    if (!root[0]) return 0;
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = kept;
    if (n <= 0) return 0;
    path[n] = 0;
    return judge(op, path, NULL, torn, at);
}

static int judge_at(int op, int folder, const char *path) {
    char link[64], whole[2 * PATH_BYTES];
    long at;
    if (!root[0]) return 0;
    if (path[0] == '/' || folder == AT_FDCWD) return judge(op, path, NULL, NULL, &at);
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, whole, PATH_BYTES - 1);
    errno = kept;
    if (n <= 0) return 0;
    snprintf(whole + n, sizeof whole - n, "/%s", path);
    return judge(op, whole, NULL, NULL, &at);
}

#define FAIL(error, value) do { errno = (error); return (value); } while (0)

/* -- writes -------------------------------------------------------------------------------- */

static void *real_write, *real_pwrite, *real_pwrite64, *real_writev;

ssize_t write(int fd, const void *data, size_t n) {
    int torn; long at;
    int error = judge_fd(WRITE, fd, &torn, &at);
    if (error && torn && REAL(write)(fd, data, n / 2) < 0) return -1;
    if (error) FAIL(error, -1);
    return REAL(write)(fd, data, n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) {
    int torn; long at;
    int error = judge_fd(WRITE, fd, &torn, &at);
    if (error && torn && REAL(pwrite)(fd, data, n / 2, offset) < 0) return -1;
    if (error) FAIL(error, -1);
    return REAL(pwrite)(fd, data, n, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t offset) {
    int torn; long at;
    int error = judge_fd(WRITE, fd, &torn, &at);
    if (error && torn && REAL(pwrite64)(fd, data, n / 2, offset) < 0) return -1;
    if (error) FAIL(error, -1);
    return REAL(pwrite64)(fd, data, n, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
    long at;
    int error = judge_fd(WRITE, fd, NULL, &at);
    if (error) FAIL(error, -1);
    return REAL(writev)(fd, parts, n);
}

/* -- syncs: what is on disk afterwards is written down ------------------------------------- */

static void *real_fsync, *real_fdatasync;

static int sync_with(int (*call)(int), int fd) {
    long at;
    struct stat info;
    int error = judge_fd(SYNC, fd, NULL, &at);
    int known = at >= 0 && !fstat(fd, &info);  /* before the call: later bytes are not promised */
    if (error) FAIL(error, -1);
    int result = call(fd);
    if (!result && known) events[at].size = info.st_size;
    return result;
}

int fsync(int fd) { return sync_with(REAL(fsync), fd); }
int fdatasync(int fd) { return sync_with(REAL(fdatasync), fd); }

/* -- opens --------------------------------------------------------------------------------- */

static void *real_open, *real_open64, *real_openat, *real_openat64, *real_fopen, *real_fopen64;

#define MODE mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); \
    }

int open(const char *path, int flags, ...) {
    MODE
    int error = judge_at(OPEN, AT_FDCWD, path);
    if (error) FAIL(error, -1);
    return REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE
    int error = judge_at(OPEN, AT_FDCWD, path);
    if (error) FAIL(error, -1);
    return REAL(open64)(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE
    int error = judge_at(OPEN, folder, path);
    if (error) FAIL(error, -1);
    return REAL(openat)(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE
    int error = judge_at(OPEN, folder, path);
    if (error) FAIL(error, -1);
    return REAL(openat64)(folder, path, flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
    int error = judge_at(OPEN, AT_FDCWD, path);
    if (error) FAIL(error, NULL);
    return REAL(fopen)(path, mode);
}

FILE *fopen64(const char *path, const char *mode) {
    int error = judge_at(OPEN, AT_FDCWD, path);
    if (error) FAIL(error, NULL);
    return REAL(fopen64)(path, mode);
}

/* -- names and sizes ----------------------------------------------------------------------- */

static void *real_rename, *real_link, *real_linkat, *real_unlink, *real_unlinkat, *real_mkdir;
static void *real_ftruncate, *real_ftruncate64, *real_fallocate, *real_fallocate64;

int rename(const char *from, const char *to) {
    long at;
    int error = root[0] ? judge(RENAME, from, to, NULL, &at) : 0;
    if (error) FAIL(error, -1);
    return REAL(rename)(from, to);
}

int link(const char *from, const char *to) {
    long at;
    int error = root[0] ? judge(LINK, from, to, NULL, &at) : 0;
    if (error) FAIL(error, -1);
    return REAL(link)(from, to);
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    int error = judge_at(LINK, from_at, from);
    if (error) FAIL(error, -1);
    return REAL(linkat)(from_at, from, to_at, to, flags);
}

int unlink(const char *path) {
    int error = judge_at(UNLINK, AT_FDCWD, path);
    if (error) FAIL(error, -1);
    return REAL(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
    int error = judge_at(UNLINK, folder, path);
    if (error) FAIL(error, -1);
    return REAL(unlinkat)(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    int error = judge_at(MKDIR, AT_FDCWD, path);
    if (error) FAIL(error, -1);
    return REAL(mkdir)(path, mode);
}

int ftruncate(int fd, off_t size) {
    long at;
    int error = judge_fd(TRUNCATE, fd, NULL, &at);
    if (error) FAIL(error, -1);
    return REAL(ftruncate)(fd, size);
}

int ftruncate64(int fd, off64_t size) {
    long at;
    int error = judge_fd(TRUNCATE, fd, NULL, &at);
    if (error) FAIL(error, -1);
    return REAL(ftruncate64)(fd, size);
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
    long at;
    int error = judge_fd(TRUNCATE, fd, NULL, &at);
    if (error) FAIL(error, -1);
    return REAL(fallocate)(fd, mode, offset, size);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
    long at;
    int error = judge_fd(TRUNCATE, fd, NULL, &at);
    if (error) FAIL(error, -1);
    return REAL(fallocate64)(fd, mode, offset, size);
}

/* -- reads --------------------------------------------------------------------------------- */

static void *real_read, *real_pread, *real_pread64, *real_fread_unlocked;

ssize_t read(int fd, void *data, size_t n) {
    long at;
    int error = rule_op == READ ? judge_fd(READ, fd, NULL, &at) : 0;
    if (error) FAIL(error, -1);
    return REAL(read)(fd, data, n);
}

ssize_t pread(int fd, void *data, size_t n, off_t offset) {
    long at;
    int error = rule_op == READ ? judge_fd(READ, fd, NULL, &at) : 0;
    if (error) FAIL(error, -1);
    return REAL(pread)(fd, data, n, offset);
}

ssize_t pread64(int fd, void *data, size_t n, off64_t offset) {
    long at;
    int error = rule_op == READ ? judge_fd(READ, fd, NULL, &at) : 0;
    if (error) FAIL(error, -1);
    return REAL(pread64)(fd, data, n, offset);
}

#undef fread_unlocked
size_t fread_unlocked(void *data, size_t size, size_t n, FILE *file) {
    long at;
    int error = rule_op == READ ? judge_fd(READ, fileno(file), NULL, &at) : 0;
    if (error) FAIL(error, 0);
    return REAL(fread_unlocked)(data, size, n, file);
}
