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
// The first fragment of a RoCEv2 datagram to one of our addresses goes to the kernel too, but is
// counted: whoever misses his packets has to see why. Those behind it have no port to be known by.
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
#define IPV4_OFFSET 0x1fff
// The upper 13 bits; below are two reserved ones and "more fragments".
#define IPV6_OFFSET 0xfff8
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
	COUNT_FRAGMENTS,
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

// RFC 8200 section 4.5; no header of the kernel has it.
struct ipv6_fragment {
	__u8 nexthdr;
	__u8 reserved;
	__be16 frag_off;
	__be32 id;
};

// What a frame is to us.
enum kind {
	FOREIGN,
	OURS,
	OUR_FRAGMENT,
};

// Both return the UDP header, NULL if there is none, and whether it is that of a fragment.

static __always_inline struct udphdr *ipv4(struct iphdr *ip, void *end, struct gid *dst,
					   int *fragment)
{
	if (!FITS(ip, end) || ip->version != 4 || ip->ihl != IPV4_HEADER_WORDS)
		return NULL;
	if (ip->protocol != IPPROTO_UDP || (ip->frag_off & bpf_htons(IPV4_OFFSET)))
		return NULL;
	*fragment = (ip->frag_off & bpf_htons(IPV4_FRAGMENT)) != 0;
	dst->word[2] = bpf_htonl(0xffff);
	dst->word[3] = ip->daddr;
	return (struct udphdr *)(ip + 1);
}

static __always_inline struct udphdr *ipv6(struct ipv6hdr *ip, void *end, struct gid *dst,
					   int *fragment)
{
	struct ipv6_fragment *part = (void *)(ip + 1);

	if (!FITS(ip, end) || ip->version != 6)
		return NULL;
	dst->word[0] = ip->daddr.in6_u.u6_addr32[0];
	dst->word[1] = ip->daddr.in6_u.u6_addr32[1];
	dst->word[2] = ip->daddr.in6_u.u6_addr32[2];
	dst->word[3] = ip->daddr.in6_u.u6_addr32[3];
	if (ip->nexthdr == IPPROTO_UDP)
		return (struct udphdr *)(ip + 1);
	if (ip->nexthdr != IPPROTO_FRAGMENT || !FITS(part, end))
		return NULL;
	if (part->nexthdr != IPPROTO_UDP || (part->frag_off & bpf_htons(IPV6_OFFSET)))
		return NULL;
	*fragment = 1;
	return (struct udphdr *)(part + 1);
}

// Whether the frame is RoCEv2 to one of our addresses.
static __always_inline enum kind kind_of(void *data, void *end)
{
	__be16 proto = 0;
	void *l3 = network_header(data, end, &proto);
	struct gid dst = {};
	struct udphdr *udp = NULL;
	int fragment = 0;

	if (!l3)
		return FOREIGN;
	if (proto == bpf_htons(ETH_P_IP))
		udp = ipv4(l3, end, &dst, &fragment);
	else if (proto == bpf_htons(ETH_P_IPV6))
		udp = ipv6(l3, end, &dst, &fragment);
	if (!udp || !FITS(udp, end) || udp->dest != bpf_htons(ROCE_V2_PORT))
		return FOREIGN;
	if (!bpf_map_lookup_elem(&addresses, &dst))
		return FOREIGN;
	return fragment ? OUR_FRAGMENT : OURS;
}

SEC("xdp.frags")
int xroce_steer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	int action;

	switch (kind_of(data, end)) {
	case OURS:
		break;
	case OUR_FRAGMENT:
		count(COUNT_FRAGMENTS);
		return XDP_PASS;
	default:
		count(COUNT_PASSED);
		return XDP_PASS;
	}
	// The flags argument is what to return when the slot is empty.
	action = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
	count(action == XDP_REDIRECT ? COUNT_REDIRECTED : COUNT_NO_SOCKET);
	return action;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
