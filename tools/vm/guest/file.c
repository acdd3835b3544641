/* Files of the guest, and what sysfs tells of rxe0. */
#define _GNU_SOURCE
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PORT_DIR "/sys/class/infiniband/rxe0/ports/1/"
#define MAX_GIDS 1024
/* A file of sysfs, or a name in it. */
#define SHORT 128

/* Makes the folders above the file. */
static void make_folders(const char *path)
{
    char part[PATH_MAX];
    for (const char *end = path + 1; (end = strchr(end, '/')); end++) {
        memcpy(part, path, (size_t)(end - path));
        part[end - path] = 0;
        mkdir(part, 0755);
    }
}

int verb_put(const struct request *r, struct answer *a)
{
    uint64_t mode = 0644;
    const char *path = text(r, "path", ""), *digits = text(r, "mode", "0644");
    char fresh[PATH_MAX + 8];
    if (*path != '/' || strlen(path) >= PATH_MAX)
        return fail(a, "path= has to be an absolute path");
    /* Octal with a leading zero, as chmod has it; otherwise a number like all others. */
    if (digits[0] == '0' && strspn(digits, "01234567") == strlen(digits) && strlen(digits) <= 5) {
        mode = 0;
        for (const char *c = digits; *c; c++)
            mode = mode * 8 + (uint64_t)(*c - '0');
    } else if (!number(r, a, "mode", 07777, &mode)) {
        return -1;
    }
    /* Under another name first: the old file may be a program that runs. */
    make_folders(path);
    snprintf(fresh, sizeof fresh, "%s.part", path);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail_errno(a, errno, "open %.200s", path);
    for (size_t at = 0; at < r->len;) {
        ssize_t n = write(fd, r->payload + at, r->len - at);
        if (n < 0) {
            int error = errno;
            close(fd);
            unlink(fresh);
            return fail_errno(a, error, "write %.200s", path);
        }
        at += (size_t)n;
    }
    fchmod(fd, (mode_t)mode & 07777);
    close(fd);
    return rename(fresh, path) ? fail_errno(a, errno, "rename to %.200s", path) : 0;
}

int verb_get(const struct request *r, struct answer *a)
{
    uint64_t max = 1 << 20;
    char part[4096];
    if (!number(r, a, "max", MAX_PAYLOAD, &max))
        return -1;
    int fd = open(text(r, "path", ""), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_errno(a, errno, "open %.200s", text(r, "path", ""));
    a->has_payload = true;
    for (;;) {
        size_t want = max - a->payload.len < sizeof part ? max - a->payload.len : sizeof part;
        ssize_t n = want ? read(fd, part, want) : 0;
        int error = errno;
        if (n > 0) {
            append(&a->payload, part, (size_t)n);
            continue;
        }
        close(fd);
        return n < 0 ? fail_errno(a, error, "read %.200s", text(r, "path", "")) : 0;
    }
}

/* The first line of a file of sysfs; false if it cannot be read. */
static bool line_of(char line[SHORT], const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool read = fgets(line, SHORT, file) != NULL;
    fclose(file);
    if (read)
        line[strcspn(line, "\n")] = 0;
    return read;
}

int verb_gids(const struct request *r, struct answer *a)
{
    (void)r;
    for (int index = 0; index < MAX_GIDS; index++) {
        char path[PATH_MAX], gid[SHORT], type[SHORT], ndev[SHORT], hex[SHORT];
        size_t digits = 0;
        snprintf(path, sizeof path, PORT_DIR "gids/%d", index);
        if (!line_of(gid, path))
            break;
        /* Entries that are not in use have no type. */
        snprintf(path, sizeof path, PORT_DIR "gid_attrs/types/%d", index);
        if (!line_of(type, path))
            continue;
        snprintf(path, sizeof path, PORT_DIR "gid_attrs/ndevs/%d", index);
        if (!line_of(ndev, path))
            strcpy(ndev, "-");
        for (const char *c = gid; *c; c++)
            if (*c != ':')
                hex[digits++] = *c;
        hex[digits] = 0;
        say(a, "gid=%d:%s:%s:%s", index, hex, strstr(type, "v2") ? "v2" : "v1", ndev);
    }
    return 0;
}

int verb_counters(const struct request *r, struct answer *a)
{
    (void)r;
    DIR *folder = opendir(PORT_DIR "hw_counters");
    if (!folder)
        return fail_errno(a, errno, "open hw_counters");
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        char path[PATH_MAX], line[SHORT];
        uint64_t value;
        snprintf(path, sizeof path, PORT_DIR "hw_counters/%s", entry->d_name);
        /* "lifespan" is how long they are cached, no counter. */
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "lifespan") && line_of(line, path) &&
            parse_number(line, UINT64_MAX, &value))
            say(a, "%s=%llu", entry->d_name, (unsigned long long)value);
    }
    closedir(folder);
    return 0;
}
