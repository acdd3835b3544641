//! Two engines, one story per test.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic, and its sizes are small"
)]

mod common;

use common::{World, pattern};
use xroce_net::sim::Impairment;
use xroce_proto::cc::{CongestionControl, Fixed, Rate};
use xroce_proto::qp::QpState;
use xroce_proto::wc::{WcFlags, WcOpcode, WcStatus};
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::PathMtu;

const SIZES: [usize; 12] = [0, 1, 2, 3, 33, 255, 256, 257, 1024, 4097, 65_536, 1_048_577];

#[test]
fn send_write_and_read_of_all_sizes_at_every_path_mtu() {
    for mtu in PathMtu::ALL {
        let wire = Impairment {
            rate_bps: 100_000_000_000,
            ..Impairment::delay(1000)
        };
        let mut world = World::new(1, wire, wire);
        let [a, b] = world.connect(mtu, [0xff_fffe, 0x12_3456], |_| {}, |_| {});
        for (i, len) in SIZES.into_iter().enumerate() {
            let data = pattern(i as u64, len);
            let [left, right] = &mut world.hosts;
            left.region.write_at(0, &data).unwrap();
            let whole = left.sge(0, len as u32);
            let (remote, rkey) = (right.va(0), right.mr.rkey);

            right.post_recv(b, 1, &[right.sge(1 << 21, len as u32)]);
            left.post_send(a, 2, SendOp::SendImm([1, 2, 3, 4]), &[whole]);
            left.post_send(a, 3, SendOp::Write { va: remote, rkey }, &[whole]);
            let back = left.sge(1 << 21, len as u32);
            left.post_send(a, 4, SendOp::Read { va: remote, rkey }, &[back]);

            let mut sent = Vec::new();
            let mut received = Vec::new();
            assert!(world.run(10_000_000_000, |w| {
                sent.extend(w.hosts[0].completions());
                received.extend(w.hosts[1].completions());
                sent.len() == 3 && received.len() == 1
            }));
            let ok = |c: &xroce_proto::wc::Completion| c.status == WcStatus::Success;
            assert!(sent.iter().all(ok), "{sent:?}");
            assert_eq!(sent.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [2, 3, 4]);
            let wc = received[0];
            assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv));
            assert_eq!((wc.byte_len as usize, wc.imm), (len, [1, 2, 3, 4]));
            assert!(wc.flags.contains(WcFlags::WITH_IMM));
            assert!(
                world.hosts[1].bytes(1 << 21, len) == data,
                "SEND {len} at {mtu:?}"
            );
            assert!(
                world.hosts[1].bytes(0, len) == data,
                "WRITE {len} at {mtu:?}"
            );
            assert!(
                world.hosts[0].bytes(1 << 21, len) == data,
                "READ {len} at {mtu:?}"
            );
        }
        let counters = world.hosts[0].engine.qp_counters(a).unwrap();
        assert_eq!(
            (counters.retransmits, counters.timeouts),
            (0, 0),
            "{counters:?}"
        );
    }
}

#[test]
fn a_rate_limit_holds_and_the_timer_wakes_the_paced_queue_pair() {
    // The wheel asked a paced QP for ever, at the same time, once its turn had come.
    let mut world = World::new(1, Impairment::delay(1000), Impairment::delay(1000));
    let slow = CongestionControl::Fixed(Fixed::new(Rate::bits_per_second(1_000_000_000), 64));
    let [a, _] = world.connect(
        PathMtu::Mtu1024,
        [1, 1],
        |_| {},
        |attr| {
            if attr.state == Some(QpState::Rts) {
                attr.congestion = Some(slow.clone());
            }
        },
    );
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    left.post_send(a, 1, SendOp::Write { va, rkey }, &[left.sge(0, 1 << 20)]);
    let mut done = Vec::new();
    assert!(world.run(50_000_000, |w| {
        done.extend(w.hosts[0].completions());
        !done.is_empty()
    }));
    assert_eq!(done[0].status, WcStatus::Success);
    // 1024 packets of 1082 bytes and 24 around them at 1 Gb/s, the first 20 µs at once.
    let us = world.net.now() / 1000;
    assert!((9000..9100).contains(&us), "{us} µs");
}
