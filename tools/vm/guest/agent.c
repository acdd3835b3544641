/*
 * The guest agent of xroce-vm: does to rxe0 what the host asks for, over the virtio-serial port
 * "xroce.agent" that is given as its argument.
 *
 *   request  SEQ VERB k=v k=v ...[ len=N]\n[N raw bytes]
 *   answer   SEQ ok k=v ...[ len=N]\n[N raw bytes]     or     SEQ err TEXT\n
 *
 * One request at a time. Numbers are decimal or 0x-hex. A request that makes no sense is answered
 * with err; only a line that cannot be framed (too long, no sequence number, a payload beyond the
 * limit) ends the agent. When the host's side of the port closes, the machine is switched off, so
 * that none outlives the program that started it.
 */
#define _GNU_SOURCE
#include "agent.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static verb_fn verb_batch;

static const struct {
    const char *name;
    verb_fn *run;
} verbs[] = {
    {"exec", verb_exec},       {"spawn", verb_spawn},   {"wait", verb_wait},
    {"kill", verb_kill},       {"put", verb_put},       {"get", verb_get},
    {"gids", verb_gids},       {"counters", verb_counters},
    {"reset", verb_reset},     {"mr", verb_mr},         {"dereg", verb_dereg},
    {"cq", verb_cq},           {"qp", verb_qp},         {"srq", verb_srq},
    {"ah", verb_ah},           {"mw", verb_mw},         {"destroy", verb_destroy},
    {"mcast", verb_mcast},     {"events", verb_events}, {"fill", verb_fill},
    {"hash", verb_hash},       {"peek", verb_peek},     {"poke", verb_poke},
    {"modify", verb_modify},   {"query", verb_query},   {"send", verb_send},
    {"recv", verb_recv},       {"bind", verb_bind},     {"poll", verb_poll},
    {"limit", verb_limit},     {"batch", verb_batch},
};

static int port;

static void die(const char *why)
{
    fprintf(stderr, "xroce agent: %s\n", why);
    exit(1);
}

void append(struct buffer *b, const void *bytes, size_t len)
{
    if (b->len + len > b->room) {
        b->room = (b->len + len) * 2;
        b->at = realloc(b->at, b->room);
        if (!b->at)
            die("out of memory");
    }
    if (len)
        memcpy(b->at + b->len, bytes, len);
    b->len += len;
}

