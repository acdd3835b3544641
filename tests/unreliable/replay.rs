//! What rdma_rxe sent, played to an engine frame by frame: it receives what the peer of that time
//! received.

use xroce_net::datapath::{Datapath, TxMeta};
use xroce_net::sim::{LoopConfig, LoopPort, loop_pair};
use xroce_proto::qp::{QpInit, QpType};
use xroce_proto::time::Instant;
use xroce_proto::wc::{WcFlags, WcOpcode, WcStatus};
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{MacAddr, PathMtu, Qpn};
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;

use crate::captured;
use crate::common::{Host, gid};
use crate::{QKEY, raise_uc, raise_ud};

/// Bytes of a message of the recordings: the same from the start of each.
fn sent(len: usize) -> Vec<u8> {
    (0..len).map(|j| (7 * j + (j >> 8)) as u8).collect()
}

/// Distance of the places where messages go.
const SLOT: u64 = 8192;

struct Player {
    host: Host<LoopPort>,
    wire: LoopPort,
    qpn: Qpn,
    frames: Vec<Vec<u8>>,
}

impl Player {
    /// An engine with a QP that has the number the recording's packets are for.
    fn new(name: &str, qp_type: QpType, qpn: u32) -> Self {
        let (port, wire) = loop_pair(&LoopConfig::default());
        let mut host = Host::new(port, "10.77.0.11", 1, 1 << 20);
        let mut init = QpInit::rc(host.pd, host.cq, host.cq);
        init.qp_type = qp_type;
        while host.engine.create_qp(&init).unwrap() != Qpn::new(qpn) {}
        let is_ours = |frame: &Vec<u8>| {
            Frame::parse_ethernet(frame).is_ok_and(|f| {
                Packet::parse(f.transport()).is_ok_and(|p| p.dest_qp() == Qpn::new(qpn))
            })
        };
        let frames = captured::frames(name).into_iter().filter(is_ours).collect();
        Self {
            host,
            wire,
            qpn: Qpn::new(qpn),
            frames,
        }
    }

    fn path(&self, peer: &str) -> AddressVector {
        AddressVector {
            src: self.host.gid,
            dst: gid(peer),
            src_mac: self.host.mac,
            dst_mac: MacAddr::new([0x52, 0x54, 0, 0x77, 0, 0x0a]),
            vlan: None,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            src_port: 0xc000,
        }
    }

    fn uc(name: &str, qpn: u32) -> Self {
        let mut player = Self::new(name, QpType::Uc, qpn);
        let path = player.path("10.77.0.10");
        let psns = [0x12_3456, 0xff_fffc];
        raise_uc(
            &mut player.host,
            Qpn::new(qpn),
            path,
            PathMtu::Mtu1024,
            Qpn::new(qpn),
            psns,
        );
        player
    }

    fn recvs(&mut self, n: u64, len: u32) {
        for i in 0..n {
            let sge = self.host.sge(i * SLOT, len);
            self.host.post_recv(self.qpn, i, &[sge]);
        }
    }

    fn play(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            let room = self.wire.tx_begin().unwrap();
            room[..frame.len()].copy_from_slice(frame);
            let meta = TxMeta {
                dst: self.host.gid,
                tos: 0,
            };
            self.wire.tx_commit(&meta, frame.len());
            self.host.engine.poll_once(Instant::from_nanos(1)).unwrap();
        }
        let answered = self.wire.rx_burst(1, &mut |_| {}).unwrap();
        assert_eq!(answered, 0, "nothing is answered");
        let stats = self.host.engine.stats();
        assert_eq!(stats.delivered, frames.len() as u64, "{stats:?}");
    }
}

const SIZES: [usize; 9] = [1, 13, 64, 1024, 1025, 3077, 0, 7, 2050];

#[test]
fn uc_sends_of_rxe() {
    let mut player = Player::uc("uc_send_v4.pcap", 0x22);
    player.recvs(9, SLOT as u32);
    let frames = player.frames.clone();
    assert_eq!(frames.len(), 15);
    player.play(&frames);
    let received = player.host.completions();
    assert_eq!(received.len(), 9);
    for (i, (wc, len)) in received.iter().zip(SIZES).enumerate() {
        assert_eq!((wc.wr_id, wc.status), (i as u64, WcStatus::Success));
        assert_eq!(wc.byte_len as usize, len);
        assert!(player.host.bytes(i as u64 * SLOT, len) == sent(len));
    }
    assert!(received[2].flags.contains(WcFlags::SOLICITED));
    assert_eq!(received[7].imm, [0xca, 0xfe, 0, 7]);
    assert_eq!(received[8].imm, [0xca, 0xfe, 0, 8]);
}

