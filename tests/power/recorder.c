// Records what a process does to one folder, and can kill it at the n-th such call.
//
// Preloaded. Nothing happens before power_start(): the process that was started with it may fork
// children that record and others that do not. Every call that changes a file or a name under
// the root is made and written down under one mutex, so the trace is the order of events; a sync
// is two records, its beginning and its end, and the mutex is free in between. The records go
// straight to the trace file, one writev each: a SIGKILL takes none back.
//
// Record: u8 op, u8[3], u32 life, u32 handle, u32 size, u64 number; then `size` bytes. Little-endian.
// What the model of the disk cannot follow (a shared mapping, a sendfile) is recorded as
// UNSUPPORTED, and the trace is refused. RocksDB's own LOG files are left out.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, LINK, UNLINK, MKDIR, RMDIR, MARK,
       UNSUPPORTED, EXTEND };
#define FDS 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[4096];
static size_t root_len;
static int trace = -1;
static uint32_t life, handles;
static unsigned sync_us;
static long steps, kill_at, is_torn;
static struct { uint32_t handle; dev_t dev; ino_t ino; } table[FDS];

#define REAL(ret, name, ...) \
    static ret (*real_##name)(__VA_ARGS__); \
    if (!real_##name) real_##name = (ret (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static void record(int op, uint32_t handle, uint64_t number, const void *data, size_t size) {
    struct __attribute__((packed)) {
        uint8_t op, zero[3];
        uint32_t life, handle, size;
        uint64_t number;
    } head = {op, {0}, life, handle, size, number};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, size}};
    int saved = errno;
    if (trace >= 0 && syscall(SYS_writev, trace, parts, 2) != (long)(sizeof head + size)) abort();
    errno = saved;
}

static int is_on(void) { return root_len != 0; }

static int is_last(void) { return ++steps == kill_at; }

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static void step(void) {
    if (is_last()) die();
}

// The path below the root, or NULL: elsewhere, or a LOG of RocksDB's.
static const char *inside(int dir, const char *path, char *out) {
    if (!is_on() || !path) return NULL;
    size_t n = 0;
    if (path[0] != '/') {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t got = readlink(dir == AT_FDCWD ? "/proc/self/cwd" : link, out, 4096);
        if (got <= 0) return NULL;
        n = got;
        out[n++] = '/';
    }
    if (n + strlen(path) >= 8192) return NULL;
    strcpy(out + n, path);
    if (strncmp(out, root, root_len) || (out[root_len] && out[root_len] != '/')) return NULL;
    const char *name = strrchr(out, '/');
    if (name && !strncmp(name + 1, "LOG", 3)) return NULL;
    return out + root_len;
}

static uint32_t handle_of(int fd) {
    if (!is_on() || fd < 0 || fd >= FDS || !table[fd].handle) return 0;
    struct stat st;
    if (fstat(fd, &st) || st.st_dev != table[fd].dev || st.st_ino != table[fd].ino) {
        table[fd].handle = 0;  // closed behind our back, and the number given to another
        return 0;
    }
    return table[fd].handle;
}

static void unsupported(int fd, const char *what) {
    if (!is_on()) return;
    pthread_mutex_lock(&lock);
    if (handle_of(fd)) record(UNSUPPORTED, 0, 0, what, strlen(what));
    pthread_mutex_unlock(&lock);
}

// -- what the children call -----------------------------------------------------------------

void power_start(const char *folder, const char *file, unsigned number, unsigned wait_us) {
    trace = file[0] ? open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    life = number;
    sync_us = wait_us;
    strncpy(root, folder, sizeof root - 1);
    root_len = strlen(root);
}

void power_mark(const char *data, unsigned size) {
    pthread_mutex_lock(&lock);
    record(MARK, 0, 0, data, size);
    pthread_mutex_unlock(&lock);
}

// From now on: die before the n-th call; a write is cut in half first if `torn`.
void power_kill_at(long n, long torn) {
    pthread_mutex_lock(&lock);
    steps = 0;
    kill_at = n;
    is_torn = torn;
    pthread_mutex_unlock(&lock);
}

long power_steps(void) { return steps; }

// No other thread may be ended between its call and the record of it.
void _exit(int status) {
    if (is_on()) pthread_mutex_lock(&lock);
    for (;;) syscall(SYS_exit_group, status);
}
void _Exit(int status) { _exit(status); }

// -- files ----------------------------------------------------------------------------------

