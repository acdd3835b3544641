/* Work requests and completions: send, recv, bind, poll. */
#define _GNU_SOURCE
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_TIMEOUT_MS 600000
/* rxe gives the kernel's flag (IB_WC_WITH_INVALIDATE) to its users, who have another value. */
#define RXE_WC_WITH_INV (1 << 2)

/* What send and recv have in common: n requests, each a step on from the one before. */
struct series {
    uint64_t wr, n, wrstep, stride;
    struct ibv_sge sge[MAX_SGE];
    int n_sge;
};

static struct memory *memory_of(const char *id, struct answer *a)
{
    struct field field = {"mr", id};
    struct request one = {.fields = {field}, .n_fields = 1};
    return object(&one, a, "mr", MR);
}

/* One MR:OFF:LEN of a list; cuts it up. */
static bool parse_sge(const struct request *r, struct answer *a, struct series *s, char *item)
{
    uint64_t off, len, raw = 0, lkey = 0;
    char *mr = strsep(&item, ":"), *off_text = strsep(&item, ":"), *len_text = item;
    if (!len_text || !parse_number(off_text, INT64_MAX, &off) ||
        !parse_number(len_text, UINT32_MAX, &len)) {
        fail(a, "sge= has to be MR:OFF:LEN[,MR:OFF:LEN...] or -");
        return false;
    }
    struct memory *m = memory_of(mr, a);
    if (!m || !number(r, a, "raw", 1, &raw) || !number(r, a, "lkey", UINT32_MAX, &lkey))
        return false;
    /* Of a series the last request reaches farthest. */
    uint64_t last = off + s->stride * (s->n - 1);
    if (!raw && (last > m->len || len > m->len - last)) {
        fail(a, "sge %.32s:%llu:%llu ends beyond the %zu bytes of the mr; raw=1 posts it", mr,
             (unsigned long long)last, (unsigned long long)len, m->len);
        return false;
    }
    if (s->n_sge == MAX_SGE) {
        fail(a, "more than %d sge", MAX_SGE);
        return false;
    }
    s->sge[s->n_sge++] = (struct ibv_sge){
        .addr = (uintptr_t)m->at + off,
        .length = (uint32_t)len,
        .lkey = given(r, "lkey") ? (uint32_t)lkey : m->mr->lkey,
    };
    return true;
}

static bool parse_series(const struct request *r, struct answer *a, struct series *s)
{
    char *list, *rest;
    *s = (struct series){.n = 1, .wrstep = 1};
    if (!number(r, a, "wr", UINT64_MAX, &s->wr) || !number(r, a, "n", MAX_POST, &s->n) ||
        !number(r, a, "wrstep", UINT64_MAX, &s->wrstep) ||
        !number(r, a, "stride", UINT32_MAX, &s->stride))
        return false;
    if (!s->n) {
        fail(a, "n=0 requests");
        return false;
    }
    if (!strcmp(text(r, "sge", "-"), "-"))
        return true;
    bool sound = true;
    list = rest = strdup(text(r, "sge", ""));
    while (rest && sound)
        sound = parse_sge(r, a, s, strsep(&rest, ","));
    free(list);
    return sound;
}

/* The scatter list of request `k`. */
static struct ibv_sge *sge_at(const struct series *s, struct ibv_sge *all, uint64_t k)
{
    struct ibv_sge *own = all + k * (uint64_t)s->n_sge;
    for (int i = 0; i < s->n_sge; i++) {
        own[i] = s->sge[i];
        own[i].addr += k * s->stride;
    }
    return own;
}

