/* The verbs objects of rxe0, by kind and id. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#define DEVICE "rxe0"
#define PAGE 4096ull
#define SPARE_MEMORY (16ull << 20) /* that registered memory leaves to all others */
#define MAX_EVENTS 256 /* of one answer */

struct ibv_context *device;
struct ibv_pd *pd;

static void *objects[KINDS][MAX_OBJECTS];
static const char *const names[KINDS] = {"mr", "cq", "qp", "srq", "ah", "mw"};

int device_open(struct answer *a)
{
    int n, flags;
    struct ibv_device **list = ibv_get_device_list(&n);
    for (int i = 0; list && i < n && !device; i++)
        if (!strcmp(ibv_get_device_name(list[i]), DEVICE))
            device = ibv_open_device(list[i]);
    int error = errno;
    if (list)
        ibv_free_device_list(list);
    if (!device)
        return fail_errno(a, error, "open " DEVICE);
    flags = fcntl(device->async_fd, F_GETFL);
    fcntl(device->async_fd, F_SETFL, flags | O_NONBLOCK);
    pd = ibv_alloc_pd(device);
    return pd ? 0 : fail_errno(a, errno, "allocate a PD");
}

static void **slot(const struct request *r, struct answer *a, const char *key, enum kind kind)
{
    uint64_t id = 0;
    if (!required(r, a, key, MAX_OBJECTS - 1, &id))
        return NULL;
    return &objects[kind][id];
}

void *object(const struct request *r, struct answer *a, const char *key, enum kind kind)
{
    void **at = slot(r, a, key, kind);
    if (at && !*at)
        fail(a, "there is no %s %.32s", names[kind], text(r, key, ""));
    return at ? *at : NULL;
}

/* Where a new object goes: an id that is free. */
static void **fresh(const struct request *r, struct answer *a, enum kind kind)
{
    void **at = slot(r, a, "id", kind);
    if (at && *at) {
        fail(a, "%s %.32s is there already", names[kind], text(r, "id", ""));
        return NULL;
    }
    return at;
}

static int keep(struct answer *a, enum kind kind, void **at, void *made)
{
    *at = made;
    return made ? 0 : fail_errno(a, errno, "create %s", names[kind]);
}

/* Groups that queue pairs are in: a member cannot be destroyed. */
#define MAX_MEMBERSHIPS 64
static struct {
    struct ibv_qp *qp;
    union ibv_gid gid;
} memberships[MAX_MEMBERSHIPS];

/* Ends all memberships of a queue pair. */
static void leave_groups(struct ibv_qp *qp)
{
    for (int i = 0; i < MAX_MEMBERSHIPS; i++) {
        if (memberships[i].qp == qp) {
            ibv_detach_mcast(qp, &memberships[i].gid, 0);
            memberships[i].qp = NULL;
        }
    }
}

/* Attaches or detaches, and remembers it. */
static int member(struct ibv_qp *qp, const union ibv_gid *gid, bool attach)
{
    int at = -1;
    for (int i = 0; i < MAX_MEMBERSHIPS && at < 0; i++) {
        bool same = memberships[i].qp == qp && !memcmp(&memberships[i].gid, gid, sizeof *gid);
        if (attach ? !memberships[i].qp : same)
            at = i;
    }
    if (attach && at < 0)
        return ENOSPC;
    int error = attach ? ibv_attach_mcast(qp, gid, 0) : ibv_detach_mcast(qp, gid, 0);
    if (!error && at >= 0) {
        memberships[at].qp = attach ? qp : NULL;
        memberships[at].gid = *gid;
    }
    return error;
}

/* Returns an errno. */
static int destroy(enum kind kind, void **at)
{
    int error = 0;
    if (kind == MR) {
        struct memory *m = *at;
        error = m->mr ? ibv_dereg_mr(m->mr) : 0;
        if (!error) {
            munmap(m->at, m->mapped);
            free(m);
        }
    } else if (kind == CQ) {
        error = ibv_destroy_cq(*at);
    } else if (kind == QP) {
        leave_groups(*at);
        error = ibv_destroy_qp(*at);
    } else if (kind == SRQ) {
        error = ibv_destroy_srq(*at);
    } else if (kind == AH) {
        error = ibv_destroy_ah(*at);
    } else {
        error = ibv_dealloc_mw(*at);
    }
    if (!error)
        *at = NULL;
    return error;
}

