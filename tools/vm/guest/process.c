/* Programs in the guest: exec, spawn, wait, kill. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_SPAWNED 32
/* One argument of a program may have 128 KiB (MAX_ARG_STRLEN), its zero byte included. */
#define MAX_SCRIPT (128 * 1024 - 1)
#define MAX_SECONDS 86400
#define TIMED_OUT 124 /* as timeout(1) says it */

static struct spawned {
    char name[64];
    pid_t pid; /* 0: free */
    int output;
} spawned[MAX_SPAWNED];

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Runs the script in a process group of its own, its output to `output`. */
static pid_t start(const struct request *r, struct answer *a, int output)
{
    if (r->len > MAX_SCRIPT || strlen(r->payload) != r->len) {
        fail(a, "a script has at most %d bytes, none of them zero", MAX_SCRIPT);
        return -1;
    }
    pid_t pid = fork();
    if (pid < 0)
        fail_errno(a, errno, "fork");
    /* In both: whoever comes first, the group is there before it is used. */
    setpgid(pid, pid);
    if (pid)
        return pid;
    signal(SIGPIPE, SIG_DFL);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(output, 1);
    dup2(output, 2);
    execl("/bin/bash", "bash", "-c", r->payload, (char *)NULL);
    _exit(127);
}

static int code(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Waits until the process ends; after `seconds` its whole group is killed. */
static int reap(pid_t pid, int64_t deadline)
{
    int status;
    for (;;) {
        pid_t done = waitpid(pid, &status, WNOHANG);
        if (done == pid)
            return code(status);
        if (done < 0 && errno != EINTR)
            return 127;
        if (now_ms() >= deadline) {
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return TIMED_OUT;
        }
        check_host();
        usleep(2000);
    }
}

/* The last MAX_OUTPUT bytes of what was written. */
static void tail(struct answer *a, int output)
{
    char part[4096];
    struct stat info;
    off_t at = 0;
    ssize_t n;
    if (!fstat(output, &info) && info.st_size > MAX_OUTPUT)
        at = info.st_size - MAX_OUTPUT;
    a->has_payload = true;
    /* What it left running may still write: no further than the limit. */
    while (a->payload.len < MAX_OUTPUT && (n = pread(output, part, sizeof part, at)) > 0) {
        append(&a->payload, part, (size_t)n);
        at += n;
    }
}

/* Output goes to a file without a name: a program it leaves running keeps nobody waiting. */
static int output_file(struct answer *a)
{
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        fail_errno(a, errno, "a file for the output");
    return fd;
}

int verb_exec(const struct request *r, struct answer *a)
{
    uint64_t seconds = 30;
    if (!number(r, a, "timeout", MAX_SECONDS, &seconds))
        return -1;
    int output = output_file(a);
    if (output < 0)
        return -1;
    pid_t pid = start(r, a, output);
    if (pid > 0) {
        say(a, "rc=%d", reap(pid, now_ms() + (int64_t)seconds * 1000));
        tail(a, output);
    }
    close(output);
    return pid > 0 ? 0 : -1;
}

static struct spawned *find(const struct request *r, struct answer *a, bool fresh)
{
    const char *name = text(r, "name", "");
    struct spawned *free_one = NULL;
    if (!*name || strlen(name) >= sizeof spawned->name) {
        fail(a, "name= is missing or too long");
        return NULL;
    }
    for (struct spawned *s = spawned; s < spawned + MAX_SPAWNED; s++) {
        if (!s->pid)
            free_one = s;
        else if (!strcmp(s->name, name)) {
            if (fresh)
                fail(a, "%s is there already: wait for it", name);
            return fresh ? NULL : s;
        }
    }
    if (!fresh)
        fail(a, "nothing was spawned as %s", name);
    else if (!free_one)
        fail(a, "%d programs are there already", MAX_SPAWNED);
    return fresh ? free_one : NULL;
}

int verb_spawn(const struct request *r, struct answer *a)
{
    struct spawned *s = find(r, a, true);
    if (!s || (s->output = output_file(a)) < 0)
        return -1;
    pid_t pid = start(r, a, s->output);
    if (pid < 0) {
        close(s->output);
        return -1;
    }
    strcpy(s->name, text(r, "name", ""));
    s->pid = pid;
    say(a, "pid=%d", pid);
    return 0;
}

int verb_wait(const struct request *r, struct answer *a)
{
    uint64_t seconds = 30;
    struct spawned *s = find(r, a, false);
    if (!s || !number(r, a, "timeout", MAX_SECONDS, &seconds))
        return -1;
    say(a, "rc=%d", reap(s->pid, now_ms() + (int64_t)seconds * 1000));
    tail(a, s->output);
    close(s->output);
    s->pid = 0;
    return 0;
}

int verb_kill(const struct request *r, struct answer *a)
{
    uint64_t sig = SIGTERM;
    struct spawned *s = find(r, a, false);
    if (!s || !number(r, a, "sig", 64, &sig))
        return -1;
    return kill(-s->pid, (int)sig) ? fail_errno(a, errno, "kill") : 0;
}
