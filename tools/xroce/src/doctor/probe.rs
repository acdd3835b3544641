//! Probes: UD SENDs with a right ICRC, so that whatever is on the way takes them for what they are,
//! RoCEv2. The payload says which run, train and packet it is.

use xroce_net::datapath::{Link, Rx};
use xroce_wire::deth::Deth;
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{Gid, PKey, Psn, QKey, Qpn};
use xroce_wire::opcode::Opcode;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::template::{Emit, HeaderTemplate, Lower, TemplateError};
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of the payload.
const MAGIC: [u8; 8] = *b"xroceDOC";
/// Shortest payload: the stamp.
pub(crate) const PAYLOAD_MIN: u32 = 24;
/// What a UD SEND lacks in headers against the longest packet with a full payload, RDMA WRITE with
/// immediate data (RETH 16, immediate 4, instead of DETH 8), in bytes.
pub(crate) const SHORTER_BY: u32 = 12;
/// Longest payload: that of path MTU 4096 and the headers it stands for.
pub(crate) const PAYLOAD_MAX: u32 = 4096 + SHORTER_BY;
/// Bytes from BTH to ICRC beside the payload, and UDP: 8 + 12 + 8 + 4.
const AROUND: u32 = 32;

/// The start of the payload.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct StampWire {
    magic: [u8; 8],
    run: U64,
    train: U32,
    number: U32,
}

/// Which probe it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    /// Run of the doctor.
    pub run: u64,
    /// Train within the run.
    pub train: u32,
    /// Packet within the train.
    pub number: u32,
}

impl Stamp {
    /// Writes it to the start of `payload`; the rest becomes zero.
    pub(crate) fn write(self, payload: &mut [u8]) {
        payload.fill(0);
        let wire = StampWire {
            magic: MAGIC,
            run: U64::new(self.run),
            train: U32::new(self.train),
            number: U32::new(self.number),
        };
        // Payloads are checked to be long enough.
        let _ = wire.write_to_prefix(payload);
    }

    /// From the start of a payload, if it has one.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let (wire, _) = StampWire::read_from_prefix(payload).ok()?;
        (wire.magic == MAGIC).then(|| Self {
            run: wire.run.get(),
            train: wire.train.get(),
            number: wire.number.get(),
        })
    }
}

/// What the headers of a probe that came say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// Source address.
    pub src: Gid,
    /// UDP source port.
    pub src_port: u16,
    /// Traffic class; without DSCP over a socket.
    pub class: u8,
    /// TTL or hop limit, if known.
    pub hop_limit: Option<u8>,
    /// Whether the ICRC is that of the bytes that came.
    pub icrc_ok: bool,
}

/// IP packet length of a probe with `payload` bytes, which is padded to a multiple of four.
pub(crate) fn ip_len(payload: u32, v4: bool) -> u32 {
    payload.next_multiple_of(4) + AROUND + if v4 { 20 } else { 40 }
}

/// Writes probes for one peer.
#[derive(Debug)]
pub(crate) struct Writer {
    template: HeaderTemplate,
    qkey: QKey,
}

impl Writer {
    /// Over the path `av` to the peer's queue pair `to`.
    ///
    /// # Errors
    /// The path contradicts itself.
    pub(crate) fn new(link: Link, av: &AddressVector, to: Qpn) -> Result<Self, TemplateError> {
        let lower = match link {
            Link::Ethernet => Lower::Ethernet,
            Link::Udp => Lower::Udp,
        };
        Ok(Self {
            template: HeaderTemplate::new(lower, av, to, PKey::DEFAULT)?,
            qkey: QKey::new(1),
        })
    }

    /// Writes one into `frame`; its length. `None` if the frame is too short.
    pub(crate) fn write(&self, frame: &mut [u8], stamp: Stamp, payload: u32) -> Option<usize> {
        let emit = Emit {
            opcode: Opcode::UdSendOnly,
            psn: Psn::new(stamp.number & 0x00ff_ffff),
            ack_req: false,
            solicited: false,
            payload_len: payload as usize,
        };
        let mut packet = self.template.start(frame, &emit)?;
        packet.deth(&Deth {
            qkey: self.qkey,
            src_qp: self.template.dest_qp(),
        });
        stamp.write(packet.payload_mut());
        Some(packet.finish())
    }
}

/// The probe in a received frame, if it is one.
pub(crate) fn read(rx: Rx<'_>) -> Option<(Stamp, Arrival)> {
    let frame = match rx {
        Rx::Ethernet(bytes) => Frame::parse_ethernet(bytes).ok()?,
        Rx::Udp(meta, bytes) => Frame::from_udp(&meta, bytes),
    };
    let packet = Packet::parse(frame.transport()).ok()?;
    if packet.opcode() != Opcode::UdSendOnly {
        return None;
    }
    let stamp = Stamp::read(packet.payload())?;
    let arrival = Arrival {
        src: frame.src(),
        src_port: frame.src_port(),
        class: frame.tos(),
        hop_limit: frame.hop_limit(),
        icrc_ok: frame.icrc_ok(),
    };
    Some((stamp, arrival))
}

#[cfg(test)]
mod tests {
    use xroce_wire::newtypes::MacAddr;

    use super::*;

    fn av(src: [u8; 4]) -> AddressVector {
        AddressVector {
            src: Gid::from_v4(src),
            dst: Gid::from_v4([10, 0, 0, 2]),
            src_mac: MacAddr::new([2, 0, 0, 0, 0, 1]),
            dst_mac: MacAddr::new([2, 0, 0, 0, 0, 2]),
            vlan: None,
            traffic_class: 0x6a,
            hop_limit: 64,
            flow_label: 0,
            src_port: 0xc000,
        }
    }

    #[test]
    fn a_probe_says_what_it_is_and_how_it_came() {
        let writer = Writer::new(Link::Ethernet, &av([10, 0, 0, 1]), Qpn::new(77)).unwrap();
        let stamp = Stamp {
            run: u64::MAX,
            train: 3,
            number: 19_999,
        };
        for payload in [PAYLOAD_MIN, 25, 1024, PAYLOAD_MAX] {
            let mut frame = vec![0xee; 5000];
            let len = writer.write(&mut frame, stamp, payload).unwrap();
            assert_eq!(len - 14, ip_len(payload, true) as usize);
            let (got, arrival) = read(Rx::Ethernet(&frame[..len])).unwrap();
            assert_eq!(got, stamp);
            assert_eq!(arrival.src, Gid::from_v4([10, 0, 0, 1]));
            assert_eq!((arrival.class, arrival.src_port), (0x6a, 0xc000));
            assert!(arrival.icrc_ok);
            // A byte of the payload that changed on the way.
            frame[14 + 20 + 8 + 12 + 8 + 20] ^= 1;
            assert!(!read(Rx::Ethernet(&frame[..len])).unwrap().1.icrc_ok);
        }
    }

    #[test]
    fn the_longest_probe_is_as_long_as_the_longest_packet() {
        // Ethernet aside: IPv4, UDP, BTH, RETH, immediate data, payload, ICRC.
        assert_eq!(ip_len(PAYLOAD_MAX, true), 20 + 8 + 12 + 16 + 4 + 4096 + 4);
        assert_eq!(ip_len(PAYLOAD_MAX, false), 40 + 8 + 12 + 16 + 4 + 4096 + 4);
    }

    #[test]
    fn other_frames_are_no_probes() {
        assert!(read(Rx::Ethernet(&[0; 60])).is_none());
        assert!(Stamp::read(b"xroceDOC").is_none());
        assert!(Stamp::read(&[0; 64]).is_none());
    }
}
