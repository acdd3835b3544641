//! IP and UDP headers for what a socket sent or received: the kernel wrote or took the real ones,
//! and these are made of what it told.
//!
//! Everything the ICRC covers is as it was on the wire, so that whoever reads the capture can check
//! it: addresses, ports, lengths, DF. The IPv4 identification, which a socket hides, is the one that
//! the ICRC of a whole packet fits, 0 otherwise. Hop limit and traffic class are known of what was
//! received if the kernel told; a hop limit that is not known is [`HOP_LIMIT`].

use xroce_wire::eth::ethertype;
use xroce_wire::frame::{Frame, MAX_GSO_ID, UdpMeta, bytes_after_id};
use xroce_wire::icrc::{ICRC_LEN, id_of_delta};
use xroce_wire::udp::ROCE_PORT;

/// Where none is known: the usual default of Linux.
const HOP_LIMIT: u8 = 64;
const UDP: u8 = 17;
const UDP_LEN: usize = 8;
const V4_LEN: usize = 20;

/// Makes a packet of `payload`, the first bytes of a UDP payload of `len` bytes.
pub(super) fn whole(udp: &UdpMeta, len: u32, payload: &[u8], packet: &mut Vec<u8>) {
    let len = len as usize;
    build(udp, len, payload, 0, packet);
    if payload.len() == len
        && let Some(id) = identification(packet)
    {
        build(udp, len, payload, id, packet);
    }
}

/// The identification, if the ICRC needs another one than 0 to be right.
fn identification(packet: &[u8]) -> Option<u16> {
    let frame = Frame::dissect(ethertype::IPV4, packet).ok()?;
    let received = frame.transport().last_chunk::<ICRC_LEN>()?;
    let computed = frame.icrc_computed()?;
    let delta = u32::from_le_bytes(computed) ^ u32::from_le_bytes(*received);
    let id = id_of_delta(bytes_after_id(frame.transport().len()), delta)?;
    (1..=MAX_GSO_ID).contains(&id).then_some(id)
}

/// A length as in a header; a datagram is never longer than fits.
fn length(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

fn build(udp: &UdpMeta, len: usize, payload: &[u8], id: u16, packet: &mut Vec<u8>) {
    packet.clear();
    let hops = udp.hop_limit.unwrap_or(HOP_LIMIT);
    let udp_len = length(UDP_LEN + len);
    // Senders of RoCEv2 leave the checksum 0, over IPv4 and IPv6.
    let ports = [udp.src_port.to_be_bytes(), ROCE_PORT.to_be_bytes()];
    if let (Some(src), Some(dst)) = (udp.src.v4(), udp.dst.v4()) {
        let mut ip = Vec::with_capacity(V4_LEN);
        ip.extend([0x45, udp.tos]);
        ip.extend(length(V4_LEN + UDP_LEN + len));
        ip.extend(id.to_be_bytes());
        // Don't fragment.
        ip.extend([0x40, 0, hops, UDP]);
        ip.extend(checksum([&ip, &src, &dst]));
        packet.extend(ip);
        packet.extend([src, dst].iter().flatten());
    } else {
        let [high, low] = [udp.tos >> 4, udp.tos << 4];
        packet.extend([0x60 | high, low, 0, 0]);
        packet.extend(udp_len);
        packet.extend([UDP, hops]);
        packet.extend([udp.src.bytes(), udp.dst.bytes()].iter().flatten());
    }
    packet.extend(ports.iter().flatten());
    packet.extend(udp_len);
    packet.extend([0, 0]);
    packet.extend_from_slice(payload);
}

/// The checksum of an IPv4 header in parts, each of whole words and without the checksum.
fn checksum(parts: [&[u8]; 3]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.as_chunks::<2>().0);
    let mut sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    length((!sum & 0xffff) as usize)
}