#[test]
fn uc_sends_of_rxe_with_a_packet_missing() {
    // The Middle of the message of 3077 bytes, or its First, or its Last.
    for missing in 6..10 {
        let mut player = Player::uc("uc_send_v4.pcap", 0x22);
        player.recvs(9, SLOT as u32);
        let mut frames = player.frames.clone();
        frames.remove(missing);
        player.play(&frames);
        let received = player.host.completions();
        let lens: Vec<_> = received.iter().map(|wc| wc.byte_len).collect();
        assert_eq!(lens, [1, 13, 64, 1024, 1025, 0, 7, 2050], "{missing}");
        assert!(player.host.bytes(7 * SLOT, 2050) == sent(2050));
    }
}

/// A frame whose RETH names another place.
fn redirected(frame: &[u8], va: u64, rkey: u32) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let f = Frame::parse_ethernet(&frame).unwrap();
    let bth = 14 + 20 + 8;
    let len = bth + f.transport().len();
    frame[bth + 12..bth + 20].copy_from_slice(&va.to_be_bytes());
    frame[bth + 20..bth + 24].copy_from_slice(&rkey.to_be_bytes());
    let icrc = Frame::parse_ethernet(&frame).unwrap().icrc_computed();
    frame[len - 4..len].copy_from_slice(&icrc.unwrap());
    frame
}

#[test]
fn uc_writes_of_rxe() {
    let mut player = Player::uc("uc_write_v4.pcap", 0x23);
    player.recvs(9, 0);
    let mut n = 0;
    let mut frames = player.frames.clone();
    let (base, rkey) = (player.host.va(0), player.host.mr.rkey);
    for frame in &mut frames {
        let has_reth = {
            let f = Frame::parse_ethernet(frame).unwrap();
            Packet::parse(f.transport()).unwrap().reth().is_some()
        };
        if has_reth {
            let va = base.wrapping_add(n * SLOT + 3);
            *frame = redirected(frame, va.value(), rkey.value());
            n += 1;
        }
    }
    player.play(&frames);
    let sizes = [1, 13, 64, 1024, 1025, 3077, 0, 16, 2050];
    for (i, len) in sizes.into_iter().enumerate() {
        assert!(
            player.host.bytes(i as u64 * SLOT + 3, len) == sent(len),
            "{len}"
        );
    }
    let received = player.host.completions();
    let told: Vec<_> = received
        .iter()
        .map(|wc| (wc.opcode, wc.byte_len, wc.imm))
        .collect();
    let opcode = WcOpcode::RecvRdmaWithImm;
    assert_eq!(
        told,
        [
            (opcode, 16, [0xbe, 0xef, 0, 7]),
            (opcode, 2050, [0xbe, 0xef, 0, 8])
        ]
    );
}

/// Rules UD2, UD3.
#[test]
fn ud_datagrams_of_rxe() {
    for (name, qpn, peer, lens) in [
        ("ud_send_v4.pcap", 0x16, "10.77.0.10", [1, 13, 512, 1024, 9]),
        (
            "ud_send_v4_mtu4096.pcap",
            0x20,
            "10.77.0.10",
            [1, 13, 512, 4096, 9],
        ),
        ("ud_send_v6.pcap", 0x1f, "fd77::a", [1, 13, 512, 1024, 9]),
    ] {
        let mut player = Player::new(name, QpType::Ud, qpn);
        raise_ud(&mut player.host, Qpn::new(qpn), QKEY);
        player.recvs(5, SLOT as u32);
        let frames = player.frames.clone();
        player.play(&frames);
        let received = player.host.completions();
        assert_eq!(received.len(), 5, "{name}");
        for (i, wc) in received.iter().enumerate() {
            let f = Frame::parse_ethernet(&frames[i]).unwrap();
            let deth = Packet::parse(f.transport()).unwrap().deth().unwrap();
            assert_eq!(f.src(), gid(peer));
            assert_eq!((wc.status, wc.src_qp), (WcStatus::Success, deth.src_qp));
            assert!(wc.flags.contains(WcFlags::GRH));
            let at = i as u64 * SLOT;
            let len = wc.byte_len as usize - 40;
            assert_eq!(len, lens[i], "{name}");
            // The header as it was on the wire (UD2).
            let ip = if f.src().v4().is_some() { 20 } else { 40 };
            let grh = player.host.bytes(at, 40);
            assert_eq!(grh[40 - ip..], frames[i][14..14 + ip]);
            assert!(grh[..40 - ip].iter().all(|&b| b == 0));
            assert!(player.host.bytes(at + 40, len) == sent(len), "{name} {len}");
        }
        assert_eq!(received[4].imm, [0xab, 0xcd, 0, 4]);
    }
}
