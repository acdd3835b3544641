/*
 * FLUSH and ATOMIC WRITE. The kernel has them since 6.2; the libibverbs of Debian 12 has no call
 * for them, but it has the extended interface, which lets a work request be written into the send
 * queue before the doorbell rings: an RDMA WRITE is, and made into the other there. The queue is
 * found among the mappings of the device, by its contents; its form is that of the kernel's
 * header, as it was before 6.2 and with what came then.
 */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <rdma/rdma_user_rxe.h>
#include <stdio.h>
#include <string.h>

/* What came with 6.2, in the same places of the union. */
struct flush_wr {
    uint64_t remote_addr;
    uint32_t length, rkey;
    uint8_t type, level;
};

/* The request of this wr_id at the place where the next one goes, in any send queue. */
static struct rxe_send_wqe *find(uint64_t wr)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    struct rxe_send_wqe *found = NULL;
    while (maps && !found && fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        if (!strstr(line, "/uverbs") || sscanf(line, "%lx-%lx rw", &start, &end) != 2)
            continue;
        const struct rxe_queue_buf *queue = (const struct rxe_queue_buf *)start;
        uint64_t next = queue->producer_index & queue->index_mask;
        uint64_t at = sizeof *queue + (next << (queue->log2_elem_size & 31));
        if (at + sizeof *found > end - start)
            continue;
        struct rxe_send_wqe *wqe = (struct rxe_send_wqe *)(start + at);
        if (wqe->wr.wr_id == wr && wqe->wr.opcode == IBV_WR_RDMA_WRITE)
            found = wqe;
    }
    if (maps)
        fclose(maps);
    return found;
}

int post_newer(struct ibv_qp *qp, const struct newer *what)
{
    static uint64_t unique = 0x6e65776572000000ull;
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    if (!ex)
        return EOPNOTSUPP;
    ibv_wr_start(ex);
    ex->wr_id = ++unique;
    ex->wr_flags = what->flags;
    ibv_wr_rdma_write(ex, what->rkey, what->remote);
    ibv_wr_set_sge_list(ex, 0, NULL);
    struct rxe_send_wqe *wqe = find(unique);
    if (!wqe) {
        ibv_wr_abort(ex);
        return ENOMEM;
    }
    wqe->wr.wr_id = what->wr;
    wqe->wr.opcode = what->opcode;
    wqe->iova = what->remote;
    wqe->dma.length = wqe->dma.resid = what->length;
    if (what->opcode == NEWER_FLUSH) {
        struct flush_wr flush = {what->remote, what->length, what->rkey, what->type, what->level};
        memcpy(&wqe->wr.wr, &flush, sizeof flush);
    } else {
        memcpy(wqe->dma.inline_data, &what->value, sizeof what->value);
    }
    return ibv_wr_complete(ex);
}