static const struct {
    const char *name;
    enum ibv_wr_opcode opcode;
} ops[] = {
    {"send", IBV_WR_SEND},
    {"send_imm", IBV_WR_SEND_WITH_IMM},
    {"send_inv", IBV_WR_SEND_WITH_INV},
    {"write", IBV_WR_RDMA_WRITE},
    {"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM},
    {"read", IBV_WR_RDMA_READ},
    {"cas", IBV_WR_ATOMIC_CMP_AND_SWP},
    {"fadd", IBV_WR_ATOMIC_FETCH_AND_ADD},
    {"local_inv", IBV_WR_LOCAL_INV},
};
#define N_OPS (sizeof ops / sizeof *ops)

/* The request that all of the series are like. */
static bool parse_send(const struct request *r, struct answer *a, const struct ibv_qp *qp,
                       struct ibv_send_wr *wr)
{
    size_t op = 0;
    uint64_t flags = IBV_SEND_SIGNALED, imm = 0, inv = 0, rva = 0, rkey = 0, cmp = 0, swap = 0;
    uint64_t rqpn = 0, rqkey = 0;
    while (op < N_OPS && strcmp(ops[op].name, text(r, "op", "")))
        op++;
    if (op == N_OPS) {
        fail(a, "op=%.32s is none that I know", text(r, "op", ""));
        return false;
    }
    if (!number(r, a, "flags", UINT32_MAX, &flags) || !number(r, a, "imm", UINT32_MAX, &imm) ||
        !number(r, a, "inv", UINT32_MAX, &inv) || !number(r, a, "rva", UINT64_MAX, &rva) ||
        !number(r, a, "rkey", UINT32_MAX, &rkey) || !number(r, a, "cmp", UINT64_MAX, &cmp) ||
        !number(r, a, "swap", UINT64_MAX, &swap) || !number(r, a, "rqpn", UINT32_MAX, &rqpn) ||
        !number(r, a, "rqkey", UINT32_MAX, &rqkey))
        return false;
    *wr = (struct ibv_send_wr){.opcode = ops[op].opcode, .send_flags = (unsigned)flags};
    /* imm_data and invalidate_rkey share their place. */
    if (wr->opcode == IBV_WR_SEND_WITH_INV || wr->opcode == IBV_WR_LOCAL_INV)
        wr->invalidate_rkey = (uint32_t)inv;
    else
        wr->imm_data = htonl((uint32_t)imm);
    if (qp->qp_type == IBV_QPT_UD) {
        wr->wr.ud.ah = object(r, a, "ah", AH);
        wr->wr.ud.remote_qpn = (uint32_t)rqpn;
        wr->wr.ud.remote_qkey = (uint32_t)rqkey;
        return wr->wr.ud.ah != NULL;
    }
    if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr->wr.atomic.remote_addr = rva;
        wr->wr.atomic.rkey = (uint32_t)rkey;
        /* FETCH_ADD takes what it adds from compare_add. */
        wr->wr.atomic.compare_add = cmp;
        wr->wr.atomic.swap = swap;
    } else {
        wr->wr.rdma.remote_addr = rva;
        wr->wr.rdma.rkey = (uint32_t)rkey;
    }
    return true;
}

/* atomic_write: the eight bytes at the first sge, flush: `length` bytes of the range, or with
 * level=1 the whole region. */
static int send_newer(const struct request *r, struct answer *a, struct ibv_qp *qp, bool flush)
{
    struct series s;
    struct newer what = {.opcode = flush ? NEWER_FLUSH : NEWER_ATOMIC_WRITE};
    uint64_t flags = IBV_SEND_SIGNALED, rkey = 0, length = flush ? 0 : 8, type = 1, level = 0;
    if (!parse_series(r, a, &s) || !number(r, a, "rva", UINT64_MAX, &what.remote) ||
        !number(r, a, "rkey", UINT32_MAX, &rkey) || !number(r, a, "flags", UINT32_MAX, &flags) ||
        !number(r, a, "length", UINT32_MAX, &length) || !number(r, a, "type", 3, &type) ||
        !number(r, a, "level", 1, &level))
        return -1;
    if (s.n != 1 || s.n_sge != (flush ? 0 : 1))
        return fail(a, "one at a time; a flush has no sge, an atomic_write has one");
    what.wr = s.wr;
    what.flags = (unsigned)flags;
    what.rkey = (uint32_t)rkey;
    what.length = (uint32_t)length;
    what.type = (uint8_t)type;
    what.level = (uint8_t)level;
    if (!flush)
        memcpy(&what.value, (const void *)(uintptr_t)s.sge[0].addr, sizeof what.value);
    int error = post_newer(qp, &what);
    say(a, "posted=%d", !error);
    return error ? fail_errno(a, error, "post") : 0;
}

static int posted(struct answer *a, int error, uint64_t n)
{
    say(a, "posted=%llu", (unsigned long long)n);
    return error ? fail_errno(a, error, "post") : 0;
}

int verb_send(const struct request *r, struct answer *a)
{
    struct series s;
    struct ibv_send_wr like, *bad = NULL;
    uint64_t rstride = 0;
    struct ibv_qp *qp = object(r, a, "qp", QP);
    const char *op = text(r, "op", "");
    if (qp && (!strcmp(op, "flush") || !strcmp(op, "atomic_write")))
        return send_newer(r, a, qp, !strcmp(op, "flush"));
    if (!qp || !parse_series(r, a, &s) || !parse_send(r, a, qp, &like) ||
        !number(r, a, "rstride", UINT64_MAX, &rstride))
        return -1;
    struct ibv_send_wr *wr = calloc(s.n, sizeof *wr);
    struct ibv_sge *sge = calloc(s.n * (uint64_t)(s.n_sge + 1), sizeof *sge);
    if (!wr || !sge) {
        free(wr);
        free(sge);
        return fail(a, "out of memory");
    }
    for (uint64_t k = 0; k < s.n; k++) {
        wr[k] = like;
        wr[k].wr_id = s.wr + k * s.wrstep;
        wr[k].sg_list = sge_at(&s, sge, k);
        wr[k].num_sge = s.n_sge;
        wr[k].next = k + 1 < s.n ? &wr[k + 1] : NULL;
        /* The same place for rdma and atomic; UD has no remote address. */
        if (qp->qp_type != IBV_QPT_UD)
            wr[k].wr.rdma.remote_addr += k * rstride;
    }
    int error = ibv_post_send(qp, wr, &bad);
    int result = posted(a, error, error && bad ? (uint64_t)(bad - wr) : s.n);
    free(wr);
    free(sge);
    return result;
}

