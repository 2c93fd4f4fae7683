/* Makes calls on files below one folder fail; loaded with LD_PRELOAD.
 *
 * disk_fault(folder, operations, code, at, lasting) arms it: the at-th call of the operations chosen fails with errno
 * `code`, and if `lasting` all later ones too. Code 0 is a short write: half of what was asked for, which is no error.
 * disk_calls() gives how many calls were counted since. Files count whether or not they have a name.
 *
 * A process that another program starts is armed by DISK_FAULT="operations code at lasting log folder" in its
 * environment; each call that fails there leaves a byte in the file `log`, so that faults that never came are known.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, READ = 4 };

static char folder[4096], log_file[4096];
static int operations, code, lasting;
static long at;
static atomic_long calls;

void disk_fault(const char *path, int which, int error, long number, int stays) {
  operations = 0;
  snprintf(folder, sizeof folder, "%s", path);
  code = error, at = number, lasting = stays;
  atomic_store(&calls, 0);
  operations = which;
}

long disk_calls(void) { return atomic_load(&calls); }

__attribute__((constructor)) static void arm(void) {
  const char *text = getenv("DISK_FAULT");
  char path[4096];
  int which, error, stays;
  long number;
  if (text && sscanf(text, "%d %d %ld %d %4095s %4095s", &which, &error, &number, &stays, log_file, path) == 6)
    disk_fault(path, which, error, number, stays);
}

static int below(const char *path) { return folder[0] && strncmp(path, folder, strlen(folder)) == 0; }

static int due(int operation) {
  if (!(operations & operation)) return 0;
  long number = atomic_fetch_add(&calls, 1) + 1;
  if (number != at && !(lasting && number > at && at > 0)) return 0;
  if (log_file[0]) {
    FILE *log = fopen(log_file, "a");
    if (log) fputc('.', log), fclose(log);
  }
  return 1;
}

static int concerned(int file) {
  if (!operations) return 0;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return below(path);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define FAULTY(name, operation, length, shorter, call)             \
  int saved = errno;                                               \
  if (concerned(file) && due(operation)) {                         \
    if (code) { errno = code; return -1; }                         \
    if (length > 1) return shorter;                                \
  }                                                                \
  errno = saved;                                                   \
  return call

ssize_t write(int file, const void *data, size_t size) {
  REAL(write);
  FAULTY(write, WRITE, size, real(file, data, size / 2), real(file, data, size));
}
ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
  REAL(pwrite);
  FAULTY(pwrite, WRITE, size, real(file, data, size / 2, offset), real(file, data, size, offset));
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
  REAL(pwrite64);
  FAULTY(pwrite64, WRITE, size, real(file, data, size / 2, offset), real(file, data, size, offset));
}
ssize_t writev(int file, const struct iovec *parts, int count) {
  REAL(writev);
  FAULTY(writev, WRITE, count, real(file, parts, count - 1), real(file, parts, count));
}
ssize_t read(int file, void *data, size_t size) {
  REAL(read);
  FAULTY(read, READ, size, real(file, data, size / 2), real(file, data, size));
}
ssize_t pread(int file, void *data, size_t size, off_t offset) {
  REAL(pread);
  FAULTY(pread, READ, size, real(file, data, size / 2, offset), real(file, data, size, offset));
}
ssize_t pread64(int file, void *data, size_t size, off64_t offset) {
  REAL(pread64);
  FAULTY(pread64, READ, size, real(file, data, size / 2, offset), real(file, data, size, offset));
}
#define OPENING(name)                                                                        \
  int name(const char *path, int flags, ...) {                                               \
    REAL(name);                                                                              \
    va_list rest;                                                                            \
    va_start(rest, flags);                                                                   \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                  \
    va_end(rest);                                                                            \
    if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) && below(path) && due(OPEN)) {               \
      errno = code ? code : EINTR;                                                           \
      return -1;                                                                             \
    }                                                                                        \
    return real(path, flags, mode);                                                          \
  }
OPENING(open)
OPENING(open64)
