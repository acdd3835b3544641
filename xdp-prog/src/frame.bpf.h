// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// The beginning of an Ethernet frame, for all programs here.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

// Whether [p, p + sizeof *p) is inside the frame; the verifier wants to see each of these.
#define FITS(p, end) ((void *)((p) + 1) <= (end))

// Where the network header starts, behind at most one 802.1Q tag, and its EtherType; NULL if the
// frame is too short.
static __always_inline void *network_header(void *data, void *end, __be16 *proto)
{
	struct ethhdr *eth = data;
	struct vlan_tag *tag = (void *)(eth + 1);

	if (!FITS(eth, end))
		return NULL;
	*proto = eth->h_proto;
	if (*proto != bpf_htons(ETH_P_8021Q))
		return tag;
	if (!FITS(tag, end))
		return NULL;
	*proto = tag->proto;
	return tag + 1;
}
