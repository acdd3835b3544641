//! UC stories: what is lost is lost whole.

use xroce_net::datapath::Link;
use xroce_net::sim::Impairment;
use xroce_proto::qp::QpState;
use xroce_proto::wc::{WcFlags, WcOpcode, WcStatus};
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::PathMtu;

use crate::common::{Setup, pattern};
use crate::{connect_uc, lose};

const MTU: PathMtu = PathMtu::Mtu1024;
const MS: u64 = 1_000_000;

#[test]
fn case_14_every_size_at_every_path_mtu() {
    for (link, ips) in [
        (Link::Ethernet, ["192.0.2.1", "192.0.2.2"]),
        (Link::Ethernet, ["2001:db8::1", "2001:db8::2"]),
        (Link::Udp, ["192.0.2.1", "192.0.2.2"]),
    ] {
        for mtu in PathMtu::ALL {
            let setup = Setup {
                link,
                ips,
                ..Setup::default()
            };
            let mut world = setup.build();
            let [a, b] = connect_uc(&mut world, mtu, [0xff_fffe, 7]);
            let m = mtu.bytes();
            for len in [0, 1, m - 1, m, m + 1, 2 * m, 2 * m + 1] {
                let data = pattern(len as u64, len);
                let [left, right] = &mut world.hosts;
                left.region.write_at(0, &data).unwrap();
                let whole = left.sge(0, len as u32);
                let (va, rkey) = (right.va(1 << 20), right.mr.rkey);
                right.post_recv(b, 1, &[right.sge(1 << 18, len as u32)]);
                right.post_recv(b, 2, &[]);
                left.post_send(a, 1, SendOp::Send, &[whole]);
                let imm = len.to_be_bytes()[4..].try_into().unwrap();
                left.post_send(a, 2, SendOp::WriteImm { va, rkey, imm }, &[whole]);
                world.idle(MS);
                let [left, right] = &mut world.hosts;
                let sent: Vec<_> = left.completions();
                assert!(sent.iter().all(|wc| wc.status == WcStatus::Success));
                assert_eq!(sent.len(), 2);
                let received = right.completions();
                assert_eq!(received.len(), 2, "{len} of {mtu:?} on {link:?}");
                assert_eq!(received[0].opcode, WcOpcode::Recv);
                assert_eq!(received[1].opcode, WcOpcode::RecvRdmaWithImm);
                assert_eq!(received[1].imm, imm);
                assert_eq!(received[1].flags, WcFlags::WITH_IMM);
                assert!(received.iter().all(|wc| wc.byte_len == len as u32));
                assert!(right.bytes(1 << 18, len) == data);
                assert!(right.bytes(1 << 20, len) == data);
            }
            for host in &world.hosts {
                assert_eq!(host.engine.next_deadline(), None);
            }
        }
    }
}

#[test]
fn a_message_vanishes_with_any_of_its_packets() {
    // Of nine packets of three messages each is lost in turn.
    for lost in 0..9u32 {
        let mut world = Setup::default().build();
        let [a, b] = connect_uc(&mut world, MTU, [0x100, 7]);
        lose(&world, world.link.there, move |pkt| {
            pkt.psn().value() == 0x100 + lost
        });
        let data: Vec<_> = (0..3u64).map(|n| pattern(n + 1, 3000)).collect();
        for (n, data) in data.iter().enumerate() {
            let at = n as u64 * 4096;
            let [left, right] = &mut world.hosts;
            left.region.write_at(at, data).unwrap();
            left.post_send(a, n as u64, SendOp::Send, &[left.sge(at, 3000)]);
            right.post_recv(b, n as u64, &[right.sge(at, 4096)]);
        }
        world.idle(MS);
        // Nobody at the sender learns of it.
        assert_eq!(world.hosts[0].completions().len(), 3);
        let received = world.hosts[1].completions();
        let arrived: Vec<_> = (0..3).filter(|&n| n != lost as usize / 3).collect();
        assert_eq!(received.len(), 2, "{lost}");
        for (n, (wc, of)) in received.iter().zip(arrived).enumerate() {
            assert_eq!((wc.wr_id, wc.byte_len), (n as u64, 3000));
            assert!(
                world.hosts[1].bytes(n as u64 * 4096, 3000) == data[of],
                "{lost}"
            );
        }
        let engine = &world.hosts[1].engine;
        assert_eq!(engine.qp_state(b), Some(QpState::Rts));
        assert!(engine.qp_counters(b).unwrap().out_of_sequence > 0 || lost == 8);
    }
}

#[test]
fn a_write_without_its_last_packet_tells_nobody() {
    let mut world = Setup::default().build();
    let [a, b] = connect_uc(&mut world, MTU, [0x100, 7]);
    lose(&world, world.link.there, |pkt| pkt.psn().value() == 0x102);
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    right.post_recv(b, 9, &[]);
    for n in 0..2 {
        let imm = [n; 4];
        let op = SendOp::WriteImm { va, rkey, imm };
        left.post_send(a, u64::from(n), op, &[left.sge(0, 3000)]);
    }
    world.idle(MS);
    let received = world.hosts[1].completions();
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].wr_id, received[0].imm), (9, [1; 4]));
}

#[test]
fn a_corrupted_packet_is_a_lost_one() {
    let wire = Impairment {
        corrupt_ppm: 1_000_000,
        ..Impairment::delay(1000)
    };
    let mut world = Setup {
        wires: [wire; 2],
        ..Setup::default()
    }
    .build();
    let [a, b] = connect_uc(&mut world, MTU, [0x100, 7]);
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 1, &[right.sge(0, 64)]);
    left.post_send(a, 1, SendOp::Send, &[left.sge(0, 64)]);
    world.idle(MS);
    assert_eq!(world.hosts[0].completions().len(), 1);
    assert_eq!(world.hosts[1].completions(), []);
}

#[test]
fn a_peer_with_another_address_is_not_heard() {
    let mut world = Setup::default().build();
    let [a, b] = connect_uc(&mut world, MTU, [0x100, 7]);
    // A third QP that says it is a neighbour of the first.
    let stranger = world.create_qp(0, |init| init.qp_type = xroce_proto::qp::QpType::Uc);
    let mut path = world.hosts[0].path_to(&world.hosts[1]);
    path.src = crate::common::gid("192.0.2.66");
    crate::raise_uc(&mut world.hosts[0], stranger, path, MTU, b, [0x100, 7]);
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 1, &[right.sge(0, 64)]);
    left.post_send(stranger, 1, SendOp::Send, &[left.sge(0, 64)]);
    world.idle(MS);
    assert_eq!(world.hosts[1].completions(), []);
    let [left, _] = &mut world.hosts;
    left.post_send(a, 1, SendOp::Send, &[left.sge(0, 64)]);
    world.idle(MS);
    assert_eq!(world.hosts[1].completions().len(), 1);
}
