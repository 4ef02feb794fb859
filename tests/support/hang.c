/* A disk that does not answer: calls of the C library on paths below a marked one wait until the mark is taken away.
 *
 * LD_PRELOAD this, with TFS_LITE_TEST_HANG naming a file of 4096 bytes that holds the marked path, closed by a zero byte;
 * an empty path marks nothing. The file is mapped, so a mark takes effect at once in every process that has it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile const char *mark;

static int (*real_open)(const char *, int, ...);

__attribute__((constructor)) static void map_mark(void) {
    const char *file = getenv("TFS_LITE_TEST_HANG");
    real_open = dlsym(RTLD_NEXT, "open");
    int fd = file ? real_open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED) mark = found;
}

static int is_marked(const char *path) {
    if (!mark || !mark[0] || !path) return 0;
    size_t i = 0;
    while (i < 4096 && mark[i]) {
        if (path[i] != mark[i]) return 0;
        i++;
    }
    return path[i] == '/' || path[i] == 0;
}

static void wait_for(const char *path) {
    struct timespec pause = {0, 20000000};
    while (is_marked(path)) nanosleep(&pause, NULL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(type, name, parameters, path, ...)                 \
    type name parameters {                                      \
        static __typeof__(&name) real;                          \
        if (!real) real = REAL(name);                           \
        wait_for(path);                                         \
        return real(__VA_ARGS__);                               \
    }
#define WRAP_OPEN(name, parameters, path, ...)                  \
    int name parameters {                                       \
        static __typeof__(&name) real;                          \
        mode_t mode = 0;                                        \
        if (!real) real = REAL(name);                           \
        if (flags & (O_CREAT | O_TMPFILE)) {                    \
            va_list rest;                                       \
            va_start(rest, flags);                              \
            mode = va_arg(rest, mode_t);                        \
            va_end(rest);                                       \
        }                                                       \
        wait_for(path);                                         \
        return real(__VA_ARGS__, mode);                         \
    }

WRAP(DIR *, opendir, (const char *path), path, path)
WRAP(int, stat, (const char *path, struct stat *found), path, path, found)
WRAP(int, stat64, (const char *path, struct stat64 *found), path, path, found)
WRAP(int, lstat, (const char *path, struct stat *found), path, path, found)
WRAP(int, lstat64, (const char *path, struct stat64 *found), path, path, found)
WRAP(int, fstatat, (int at, const char *path, struct stat *found, int flags), path, at, path, found, flags)
WRAP(int, fstatat64, (int at, const char *path, struct stat64 *found, int flags), path, at, path, found, flags)
WRAP(int, statx, (int at, const char *path, int flags, unsigned int mask, struct statx *found), path, at, path, flags,
     mask, found)
WRAP(int, access, (const char *path, int mode), path, path, mode)
WRAP(ssize_t, readlink, (const char *path, char *into, size_t size), path, path, into, size)
WRAP(FILE *, fopen, (const char *path, const char *mode), path, path, mode)
WRAP(FILE *, fopen64, (const char *path, const char *mode), path, path, mode)
WRAP_OPEN(open, (const char *path, int flags, ...), path, path, flags)
WRAP_OPEN(open64, (const char *path, int flags, ...), path, path, flags)
WRAP_OPEN(openat, (int at, const char *path, int flags, ...), path, at, path, flags)
WRAP_OPEN(openat64, (int at, const char *path, int flags, ...), path, at, path, flags)
