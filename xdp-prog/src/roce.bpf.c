// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Steers RoCEv2 frames to AF_XDP sockets, passes everything else.
//
// A frame is ours when all of this holds; any other frame, damaged ones included, goes to the
// kernel as if this program did not exist, so ARP, ping and ssh keep working:
//   - Ethernet, at most one 802.1Q tag (two tags, 802.1ad: not ours);
//   - IPv4 with a header of 20 bytes and not a fragment, or IPv6 with UDP as its first header;
//   - UDP to port 4791;
//   - the destination address is in `addresses`;
//   - `sockets` holds a socket for the queue the frame arrived on.
//
// "xdp.frags": the program never looks past the first buffer, and without the suffix drivers
// refuse it on links whose MTU does not fit a page.

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include "frame.bpf.h"

#define ROCE_V2_PORT 4791
// Reserved bit, DF, MF and offset: all but the first two must be zero.
#define IPV4_FRAGMENT 0x3fff
#define IPV4_HEADER_WORDS 5

// Limits; roce.rs names the same numbers.
#define MAX_QUEUES 256
#define MAX_ADDRESSES 1024

// A GID: IPv6 address, or IPv4 address mapped into ::ffff:0:0/96. Network order.
struct gid {
	__be32 word[4];
};

enum counter {
	COUNT_PASSED,
	COUNT_REDIRECTED,
	COUNT_NO_SOCKET,
	COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, MAX_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ADDRESSES);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__type(key, struct gid);
	__type(value, __u32);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&counters, &which);

	// Per CPU, and the program does not interrupt itself: no atomic needed.
	if (n)
		*n += 1;
}

static __always_inline struct udphdr *ipv4(struct iphdr *ip, void *end, struct gid *dst)
{
	if (!FITS(ip, end) || ip->version != 4 || ip->ihl != IPV4_HEADER_WORDS)
		return NULL;
	if (ip->protocol != IPPROTO_UDP || (ip->frag_off & bpf_htons(IPV4_FRAGMENT)))
		return NULL;
	dst->word[2] = bpf_htonl(0xffff);
	dst->word[3] = ip->daddr;
	return (struct udphdr *)(ip + 1);
}

static __always_inline struct udphdr *ipv6(struct ipv6hdr *ip, void *end, struct gid *dst)
{
	if (!FITS(ip, end) || ip->version != 6 || ip->nexthdr != IPPROTO_UDP)
		return NULL;
	dst->word[0] = ip->daddr.in6_u.u6_addr32[0];
	dst->word[1] = ip->daddr.in6_u.u6_addr32[1];
	dst->word[2] = ip->daddr.in6_u.u6_addr32[2];
	dst->word[3] = ip->daddr.in6_u.u6_addr32[3];
	return (struct udphdr *)(ip + 1);
}

// Whether the frame is RoCEv2 to one of our addresses.
static __always_inline int is_ours(void *data, void *end)
{
	__be16 proto = 0;
	void *l3 = network_header(data, end, &proto);
	struct gid dst = {};
	struct udphdr *udp = NULL;

	if (!l3)
		return 0;
	if (proto == bpf_htons(ETH_P_IP))
		udp = ipv4(l3, end, &dst);
	else if (proto == bpf_htons(ETH_P_IPV6))
		udp = ipv6(l3, end, &dst);
	if (!udp || !FITS(udp, end) || udp->dest != bpf_htons(ROCE_V2_PORT))
		return 0;
	return bpf_map_lookup_elem(&addresses, &dst) != NULL;
}

SEC("xdp.frags")
int xroce_steer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	int action;

	if (!is_ours(data, end)) {
		count(COUNT_PASSED);
		return XDP_PASS;
	}
	// The flags argument is what to return when the slot is empty.
	action = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
	count(action == XDP_REDIRECT ? COUNT_REDIRECTED : COUNT_NO_SOCKET);
	return action;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
