/* Preloaded: every sync takes 20 ms longer, as on a slow or a busy disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

#define SLOW_US 20000
#define SLOW(name)                                                       \
  int name(int fd) {                                                     \
    static int (*real)(int);                                             \
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, #name);             \
    usleep(SLOW_US);                                                     \
    return real(fd);                                                     \
  }

SLOW(fdatasync)
SLOW(fsync)