int verb_recv(const struct request *r, struct answer *a)
{
    struct series s;
    struct ibv_recv_wr *bad = NULL;
    struct ibv_qp *qp = NULL;
    struct ibv_srq *srq = NULL;
    if (given(r, "srq"))
        srq = object(r, a, "srq", SRQ);
    else
        qp = object(r, a, "qp", QP);
    if ((!qp && !srq) || !parse_series(r, a, &s))
        return -1;
    struct ibv_recv_wr *wr = calloc(s.n, sizeof *wr);
    struct ibv_sge *sge = calloc(s.n * (uint64_t)(s.n_sge + 1), sizeof *sge);
    if (!wr || !sge) {
        free(wr);
        free(sge);
        return fail(a, "out of memory");
    }
    for (uint64_t k = 0; k < s.n; k++) {
        wr[k].wr_id = s.wr + k * s.wrstep;
        wr[k].sg_list = sge_at(&s, sge, k);
        wr[k].num_sge = s.n_sge;
        wr[k].next = k + 1 < s.n ? &wr[k + 1] : NULL;
    }
    int error = srq ? ibv_post_srq_recv(srq, wr, &bad) : ibv_post_recv(qp, wr, &bad);
    int result = posted(a, error, error && bad ? (uint64_t)(bad - wr) : s.n);
    free(wr);
    free(sge);
    return result;
}

/* bind qp= mw= mr= off= len= access= [wr= flags=]: type 1 by ibv_bind_mw, type 2 by a request. */
int verb_bind(const struct request *r, struct answer *a)
{
    uint64_t off = 0, len = 0, access = 0, wr_id = 0, flags = IBV_SEND_SIGNALED;
    struct ibv_send_wr *bad = NULL;
    struct ibv_qp *qp = object(r, a, "qp", QP);
    struct ibv_mw *mw = qp ? object(r, a, "mw", MW) : NULL;
    struct memory *m = mw ? object(r, a, "mr", MR) : NULL;
    if (!m || !number(r, a, "off", UINT64_MAX, &off) || !number(r, a, "len", UINT64_MAX, &len) ||
        !number(r, a, "access", UINT32_MAX, &access) ||
        !number(r, a, "wr", UINT64_MAX, &wr_id) || !number(r, a, "flags", UINT32_MAX, &flags))
        return -1;
    struct ibv_mw_bind_info info = {
        .mr = m->mr,
        .addr = (uintptr_t)m->at + off,
        .length = len,
        .mw_access_flags = (unsigned)access,
    };
    int error;
    if (mw->type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind bind = {
            .wr_id = wr_id, .send_flags = (unsigned)flags, .bind_info = info};
        error = ibv_bind_mw(qp, mw, &bind);
    } else {
        struct ibv_send_wr wr = {
            .wr_id = wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = (unsigned)flags};
        wr.bind_mw.mw = mw;
        wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
        wr.bind_mw.bind_info = info;
        error = ibv_post_send(qp, &wr, &bad);
        if (!error)
            mw->rkey = wr.bind_mw.rkey;
    }
    if (!error)
        say(a, "rkey=0x%x", mw->rkey);
    return error ? fail_errno(a, error, "bind") : 0;
}

static void say_completion(struct answer *a, const struct ibv_wc *wc)
{
    /* Without one of the flags nothing was written there. */
    uint32_t imm = wc->wc_flags & (IBV_WC_WITH_INV | RXE_WC_WITH_INV) ? wc->invalidated_rkey
                   : wc->wc_flags & IBV_WC_WITH_IMM                   ? ntohl(wc->imm_data)
                                                                      : 0;
    say(a, "wc=%llu:%d:%d:%u:%u:0x%x:0x%x:0x%x:0x%x", (unsigned long long)wc->wr_id, wc->status,
        wc->opcode, wc->byte_len, wc->wc_flags, imm, wc->qp_num, wc->src_qp, wc->vendor_err);
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int verb_poll(const struct request *r, struct answer *a)
{
    static struct ibv_wc wc[MAX_POLL];
    uint64_t min = 1, max = MAX_POLL, timeout = 0;
    int n = 0, got;
    struct ibv_cq *cq = object(r, a, "cq", CQ);
    if (!cq || !number(r, a, "min", MAX_POLL, &min) || !number(r, a, "max", MAX_POLL, &max) ||
        !number(r, a, "timeout_ms", MAX_TIMEOUT_MS, &timeout))
        return -1;
    if (max < min)
        max = min;
    int64_t deadline = now_us() + (int64_t)timeout * 1000;
    for (;;) {
        bool late = now_us() >= deadline;
        got = ibv_poll_cq(cq, (int)max - n, wc + n);
        if (got < 0)
            return fail(a, "ibv_poll_cq says %d", got);
        n += got;
        if (n >= (int)min || late)
            break;
        /* The kernel's side of rxe needs the processor too. */
        if (!got) {
            check_host();
            usleep(100);
        }
    }
    say(a, "n=%d", n);
    for (int i = 0; i < n; i++)
        say_completion(a, &wc[i]);
    return 0;
}
