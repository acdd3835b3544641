/* States of queue pairs: modify and query. */
#include "agent.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PORT 1
#define PSN_MAX 0xffffff

static const char *const states[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "err"};
#define N_STATES (sizeof states / sizeof *states)

/* gid_index, dgid, hop, tclass, flow and sl, of an AH or a path. */
bool address(const struct request *r, struct answer *a, struct ibv_ah_attr *ah)
{
    uint64_t index = 0, hop = 64, tclass = 0, flow = 0, sl = 0;
    if (!number(r, a, "gid_index", 255, &index) || !number(r, a, "hop", 255, &hop) ||
        !number(r, a, "tclass", 255, &tclass) || !number(r, a, "flow", 0xfffff, &flow) ||
        !number(r, a, "sl", 15, &sl))
        return false;
    if (!parse_hex(text(r, "dgid", ""), ah->grh.dgid.raw, sizeof ah->grh.dgid.raw)) {
        fail(a, "dgid= needs 32 hex digits");
        return false;
    }
    ah->is_global = 1;
    ah->port_num = PORT;
    ah->sl = (uint8_t)sl;
    ah->grh.sgid_index = (uint8_t)index;
    ah->grh.hop_limit = (uint8_t)hop;
    ah->grh.traffic_class = (uint8_t)tclass;
    ah->grh.flow_label = (uint32_t)flow;
    return true;
}

int verb_modify(const struct request *r, struct answer *a)
{
    struct ibv_qp_attr attr = {0};
    int mask = IBV_QP_STATE;
    size_t state = 0;
    uint64_t access = 0, qkey = 0, mtu = 0, dqpn = 0, rq_psn = 0, rd_in = 0, rnr_timer = 0;
    uint64_t sq_psn = 0, timeout = 0, retry = 0, rnr = 0, rd_out = 0;
    const struct {
        const char *key;
        uint64_t max, *value;
        int mask;
    } fields[] = {
        {"access", INT32_MAX, &access, IBV_QP_ACCESS_FLAGS},
        {"qkey", UINT32_MAX, &qkey, IBV_QP_QKEY},
        {"mtu", 5, &mtu, IBV_QP_PATH_MTU},
        {"dqpn", PSN_MAX, &dqpn, IBV_QP_DEST_QPN},
        {"rq_psn", PSN_MAX, &rq_psn, IBV_QP_RQ_PSN},
        {"rd_in", 255, &rd_in, IBV_QP_MAX_DEST_RD_ATOMIC},
        {"rnr_timer", 31, &rnr_timer, IBV_QP_MIN_RNR_TIMER},
        {"sq_psn", PSN_MAX, &sq_psn, IBV_QP_SQ_PSN},
        {"timeout", 31, &timeout, IBV_QP_TIMEOUT},
        {"retry", 7, &retry, IBV_QP_RETRY_CNT},
        {"rnr", 7, &rnr, IBV_QP_RNR_RETRY},
        {"rd_out", 255, &rd_out, IBV_QP_MAX_QP_RD_ATOMIC},
    };
    struct ibv_qp *qp = object(r, a, "qp", QP);
    if (!qp)
        return -1;
    while (state < N_STATES && strcmp(states[state], text(r, "state", "")))
        state++;
    if (state == N_STATES)
        return fail(a, "state=%.32s: one of reset, init, rtr, rts, sqd, err", text(r, "state", ""));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (!number(r, a, fields[i].key, fields[i].max, fields[i].value))
            return -1;
        if (given(r, fields[i].key))
            mask |= fields[i].mask;
    }
    if (given(r, "dgid")) {
        if (!address(r, a, &attr.ah_attr))
            return -1;
        mask |= IBV_QP_AV;
    }
    if (state == IBV_QPS_INIT)
        mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    attr.qp_state = (enum ibv_qp_state)state;
    attr.port_num = PORT;
    attr.qp_access_flags = (unsigned)access;
    attr.qkey = (uint32_t)qkey;
    attr.path_mtu = (enum ibv_mtu)mtu;
    attr.dest_qp_num = (uint32_t)dqpn;
    attr.rq_psn = (uint32_t)rq_psn;
    attr.max_dest_rd_atomic = (uint8_t)rd_in;
    attr.min_rnr_timer = (uint8_t)rnr_timer;
    attr.sq_psn = (uint32_t)sq_psn;
    attr.timeout = (uint8_t)timeout;
    attr.retry_cnt = (uint8_t)retry;
    attr.rnr_retry = (uint8_t)rnr;
    attr.max_rd_atomic = (uint8_t)rd_out;
    int error = ibv_modify_qp(qp, &attr, mask);
    return error ? fail_errno(a, error, "modify to %s", states[state]) : 0;
}

int verb_query(const struct request *r, struct answer *a)
{
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init = {0};
    struct ibv_qp *qp = object(r, a, "qp", QP);
    if (!qp)
        return -1;
    int mask = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_AV | IBV_QP_CAP | IBV_QP_SQ_PSN |
               IBV_QP_RQ_PSN | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU | IBV_QP_ACCESS_FLAGS |
               IBV_QP_QKEY | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
               IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC;
    int error = ibv_query_qp(qp, &attr, mask, &init);
    if (error)
        return fail_errno(a, error, "query");
    say(a, "state=%s qpn=0x%x sq_psn=0x%x rq_psn=0x%x dqpn=0x%x qkey=0x%x",
        attr.qp_state < N_STATES ? states[attr.qp_state] : "unknown", qp->qp_num, attr.sq_psn,
        attr.rq_psn, attr.dest_qp_num, attr.qkey);
    say(a, "mtu=%d access=0x%x timeout=%u retry=%u rnr=%u rnr_timer=%u rd_out=%u rd_in=%u",
        attr.path_mtu, attr.qp_access_flags, attr.timeout, attr.retry_cnt, attr.rnr_retry,
        attr.min_rnr_timer, attr.max_rd_atomic, attr.max_dest_rd_atomic);
    say(a, "swr=%u rwr=%u ssge=%u rsge=%u inline=%u", attr.cap.max_send_wr, attr.cap.max_recv_wr,
        attr.cap.max_send_sge, attr.cap.max_recv_sge, attr.cap.max_inline_data);
    return 0;
}