static int opened(int dir, const char *path, int flags, mode_t mode) {
    REAL(int, openat64, int, const char *, int, ...);
    char full[12288];
    const char *name = inside(dir, path, full);
    if (!name) return real_openat64(dir, path, flags, mode);
    pthread_mutex_lock(&lock);
    if (flags & O_CREAT) step();
    int fd = real_openat64(dir, path, flags, mode);
    struct stat st;
    if (fd >= 0 && fd < FDS && !fstat(fd, &st)) {
        table[fd].handle = ++handles;
        table[fd].dev = st.st_dev;
        table[fd].ino = st.st_ino;
        record(OPEN, handles, flags, name, strlen(name));
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); }
int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE return opened(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE return opened(dir, path, flags, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __openat_2(int dir, const char *path, int flags) { return opened(dir, path, flags, 0); }
int __openat64_2(int dir, const char *path, int flags) { return opened(dir, path, flags, 0); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static FILE *streamed(const char *path, const char *mode, FILE *(*real)(const char *, const char *)) {
    char full[12288];
    if (inside(AT_FDCWD, path, full) && strpbrk(mode, "wa+")) {
        pthread_mutex_lock(&lock);
        record(UNSUPPORTED, 0, 0, "fopen", 5);
        pthread_mutex_unlock(&lock);
    }
    return real(path, mode);
}
FILE *fopen(const char *path, const char *mode) {
    REAL(FILE *, fopen, const char *, const char *);
    return streamed(path, mode, real_fopen);
}
FILE *fopen64(const char *path, const char *mode) {
    REAL(FILE *, fopen64, const char *, const char *);
    return streamed(path, mode, real_fopen64);
}

int close(int fd) {
    REAL(int, close, int);
    if (!is_on() || fd < 0 || fd >= FDS) return real_close(fd);
    pthread_mutex_lock(&lock);
    table[fd].handle = 0;
    int result = real_close(fd);
    pthread_mutex_unlock(&lock);
    return result;
}

// One write of any kind. at < 0: where the file's own offset is.
static ssize_t written(int fd, const void *data, size_t size, off64_t at) {
    uint32_t handle;
    if (!is_on() || (pthread_mutex_lock(&lock), !(handle = handle_of(fd)))) {
        if (is_on()) pthread_mutex_unlock(&lock);
        return at < 0 ? syscall(SYS_write, fd, data, size) : syscall(SYS_pwrite64, fd, data, size, at);
    }
    int last = is_last();
    if (last && !is_torn) die();
    if (last) size /= 2;
    ssize_t n = at < 0 ? syscall(SYS_write, fd, data, size) : syscall(SYS_pwrite64, fd, data, size, at);
    if (n > 0) {
        int saved = errno;
        uint64_t from = at < 0 ? (uint64_t)(lseek64(fd, 0, SEEK_CUR) - n) : (uint64_t)at;
        errno = saved;
        record(WRITE, handle, from, data, n);
    }
    if (last) die();
    pthread_mutex_unlock(&lock);
    return n;
}

static ssize_t gathered(int fd, const struct iovec *parts, int count, off64_t at) {
    size_t size = 0, done = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    char *all = malloc(size ? size : 1);
    if (!all) abort();
    for (int i = 0; i < count; done += parts[i++].iov_len) memcpy(all + done, parts[i].iov_base, parts[i].iov_len);
    ssize_t n = written(fd, all, size, at);
    int saved = errno;
    free(all);
    errno = saved;
    return n;
}

ssize_t write(int fd, const void *data, size_t size) { return written(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return written(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return written(fd, data, size, at); }
ssize_t writev(int fd, const struct iovec *parts, int count) {
    return is_on() ? gathered(fd, parts, count, -1) : syscall(SYS_writev, fd, parts, count);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return gathered(fd, parts, count, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { return gathered(fd, parts, count, at); }

static int sized(int fd, int op, uint64_t size, long number, long a, long b, long c) {
    pthread_mutex_lock(&lock);
    uint32_t handle = handle_of(fd);
    if (handle) step();
    int result = syscall(number, fd, a, b, c);
    if (handle && !result && op) record(op, handle, size, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int fd, off_t size) { return sized(fd, TRUNCATE, size, SYS_ftruncate, size, 0, 0); }
int ftruncate64(int fd, off64_t size) { return sized(fd, TRUNCATE, size, SYS_ftruncate, size, 0, 0); }
int fallocate(int fd, int mode, off_t at, off_t size) {
    if (mode & ~FALLOC_FL_KEEP_SIZE) unsupported(fd, "fallocate");
    return sized(fd, mode ? 0 : EXTEND, at + size, SYS_fallocate, mode, at, size);
}
int fallocate64(int fd, int mode, off64_t at, off64_t size) { return fallocate(fd, mode, at, size); }
int posix_fallocate(int fd, off_t at, off_t size) { return fallocate(fd, 0, at, size) ? errno : 0; }
int posix_fallocate64(int fd, off64_t at, off64_t size) { return fallocate(fd, 0, at, size) ? errno : 0; }

static int synced(int fd, int (*real)(int)) {
    pthread_mutex_lock(&lock);
    uint32_t handle = handle_of(fd);
    if (handle) {
        step();
        record(SYNC_BEGIN, handle, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    int result = real(fd);
    if (!handle) return result;
    if (sync_us) usleep(sync_us);
    pthread_mutex_lock(&lock);
    if (!result) record(SYNC_END, handle, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int fsync(int fd) { REAL(int, fsync, int); return synced(fd, real_fsync); }
int fdatasync(int fd) { REAL(int, fdatasync, int); return synced(fd, real_fdatasync); }

// A hint, not a promise: it says nothing of the size or of the disk's cache.
int sync_file_range(int fd, off64_t at, off64_t size, unsigned flags) {
    return sized(fd, 0, 0, SYS_sync_file_range, at, size, flags);
}

void *mmap(void *to, size_t size, int prot, int flags, int fd, off_t at) {
    if ((prot & PROT_WRITE) && (flags & MAP_SHARED)) unsupported(fd, "mmap");
    return (void *)syscall(SYS_mmap, to, size, prot, flags, fd, at);
}
void *mmap64(void *to, size_t size, int prot, int flags, int fd, off64_t at) { return mmap(to, size, prot, flags, fd, at); }
ssize_t copy_file_range(int in, off64_t *a, int out, off64_t *b, size_t size, unsigned flags) {
    unsupported(out, "copy_file_range");
    return syscall(SYS_copy_file_range, in, a, out, b, size, flags);
}
ssize_t sendfile(int out, int in, off_t *at, size_t size) {
    unsupported(out, "sendfile");
    return syscall(SYS_sendfile, out, in, at, size);
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t size) { return sendfile(out, in, (off_t *)at, size); }

// -- names ----------------------------------------------------------------------------------

static int named(int op, int dir, const char *path, long number, long a, long b, long c, long d, long e) {
    char full[12288];
    const char *name = inside(dir, path, full);
    if (!name) return syscall(number, a, b, c, d, e);
    pthread_mutex_lock(&lock);
    step();
    int result = syscall(number, a, b, c, d, e);
    if (!result) record(op, 0, 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
    return result;
}

static int both(int op, int dir, const char *old, int to_dir, const char *new, long number, long flags) {
    char a[12288], b[12288], pair[24576];
    const char *from = inside(dir, old, a), *to = inside(to_dir, new, b);
    if (!from && !to) return syscall(number, dir, old, to_dir, new, flags);
    pthread_mutex_lock(&lock);
    step();
    int result = syscall(number, dir, old, to_dir, new, flags);
    if (!result && from && to) {
        size_t n = strlen(from) + 1, m = strlen(to);
        memcpy(pair, from, n);
        memcpy(pair + n, to, m);
        record(op, 0, 0, pair, n + m);
    } else if (!result) {
        record(UNSUPPORTED, 0, 0, "a name leaves or enters the root", 32);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int rename(const char *old, const char *new) { return both(RENAME, AT_FDCWD, old, AT_FDCWD, new, SYS_renameat2, 0); }
int renameat(int d, const char *old, int e, const char *new) { return both(RENAME, d, old, e, new, SYS_renameat2, 0); }
int renameat2(int d, const char *old, int e, const char *new, unsigned flags) { return both(RENAME, d, old, e, new, SYS_renameat2, flags); }
int link(const char *old, const char *new) { return both(LINK, AT_FDCWD, old, AT_FDCWD, new, SYS_linkat, 0); }
int linkat(int d, const char *old, int e, const char *new, int flags) { return both(LINK, d, old, e, new, SYS_linkat, flags); }
int unlinkat(int d, const char *path, int flags) {
    return named(flags & AT_REMOVEDIR ? RMDIR : UNLINK, d, path, SYS_unlinkat, d, (long)path, flags, 0, 0);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    int result = unlink(path);
    return result && errno == EISDIR ? rmdir(path) : result;
}
int mkdirat(int d, const char *path, mode_t mode) { return named(MKDIR, d, path, SYS_mkdirat, d, (long)path, mode, 0, 0); }
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
