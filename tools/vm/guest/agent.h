/* The guest agent of xroce-vm: one request at a time over a virtio-serial port, see agent.c. */
#ifndef XROCE_AGENT_H
#define XROCE_AGENT_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limits. A line holds the fields of a request, a payload is counted by its len field. */
#define MAX_LINE (64 * 1024)
#define MAX_FIELDS 256
#define MAX_PAYLOAD (64u << 20)
#define MAX_OBJECTS 1024 /* ids of one kind: 0..1023 */
#define MAX_SGE 32
#define MAX_POST 4096 /* work requests of one send or recv */
#define MAX_POLL 512  /* completions of one poll */
#define MAX_OUTPUT (256 * 1024)

struct field {
    const char *key, *value;
};

struct request {
    const char *seq, *verb;
    struct field fields[MAX_FIELDS];
    size_t n_fields;
    char *payload; /* followed by a zero byte */
    size_t len;
};

struct buffer {
    char *at;
    size_t len, room;
};

/* Fields of an answer ("k=v k=v"), its payload, or why there is none. */
struct answer {
    struct buffer fields, payload;
    bool has_payload;
    char error[512];
};

/* Verbs return 0, or -1 after fail(). */
typedef int verb_fn(const struct request *r, struct answer *a);

/* agent.c */
/* For loops that wait: does not return if the host has closed its side. */
void check_host(void);
void append(struct buffer *b, const void *bytes, size_t len);
void say(struct answer *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail(struct answer *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with " errno=E (TEXT)" behind it. */
int fail_errno(struct answer *a, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool given(const struct request *r, const char *key);
const char *text(const struct request *r, const char *key, const char *otherwise);
/* Reads a number into *value; absent leaves it alone. False after fail(). */
bool number(const struct request *r, struct answer *a, const char *key, uint64_t max,
            uint64_t *value);
/* The same for a field that has to be there. */
bool required(const struct request *r, struct answer *a, const char *key, uint64_t max,
              uint64_t *value);
bool parse_number(const char *text, uint64_t max, uint64_t *value);
/* 2*n hex digits, no more and no fewer. */
bool parse_hex(const char *text, uint8_t *bytes, size_t n);

/* process.c */
verb_fn verb_exec, verb_spawn, verb_wait, verb_kill;
/* file.c */
verb_fn verb_put, verb_get, verb_gids, verb_counters;

/* objects.c */
enum kind { MR, CQ, QP, SRQ, AH, MW, KINDS };
struct memory {
    struct ibv_mr *mr;
    uint8_t *at;
    size_t len, mapped;
};
extern struct ibv_context *device;
extern struct ibv_pd *pd;
/* Opens rxe0 and makes the PD. */
int device_open(struct answer *a);
/* The object that field `key` names, or NULL after fail(). */
void *object(const struct request *r, struct answer *a, const char *key, enum kind kind);
verb_fn verb_reset, verb_mr, verb_dereg, verb_cq, verb_qp, verb_srq, verb_ah, verb_mw,
    verb_destroy, verb_mcast, verb_events, verb_limit;

/* memory.c */
verb_fn verb_fill, verb_hash, verb_peek, verb_poke;
/* state.c */
bool address(const struct request *r, struct answer *a, struct ibv_ah_attr *ah);
verb_fn verb_modify, verb_query;
/* newer.c */
/* Operations that came with Linux 6.2, and that libibverbs here does not know yet. */
struct newer {
    uint32_t opcode; /* as the kernel numbers them */
    uint64_t remote;
    uint32_t rkey, length;
    uint8_t type, level; /* of a FLUSH */
    uint64_t value;      /* of an ATOMIC WRITE */
    uint64_t wr;
    unsigned flags;
};
#define NEWER_FLUSH 14
#define NEWER_ATOMIC_WRITE 15
/* Posts one; returns an errno. */
int post_newer(struct ibv_qp *qp, const struct newer *what);
/* post.c */
verb_fn verb_send, verb_recv, verb_bind, verb_poll;

#endif
