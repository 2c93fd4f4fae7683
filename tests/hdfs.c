/* Stands for Hadoop's libhdfs, as far as PyArrow reads by it: a folder's subfolders are what name nodes have.
 *
 * The folder is $GPUJOIN_TEST_HDFS. Each connection is a line of its file "connections", and
 * the options that Hadoop's library would give to Java are in "options". A file "fail-WHAT" there, with
 * "ERRNO [POSITION]", makes calls fail: "connect", "info", "open", and "read" of what lies from a position on. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int kind;
    char *name;
    time_t modified;
    int64_t size;
    short replication;
    int64_t block_size;
    char *owner;
    char *group;
    short permissions;
    time_t accessed;
} FileInfo;

typedef struct {
    char name_node[256];
    int port;
    char user[256];
    char tickets[512];
    char settings[65536];
} Builder;

typedef struct {
    char folder[2048];
} FileSystem;

typedef struct {
    int descriptor;
} File;

static const char *root(void) { return getenv("GPUJOIN_TEST_HDFS"); }

/* Whether a call is to fail, at a position where it has one; sets errno. */
static int fails(const char *what, int64_t position) {
    char path[2048];
    int error = 0;
    long long from = 0;
    snprintf(path, sizeof path, "%s/fail-%s", root(), what);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 0;
    }
    int known = fscanf(file, "%d %lld", &error, &from);
    fclose(file);
    if (known < 1 || position < from) {
        return 0;
    }
    errno = error;
    return 1;
}

static void copied(char *to, size_t size, const char *text) { snprintf(to, size, "%s", text == NULL ? "" : text); }

Builder *hdfsNewBuilder(void) { return calloc(1, sizeof(Builder)); }
void hdfsBuilderSetNameNode(Builder *b, const char *text) { copied(b->name_node, sizeof b->name_node, text); }
void hdfsBuilderSetNameNodePort(Builder *b, uint16_t port) { b->port = port; }
void hdfsBuilderSetUserName(Builder *b, const char *text) { copied(b->user, sizeof b->user, text); }
void hdfsBuilderSetKerbTicketCachePath(Builder *b, const char *text) { copied(b->tickets, sizeof b->tickets, text); }
void hdfsBuilderSetForceNewInstance(Builder *b) { (void)b; }

int hdfsBuilderConfSetStr(Builder *b, const char *name, const char *value) {
    size_t used = strlen(b->settings);
    snprintf(b->settings + used, sizeof b->settings - used, " %s=%s", name, value);
    return 0;
}

FileSystem *hdfsBuilderConnect(Builder *b) {
    FileSystem *fs = NULL;
    char path[2048];
    if (!fails("connect", 0)) {
        const char *host = strstr(b->name_node, "://");
        host = host == NULL ? b->name_node : host + 3;
        fs = calloc(1, sizeof *fs);
        snprintf(fs->folder, sizeof fs->folder, "%s/%.*s", root(), (int)strcspn(host, ":/"), host);
        snprintf(path, sizeof path, "%s/connections", root());
        FILE *file = fopen(path, "a");
        fprintf(file, "%s %d %s %s%s\n", b->name_node, b->port, b->user, b->tickets[0] ? b->tickets : "-", b->settings);
        fclose(file);
        snprintf(path, sizeof path, "%s/options", root());
        const char *options = getenv("LIBHDFS_OPTS");
        file = fopen(path, "w");
        fputs(options == NULL ? "" : options, file);
        fclose(file);
    }
    free(b);
    return fs;
}

int hdfsDisconnect(FileSystem *fs) {
    free(fs);
    return 0;
}

FileInfo *hdfsGetPathInfo(FileSystem *fs, const char *path) {
    char local[4096];
    struct stat found;
    snprintf(local, sizeof local, "%s%s", fs->folder, path);
    if (fails("info", 0) || stat(local, &found) != 0) {
        return NULL;
    }
    FileInfo *info = calloc(1, sizeof *info);
    info->kind = S_ISDIR(found.st_mode) ? 'D' : 'F';
    info->name = strdup(path);
    info->owner = strdup("owner");
    info->group = strdup("group");
    info->size = found.st_size;
    info->modified = info->accessed = found.st_mtime; /* in seconds, as Hadoop's library has it */
    return info;
}

void hdfsFreeFileInfo(FileInfo *infos, int count) {
    for (int i = 0; i < count; i++) {
        free(infos[i].name);
        free(infos[i].owner);
        free(infos[i].group);
    }
    free(infos);
}

int hdfsExists(FileSystem *fs, const char *path) {
    char local[4096];
    snprintf(local, sizeof local, "%s%s", fs->folder, path);
    return access(local, F_OK);
}

File *hdfsOpenFile(FileSystem *fs, const char *path, int flags, int buffer, short replication, int32_t block) {
    (void)buffer, (void)replication, (void)block;
    char local[4096];
    if (fails("open", 0)) {
        return NULL;
    }
    if (flags != O_RDONLY) {
        errno = ENOTSUP;
        return NULL;
    }
    snprintf(local, sizeof local, "%s%s", fs->folder, path);
    int descriptor = open(local, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return NULL;
    }
    File *file = calloc(1, sizeof *file);
    file->descriptor = descriptor;
    return file;
}

int hdfsCloseFile(FileSystem *fs, File *file) {
    (void)fs;
    int result = close(file->descriptor);
    free(file);
    return result;
}

int32_t hdfsPread(FileSystem *fs, File *file, int64_t position, void *buffer, int32_t length) {
    (void)fs;
    return fails("read", position + length - 1) ? -1 : (int32_t)pread(file->descriptor, buffer, length, position);
}

int64_t hdfsTell(FileSystem *fs, File *file) {
    (void)fs;
    return lseek(file->descriptor, 0, SEEK_CUR);
}

int hdfsSeek(FileSystem *fs, File *file, int64_t position) {
    (void)fs;
    return lseek(file->descriptor, position, SEEK_SET) < 0 ? -1 : 0;
}

int32_t hdfsRead(FileSystem *fs, File *file, void *buffer, int32_t length) {
    return fails("read", hdfsTell(fs, file) + length - 1) ? -1 : (int32_t)read(file->descriptor, buffer, length);
}

/* PyArrow looks for these when it loads the library; nothing that reads calls them. */
#define UNSUPPORTED(type, name, failure)                                                                               \
    type name(void) {                                                                                                  \
        errno = ENOTSUP;                                                                                               \
        return failure;                                                                                                \
    }
UNSUPPORTED(int, hdfsCreateDirectory, -1)
UNSUPPORTED(int, hdfsDelete, -1)
UNSUPPORTED(int64_t, hdfsGetCapacity, -1)
UNSUPPORTED(int64_t, hdfsGetUsed, -1)
UNSUPPORTED(FileInfo *, hdfsListDirectory, NULL)
UNSUPPORTED(int, hdfsChown, -1)
UNSUPPORTED(int, hdfsChmod, -1)
UNSUPPORTED(int, hdfsFlush, -1)
UNSUPPORTED(int32_t, hdfsWrite, -1)
