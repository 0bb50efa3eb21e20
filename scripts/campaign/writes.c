/* Faults in what a process writes, below all libraries: LD_PRELOAD=writes.so WRITES_FILE=... WRITES_DIR=...
 *
 * Counts calls that change files below WRITES_DIR, in this process and those that it starts, and lets
 * one of them fail: see `control`, which is shared by way of WRITES_FILE.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, SIZE = 4, NAME = 8 };

/* Of the calls of `family`, number `at` fails (-1: none; all from it on, if `lasts`): with `code`,
 * or, if that is 0, it writes half. `counts`: calls so far, by family. */
static struct { long at, code, lasts, family, counts[NAME + 1]; } *control;
static const char *dir;
static size_t dir_len;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("WRITES_FILE");
    int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    dir = getenv("WRITES_DIR");
    dir_len = strlen(dir);
    control = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
}

static int is_below(const char *path) { return strncmp(path, dir, dir_len) == 0 && path[dir_len] == '/'; }

static int is_ours(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return is_below(path) || strcmp(path, dir) == 0;
}

static int fails(long family) {
    long number = __sync_fetch_and_add(&control->counts[family], 1);
    if (family != control->family || control->at < 0 || number < control->at || (number > control->at && !control->lasts)) return 0;
    errno = (int)control->code;
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* A short write of one byte would be none, which no system does. */
#define WRITES(name, fd, size, half, args, ...) \
    ssize_t name(__VA_ARGS__) { \
        REAL(ssize_t, name, __VA_ARGS__); \
        if (control && (size) > 0 && is_ours(fd) && fails(WRITE)) { \
            if (control->code) return -1; \
            if ((size) > 1) return real half; \
        } \
        return real args; \
    }

WRITES(write, fd, n, (fd, b, n / 2), (fd, b, n), int fd, const void *b, size_t n)
WRITES(pwrite, fd, n, (fd, b, n / 2, o), (fd, b, n, o), int fd, const void *b, size_t n, off_t o)
WRITES(pwrite64, fd, n, (fd, b, n / 2, o), (fd, b, n, o), int fd, const void *b, size_t n, off64_t o)
WRITES(sendfile, out, n, (out, in, o, n / 2), (out, in, o, n), int out, int in, off_t *o, size_t n)
WRITES(sendfile64, out, n, (out, in, o, n / 2), (out, in, o, n), int out, int in, off64_t *o, size_t n)
WRITES(copy_file_range, out, n, (in, i, out, o, n / 2, f), (in, i, out, o, n, f), int in, off64_t *i,
       int out, off64_t *o, size_t n, unsigned f)

static struct iovec halved(const struct iovec *v, int n) {
    struct iovec first = {0, 0};
    for (int i = 0; i < n && !first.iov_len; i++) first = v[i];
    first.iov_len = (first.iov_len + 1) / 2;
    return first;
}

#define GATHERS(name, half, args, ...) \
    ssize_t name(__VA_ARGS__) { \
        REAL(ssize_t, name, __VA_ARGS__); \
        if (control && is_ours(fd) && fails(WRITE)) { \
            struct iovec first = halved(v, n); \
            return control->code ? -1 : real half; \
        } \
        return real args; \
    }

GATHERS(writev, (fd, &first, 1), (fd, v, n), int fd, const struct iovec *v, int n)
GATHERS(pwritev, (fd, &first, 1, o), (fd, v, n, o), int fd, const struct iovec *v, int n, off_t o)
GATHERS(pwritev64, (fd, &first, 1, o), (fd, v, n, o), int fd, const struct iovec *v, int n, off64_t o)
GATHERS(pwritev2, (fd, &first, 1, o, f), (fd, v, n, o, f), int fd, const struct iovec *v, int n, off_t o, int f)
GATHERS(pwritev64v2, (fd, &first, 1, o, f), (fd, v, n, o, f), int fd, const struct iovec *v, int n, off64_t o, int f)

/* The others fail, or do all: without a code they are left alone. */
#define CHANGES(type, name, ours, family, args, ...) \
    type name(__VA_ARGS__) { \
        REAL(type, name, __VA_ARGS__); \
        if (control && control->code && (ours) && fails(family)) return -1; \
        return real args; \
    }

CHANGES(int, fsync, is_ours(fd), SYNC, (fd), int fd)
CHANGES(int, fdatasync, is_ours(fd), SYNC, (fd), int fd)
CHANGES(int, syncfs, is_ours(fd), SYNC, (fd), int fd)
CHANGES(int, ftruncate, is_ours(fd), SIZE, (fd, n), int fd, off_t n)
CHANGES(int, ftruncate64, is_ours(fd), SIZE, (fd, n), int fd, off64_t n)
CHANGES(int, truncate, is_below(p), SIZE, (p, n), const char *p, off_t n)
CHANGES(int, truncate64, is_below(p), SIZE, (p, n), const char *p, off64_t n)
CHANGES(int, rename, is_below(b), NAME, (a, b), const char *a, const char *b)
CHANGES(int, renameat, is_ours(y) || is_below(b), NAME, (x, a, y, b), int x, const char *a, int y, const char *b)
CHANGES(int, link, is_below(b), NAME, (a, b), const char *a, const char *b)
CHANGES(int, linkat, is_ours(y) || is_below(b), NAME, (x, a, y, b, f), int x, const char *a, int y, const char *b, int f)
CHANGES(int, mkdir, is_below(p), NAME, (p, m), const char *p, mode_t m)
CHANGES(int, mkdirat, is_ours(d) || is_below(p), NAME, (d, p, m), int d, const char *p, mode_t m)

#define OPENS(name, ours, args, ...) \
    int name(__VA_ARGS__, ...) { \
        va_list more; \
        va_start(more, flags); \
        mode_t m = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        static int (*real)(__VA_ARGS__, ...); \
        if (!real) real = (int (*)(__VA_ARGS__, ...))dlsym(RTLD_NEXT, #name); \
        if (control && control->code && flags & O_CREAT && (ours) && fails(NAME)) return -1; \
        return real args; \
    }

OPENS(open, is_below(p), (p, flags, m), const char *p, int flags)
OPENS(open64, is_below(p), (p, flags, m), const char *p, int flags)
OPENS(openat, is_below(p) || (*p != '/' && is_ours(d)), (d, p, flags, m), int d, const char *p, int flags)
OPENS(openat64, is_below(p) || (*p != '/' && is_ours(d)), (d, p, flags, m), int d, const char *p, int flags)