void say(struct answer *a, const char *format, ...)
{
    char field[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(field, sizeof field, format, args);
    va_end(args);
    append(&a->fields, " ", 1);
    append(&a->fields, field, n < (int)sizeof field ? (size_t)n : sizeof field - 1);
}

int fail(struct answer *a, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(a->error, sizeof a->error, format, args);
    va_end(args);
    return -1;
}

int fail_errno(struct answer *a, int error, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return fail(a, "%s errno=%d (%s)", what, error, strerror(error));
}

static const char *find(const struct request *r, const char *key)
{
    for (size_t i = 0; i < r->n_fields; i++)
        if (!strcmp(r->fields[i].key, key))
            return r->fields[i].value;
    return NULL;
}

bool given(const struct request *r, const char *key)
{
    return find(r, key) != NULL;
}

const char *text(const struct request *r, const char *key, const char *otherwise)
{
    const char *value = find(r, key);
    return value ? value : otherwise;
}

bool parse_number(const char *text, uint64_t max, uint64_t *value)
{
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char *digits = hex ? text + 2 : text;
    char *end;
    /* strtoull would take signs and blanks. */
    if (!(hex ? isxdigit((unsigned char)*digits) : isdigit((unsigned char)*digits)))
        return false;
    errno = 0;
    unsigned long long n = strtoull(digits, &end, hex ? 16 : 10);
    if (*end || errno || n > max)
        return false;
    *value = n;
    return true;
}

bool number(const struct request *r, struct answer *a, const char *key, uint64_t max,
            uint64_t *value)
{
    const char *text = find(r, key);
    if (!text || parse_number(text, max, value))
        return true;
    fail(a, "%s=%.64s is no number up to 0x%llx", key, text, (unsigned long long)max);
    return false;
}

bool required(const struct request *r, struct answer *a, const char *key, uint64_t max,
              uint64_t *value)
{
    if (given(r, key))
        return number(r, a, key, max, value);
    fail(a, "%s= is missing", key);
    return false;
}

bool parse_hex(const char *text, uint8_t *bytes, size_t n)
{
    if (strlen(text) != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        char two[3] = {text[2 * i], text[2 * i + 1], 0};
        if (!isxdigit((unsigned char)two[0]) || !isxdigit((unsigned char)two[1]))
            return false;
        bytes[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return true;
}

/* The host is gone: off with the machine. */
static void host_is_gone(void)
{
    sync();
    execl("/opt/busybox/poweroff", "poweroff", "-f", (char *)NULL);
    die("the host is gone, and poweroff is missing");
}

void check_host(void)
{
    struct pollfd host = {.fd = port};
    if (poll(&host, 1, 0) > 0 && (host.revents & POLLHUP))
        host_is_gone();
}

/* Until the port can be read or written. Neither may block by itself: a write to a host that is
 * gone would do so for ever. */
static void wait_for(short events)
{
    struct pollfd host = {.fd = port, .events = events};
    poll(&host, 1, -1);
    if ((host.revents & POLLHUP) && !(host.revents & events & POLLIN))
        host_is_gone();
}

static void read_all(char *at, size_t len)
{
    while (len) {
        ssize_t n = read(port, at, len);
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        } else if (n == 0) {
            host_is_gone();
        } else if (errno == EAGAIN) {
            wait_for(POLLIN);
        } else if (errno != EINTR) {
            die(strerror(errno));
        }
    }
}

static void write_all(const char *at, size_t len)
{
    while (len) {
        ssize_t n = write(port, at, len);
        if (n >= 0) {
            at += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            wait_for(POLLOUT);
        } else if (errno != EINTR) {
            host_is_gone();
        }
    }
}

/* One line without its end. Bytes come one by one: a port has no way to put any back, and lines
 * are few. */
static void read_line(char *line)
{
    for (size_t n = 0; n < MAX_LINE; n++) {
        read_all(line + n, 1);
        if (line[n] == '\n') {
            line[n] = 0;
            return;
        }
    }
    die("a request without an end of line");
}

/* Whether bytes follow the line of a request. */
static bool has_payload(const char *verb)
{
    return !strcmp(verb, "exec") || !strcmp(verb, "spawn") || !strcmp(verb, "put") ||
           !strcmp(verb, "batch");
}

/* Splits "VERB k=v ..." in place. False after fail(); the payload's length is known in either
 * case. */
static bool parse(char *rest, struct request *r, struct answer *a)
{
    bool sound = true;
    r->verb = rest ? strsep(&rest, " ") : "";
    while (rest) {
        char *value = strsep(&rest, " "), *key = strsep(&value, "=");
        uint64_t len;
        if (!*key && !value)
            continue;
        if (!value || r->n_fields == MAX_FIELDS) {
            if (value)
                fail(a, "more than %d fields", MAX_FIELDS);
            else
                fail(a, "%.64s is no key=value", key);
            sound = false;
            continue;
        }
        r->fields[r->n_fields++] = (struct field){key, value};
        if (!strcmp(key, "len") && has_payload(r->verb)) {
            if (!parse_number(value, MAX_PAYLOAD, &len))
                die("a payload beyond the limit");
            r->len = len;
        }
    }
    return sound;
}

static int dispatch(const struct request *r, struct answer *a)
{
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(verbs[i].name, r->verb))
            return verbs[i].run(r, a);
    return fail(a, "no verb %.64s", r->verb);
}

/* A request is echoed in parts: no line may be made of it. */
static void one_line(char *text)
{
    for (char *c = text; *c; c++)
        if (!isprint((unsigned char)*c))
            *c = '?';
}

/* Requests without payload, one a line; their answers, up to the first that fails. */
static int verb_batch(const struct request *r, struct answer *a)
{
    char *rest = r->payload;
    a->has_payload = true;
    for (int result = 0; rest && *rest && result == 0;) {
        struct request one = {.seq = r->seq};
        struct answer its = {0};
        bool sound = parse(strsep(&rest, "\n"), &one, &its);
        if (sound && has_payload(one.verb)) {
            fail(&its, "%.64s cannot be in a batch", one.verb);
            sound = false;
        }
        result = sound ? dispatch(&one, &its) : -1;
        if (result == 0 && its.has_payload)
            result = fail(&its, "%.64s cannot be in a batch", one.verb);
        one_line(its.error);
        append(&a->payload, result ? "err " : "ok", result ? 4 : 2);
        if (result)
            append(&a->payload, its.error, strlen(its.error));
        append(&a->payload, its.fields.at, its.fields.len);
        append(&a->payload, "\n", 1);
        free(its.fields.at);
        free(its.payload.at);
    }
    return 0;
}

static void respond(const struct request *r, struct answer *a, int result)
{
    struct buffer out = {0};
    append(&out, r->seq, strlen(r->seq));
    if (result == 0) {
        append(&out, " ok", 3);
        if (a->has_payload)
            say(a, "len=%zu", a->payload.len);
        append(&out, a->fields.at, a->fields.len);
    } else {
        one_line(a->error);
        append(&out, " err ", 5);
        append(&out, a->error, strlen(a->error));
        append(&out, a->fields.at, a->fields.len);
    }
    append(&out, "\n", 1);
    if (result == 0 && a->has_payload)
        append(&out, a->payload.at, a->payload.len);
    write_all(out.at, out.len);
    free(out.at);
}

static void serve_one(char *line)
{
    struct request r = {0};
    struct answer a = {0};
    int result = -1;
    read_line(line);
    char *rest = line;
    r.seq = strsep(&rest, " ");
    if (!*r.seq)
        die("a request without a sequence number");
    bool sound = parse(rest, &r, &a);
    r.payload = malloc(r.len + 1);
    if (!r.payload)
        die("out of memory");
    read_all(r.payload, r.len);
    r.payload[r.len] = 0;
    if (sound)
        result = dispatch(&r, &a);
    respond(&r, &a, result);
    free(r.payload);
    free(a.fields.at);
    free(a.payload.at);
}

int main(int argc, char **argv)
{
    static char line[MAX_LINE];
    struct answer hello = {0};
    struct request start = {.seq = "0"};
    struct utsname name;
    if (argc != 2)
        die("usage: agent PORT");
    signal(SIGPIPE, SIG_IGN);
    port = open(argv[1], O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (port < 0)
        die(strerror(errno));
    uname(&name);
    say(&hello, "hello=1 kernel=%s", name.release);
    int result = device_open(&hello);
    respond(&start, &hello, result);
    if (result)
        die(hello.error);
    for (;;)
        serve_one(line);
}
