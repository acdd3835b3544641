// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// A learning Ethernet switch of up to 64 ports whose egress ports have a phantom queue each: a
// counter that fills with every frame and drains at a set rate. Frames are forwarded at once, never
// held; what a queue of that length would have done to them is done: ECN-capable IP packets are
// marked CE (RED: above kmin with a probability that rises to pmax at kmax, above kmax always),
// frames that do not fit into the limit are dropped. Beside that, a share of frames can be dropped at
// random.
//
// Frames to a station not learned yet, broadcasts and multicasts go to all other ports, past the
// queues. A frame whose station is behind the port it came from is dropped.

#include <linux/ip.h>
#include <linux/ipv6.h>

#include "frame.bpf.h"

// Limits; hop.rs names the same numbers.
#define MAX_PORTS 64
#define MAX_STATIONS 4096
// Buckets of the histogram: the last is for a full queue.
#define BUCKETS 128

#define NSEC_PER_SEC 1000000000ULL
// Preamble, start delimiter, FCS and gap around each frame.
#define AROUND_FRAME 24
// A pause after which any queue is empty; dt * rate stays below 2^64 up to 147 Gb/s.
#define LONG_PAUSE NSEC_PER_SEC
#define PPM 1000000

#define ECN_MASK 3
#define ECN_CE 3

// What user space sets. All bytes are bytes on the wire.
struct queue_config {
	__u64 rate;	// bytes per second; 0: no queue
	__u64 limit;	// bytes
	__u64 kmin;	// bytes
	__u64 kmax;	// bytes
	__u32 pmax;	// of a million
	__u32 loss;	// of a million
};

// What it reads.
struct queue {
	struct bpf_spin_lock lock;
	__u32 _pad;
	__u64 backlog;		// bytes
	__u64 last;		// ns, when it was drained
	__u64 remainder;	// of the draining, in bytes / NSEC_PER_SEC
	__u64 frames;		// forwarded
	__u64 bytes;		// forwarded
	__u64 marked;
	__u64 overflowed;
	__u64 lost;		// at random
	__u64 deepest;		// bytes
	__u64 seen[BUCKETS];	// frames, by the backlog they found
};

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

// From the interface's index to the port.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} port_of SEC(".maps");

// From a MAC address, in the lower 48 bits as the machine reads it, to the port it is behind. LRU:
// forged source addresses push out the oldest, no more.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_STATIONS);
	__type(key, __u64);
	__type(value, __u32);
} stations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct queue_config);
} configs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

static __always_inline __u64 mac_key(const __u8 *mac)
{
	return (__u64)mac[0] << 40 | (__u64)mac[1] << 32 | (__u64)mac[2] << 24 |
	       (__u64)mac[3] << 16 | (__u64)mac[4] << 8 | mac[5];
}

// Sets CE in an ECN-capable IP packet; returns whether it did, or it was there.
static __always_inline int mark(void *data, void *end)
{
	__be16 proto = 0;
	void *l3 = network_header(data, end, &proto);

	if (!l3)
		return 0;
	if (proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = l3;
		__u32 sum;

		if (!FITS(ip, end) || !(ip->tos & ECN_MASK))
			return 0;
		if ((ip->tos & ECN_MASK) == ECN_CE)
			return 1;
		// RFC 1624, equation 3: the word of version, IHL and TOS grows by the bits set.
		sum = (__u16)~bpf_ntohs(ip->check);
		sum += ECN_CE - (ip->tos & ECN_MASK);
		sum = (sum & 0xffff) + (sum >> 16);
		ip->check = bpf_htons((__u16)~sum);
		ip->tos |= ECN_CE;
		return 1;
	}
	if (proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = l3;

		// ECN is in the upper half of the second byte.
		if (!FITS(ip, end) || !(ip->flow_lbl[0] & (ECN_MASK << 4)))
			return 0;
		ip->flow_lbl[0] |= ECN_CE << 4;
		return 1;
	}
	return 0;
}

enum verdict { FORWARD, FORWARD_MARKED, DROP };

// One frame of `len` bytes on the wire through the queue.
static __always_inline enum verdict enqueue(const struct queue_config *config, struct queue *queue,
					    __u64 len)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 chance = bpf_get_prandom_u32() % PPM;
	__u32 luck = bpf_get_prandom_u32() % PPM;
	enum verdict verdict = FORWARD;
	__u64 rate = config->rate, limit = config->limit, backlog;

	bpf_spin_lock(&queue->lock);
	backlog = queue->backlog;
	// Another CPU may have been here with a later time.
	if (now > queue->last) {
		__u64 pause = now - queue->last;

		if (pause >= LONG_PAUSE) {
			backlog = 0;
			queue->remainder = 0;
		} else {
			__u64 drained = pause * rate + queue->remainder;

			queue->remainder = drained % NSEC_PER_SEC;
			drained /= NSEC_PER_SEC;
			backlog = backlog > drained ? backlog - drained : 0;
		}
		queue->last = now;
	}
	if (limit) {
		__u64 bucket = backlog * (BUCKETS - 1) / limit;

		if (bucket < BUCKETS)
			queue->seen[bucket] += 1;
	}
	if (luck < config->loss) {
		verdict = DROP;
		queue->lost += 1;
	} else if (rate && backlog + len > limit) {
		verdict = DROP;
		queue->overflowed += 1;
	} else {
		if (rate) {
			if (backlog > config->kmax)
				verdict = FORWARD_MARKED;
			else if (backlog > config->kmin &&
				 chance * (config->kmax - config->kmin) <
					 config->pmax * (backlog - config->kmin))
				verdict = FORWARD_MARKED;
			backlog += len;
			if (backlog > queue->deepest)
				queue->deepest = backlog;
		}
		queue->frames += 1;
		queue->bytes += len;
	}
	queue->backlog = backlog;
	bpf_spin_unlock(&queue->lock);
	return verdict;
}

SEC("xdp.frags")
int xroce_hop(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	__u32 in = ctx->ingress_ifindex;
	__u64 from, to, len;
	__u32 *port, *out, which;
	struct queue_config *config;
	struct queue *queue;
	enum verdict verdict;

	if (!FITS(eth, end))
		return XDP_DROP;
	port = bpf_map_lookup_elem(&port_of, &in);
	if (!port)
		return XDP_DROP;
	from = mac_key(eth->h_source);
	// A group address is nobody's.
	if (!(eth->h_source[0] & 1)) {
		__u32 *known = bpf_map_lookup_elem(&stations, &from);

		if (!known || *known != *port)
			bpf_map_update_elem(&stations, &from, port, BPF_ANY);
	}
	to = mac_key(eth->h_dest);
	out = eth->h_dest[0] & 1 ? NULL : bpf_map_lookup_elem(&stations, &to);
	if (!out)
		return bpf_redirect_map(&ports, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
	which = *out;
	if (which == *port)
		return XDP_DROP;
	config = bpf_map_lookup_elem(&configs, &which);
	queue = bpf_map_lookup_elem(&queues, &which);
	if (!config || !queue)
		return XDP_DROP;
	len = bpf_xdp_get_buff_len(ctx) + AROUND_FRAME;
	verdict = enqueue(config, queue, len);
	if (verdict == DROP)
		return XDP_DROP;
	if (verdict == FORWARD_MARKED && mark(data, end)) {
		bpf_spin_lock(&queue->lock);
		queue->marked += 1;
		bpf_spin_unlock(&queue->lock);
	}
	return bpf_redirect_map(&ports, which, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