int verb_reset(const struct request *r, struct answer *a)
{
    (void)r;
    /* Users before what they use. A window of type 2 uses the QP that it was bound by: rxe would
     * wait for it for ever. */
    static const enum kind order[] = {MW, QP, AH, SRQ, CQ, MR};
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (int id = 0; id < MAX_OBJECTS; id++) {
            void **at = &objects[order[k]][id];
            int error = *at ? destroy(order[k], at) : 0;
            if (error)
                return fail_errno(a, error, "destroy %s %d", names[order[k]], id);
        }
    if (pd)
        ibv_dealloc_pd(pd);
    if (device)
        ibv_close_device(device);
    pd = NULL;
    device = NULL;
    return device_open(a);
}

int verb_mr(const struct request *r, struct answer *a)
{
    uint64_t len = 0, access = 0;
    struct sysinfo info;
    void **at = fresh(r, a, MR);
    if (!at || !required(r, a, "len", UINT64_MAX, &len) ||
        !number(r, a, "access", UINT32_MAX, &access))
        return -1;
    /* It will be pinned: without this the kernel would kill, and most likely this program. */
    sysinfo(&info);
    uint64_t room = (uint64_t)info.freeram * info.mem_unit;
    if (len > room || room - len < SPARE_MEMORY)
        return fail(a, "len=%llu: %llu bytes are free", (unsigned long long)len,
                    (unsigned long long)room);
    struct memory *m = calloc(1, sizeof *m);
    if (!m)
        return fail(a, "out of memory");
    m->len = len;
    m->mapped = (len + PAGE - 1) / PAGE * PAGE;
    if (!m->mapped)
        m->mapped = PAGE;
    m->at = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->at == MAP_FAILED) {
        free(m);
        return fail_errno(a, errno, "map %llu bytes", (unsigned long long)len);
    }
    m->mr = ibv_reg_mr(pd, m->at, len, (int)access);
    if (!m->mr) {
        int error = errno;
        munmap(m->at, m->mapped);
        free(m);
        return fail_errno(a, error, "register memory");
    }
    *at = m;
    say(a, "addr=0x%llx lkey=0x%x rkey=0x%x", (unsigned long long)(uintptr_t)m->at, m->mr->lkey,
        m->mr->rkey);
    return 0;
}

static int destroy_one(const struct request *r, struct answer *a, enum kind kind)
{
    if (!object(r, a, "id", kind))
        return -1;
    int error = destroy(kind, slot(r, a, "id", kind));
    return error ? fail_errno(a, error, "destroy %s", names[kind]) : 0;
}

int verb_dereg(const struct request *r, struct answer *a)
{
    return destroy_one(r, a, MR);
}

int verb_destroy(const struct request *r, struct answer *a)
{
    const char *kind = text(r, "kind", "");
    for (int k = 0; k < KINDS; k++)
        if (!strcmp(names[k], kind))
            return destroy_one(r, a, (enum kind)k);
    return fail(a, "kind=%.32s: one of mr, cq, qp, srq, ah, mw", kind);
}

int verb_cq(const struct request *r, struct answer *a)
{
    uint64_t depth = 256;
    void **at = fresh(r, a, CQ);
    if (!at || !number(r, a, "depth", INT32_MAX, &depth))
        return -1;
    return keep(a, CQ, at, ibv_create_cq(device, (int)depth, NULL, NULL, 0));
}

int verb_srq(const struct request *r, struct answer *a)
{
    uint64_t wr = 64, sge = 1;
    void **at = fresh(r, a, SRQ);
    if (!at || !number(r, a, "wr", UINT32_MAX, &wr) || !number(r, a, "sge", UINT32_MAX, &sge))
        return -1;
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = (uint32_t)wr, .max_sge = (uint32_t)sge}};
    return keep(a, SRQ, at, ibv_create_srq(pd, &attr));
}

/* Arms the event of an SRQ. */
int verb_limit(const struct request *r, struct answer *a)
{
    uint64_t limit = 0;
    struct ibv_srq *srq = object(r, a, "srq", SRQ);
    if (!srq || !required(r, a, "limit", UINT32_MAX, &limit))
        return -1;
    struct ibv_srq_attr attr = {.srq_limit = (uint32_t)limit};
    int error = ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT);
    return error ? fail_errno(a, error, "set the limit") : 0;
}

int verb_qp(const struct request *r, struct answer *a)
{
    uint64_t swr = 64, rwr = 64, ssge = 4, rsge = 4, inl = 0, sig_all = 0;
    void **at = fresh(r, a, QP);
    struct ibv_qp_init_attr_ex attr = {.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
    const char *type = text(r, "type", "rc");
    if (!at || !number(r, a, "swr", UINT32_MAX, &swr) || !number(r, a, "rwr", UINT32_MAX, &rwr) ||
        !number(r, a, "ssge", UINT32_MAX, &ssge) || !number(r, a, "rsge", UINT32_MAX, &rsge) ||
        !number(r, a, "inline", UINT32_MAX, &inl) || !number(r, a, "sig_all", 1, &sig_all))
        return -1;
    if (!strcmp(type, "rc"))
        attr.qp_type = IBV_QPT_RC;
    else if (!strcmp(type, "uc"))
        attr.qp_type = IBV_QPT_UC;
    else if (!strcmp(type, "ud"))
        attr.qp_type = IBV_QPT_UD;
    else
        return fail(a, "type=%.32s: one of rc, uc, ud", type);
    if (!(attr.send_cq = object(r, a, "scq", CQ)) || !(attr.recv_cq = object(r, a, "rcq", CQ)) ||
        (given(r, "srq") && !(attr.srq = object(r, a, "srq", SRQ))))
        return -1;
    attr.cap = (struct ibv_qp_cap){(uint32_t)swr, (uint32_t)rwr, (uint32_t)ssge, (uint32_t)rsge,
                                   (uint32_t)inl};
    attr.sq_sig_all = (int)sig_all;
    if (attr.qp_type == IBV_QPT_RC) {
        /* For post_newer(). */
        attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
    }
    struct ibv_qp *qp = ibv_create_qp_ex(device, &attr);
    if (qp)
        say(a, "qpn=0x%x", qp->qp_num);
    return keep(a, QP, at, qp);
}

int verb_ah(const struct request *r, struct answer *a)
{
    struct ibv_ah_attr attr = {0};
    void **at = fresh(r, a, AH);
    if (!at || !address(r, a, &attr))
        return -1;
    return keep(a, AH, at, ibv_create_ah(pd, &attr));
}

int verb_mw(const struct request *r, struct answer *a)
{
    uint64_t type = 1;
    void **at = fresh(r, a, MW);
    if (!at || !number(r, a, "type", 2, &type))
        return -1;
    struct ibv_mw *mw = ibv_alloc_mw(pd, type == 2 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
    if (mw)
        say(a, "rkey=0x%x", mw->rkey);
    return keep(a, MW, at, mw);
}

int verb_mcast(const struct request *r, struct answer *a)
{
    uint64_t attach = 1;
    union ibv_gid gid;
    struct ibv_qp *qp = object(r, a, "qp", QP);
    if (!qp || !number(r, a, "attach", 1, &attach))
        return -1;
    if (!parse_hex(text(r, "gid", ""), gid.raw, sizeof gid.raw))
        return fail(a, "gid= needs 32 hex digits");
    int error = member(qp, &gid, attach != 0);
    return error ? fail_errno(a, error, attach ? "attach" : "detach") : 0;
}

/* What an event is about: our id of the object, or the port. */
static void say_event(struct answer *a, const struct ibv_async_event *event)
{
    enum kind kind = KINDS;
    const void *element = NULL;
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
        kind = CQ;
        element = event->element.cq;
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        kind = QP;
        element = event->element.qp;
        break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        kind = SRQ;
        element = event->element.srq;
        break;
    default:
        break;
    }
    if (kind == KINDS) {
        say(a, "event=%d:port:%d", event->event_type, event->element.port_num);
        return;
    }
    for (int id = 0; id < MAX_OBJECTS; id++)
        if (objects[kind][id] == element)
            say(a, "event=%d:%s:%d", event->event_type, names[kind], id);
}

int verb_events(const struct request *r, struct answer *a)
{
    uint64_t timeout = 0;
    struct ibv_async_event event;
    if (!number(r, a, "timeout_ms", 60000, &timeout))
        return -1;
    struct pollfd ready = {.fd = device->async_fd, .events = POLLIN};
    poll(&ready, 1, (int)timeout);
    for (int n = 0; n < MAX_EVENTS && !ibv_get_async_event(device, &event); n++) {
        say_event(a, &event);
        ibv_ack_async_event(&event);
    }
    return 0;
}
