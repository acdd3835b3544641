//! What is below the transport: addresses, tags, padding, translation.

use xroce_net::datapath::{Datapath, Link, TxMeta};
use xroce_net::sim::{Impairment, SimPort, Verdict};
use xroce_proto::qp::QpState;
use xroce_proto::wc::WcStatus;
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::{Gid, PKey, PathMtu, Psn, Qpn, VlanTci};
use xroce_wire::opcode::Opcode;
use xroce_wire::template::{Emit, HeaderTemplate, Lower};

use crate::common::{Setup, World};
use crate::{MTU, SECOND, calm, capture, exchange, fast, finish, ids, ok, pair};

const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

fn lossy() -> [Impairment; 2] {
    let wire = Impairment {
        rate_bps: 10_000_000_000,
        loss_ppm: 5_000,
        corrupt_ppm: 5_000,
        ce_ppm: 50_000,
        ..Impairment::delay(1000)
    };
    [wire; 2]
}

#[test]
fn all_path_mtus_over_v4_v6_vlan_and_datagrams() {
    let v4 = Setup::default().ips;
    let tag = Some(VlanTci::new(0x6064));
    let ways = [
        (Link::Ethernet, v4, None),
        (Link::Ethernet, V6, None),
        (Link::Ethernet, v4, tag),
        (Link::Ethernet, V6, tag),
        (Link::Udp, v4, None),
        (Link::Udp, V6, None),
    ];
    for (link, ips, vlan) in ways {
        for mtu in PathMtu::ALL {
            let setup = Setup {
                seed: 1,
                wires: lossy(),
                link,
                ips,
                vlan,
                ..Setup::default()
            };
            let mut world = setup.build();
            let qpns = world.connect(mtu, [0xff_fffe, 0], |_| {}, fast);
            for len in [0, 1, 255, 4096, 65_537] {
                exchange(&mut world, qpns, len, SECOND);
            }
            let c = world.hosts[1].engine.qp_counters(qpns[1]).unwrap();
            assert!(c.ce_marked > 0, "{link:?} {vlan:?} {mtu:?} {c:?}");
            for host in &world.hosts {
                let stats = host.engine.stats();
                let bad = stats.bad_frames + stats.bad_packets + stats.icrc_errors;
                assert_eq!(stats.rx_frames, stats.delivered + bad + stats.unknown_qp);
            }
        }
    }
}

/// Rule W26.
#[test]
fn case_11_frames_leave_with_the_tag_of_the_path() {
    let tag = VlanTci::new(0x6064);
    let setup = Setup {
        vlan: Some(tag),
        ..calm()
    };
    let mut world = setup.build();
    let qpns = world.connect(MTU, [1, 1], |_| {}, fast);
    let frames = [world.link.there, world.link.back].map(|w| capture(&world, w, true));
    exchange(&mut world, qpns, 5000, SECOND);
    for frame in frames.iter().flat_map(|f| f.borrow().clone()) {
        assert_eq!(frame[12..16], [0x81, 0, 0x60, 0x64]);
    }
}

/// Hands a frame to the second host, as somebody on its switch.
fn inject(world: &mut World, port: &mut SimPort, bytes: &[u8]) {
    let room = port.tx_begin().unwrap();
    room[..bytes.len()].copy_from_slice(bytes);
    let meta = TxMeta {
        dst: Gid::default(),
        tos: 0,
    };
    port.tx_commit(&meta, bytes.len());
    port.tx_flush().unwrap();
    world.idle(10_000);
}

/// Rule W1.
#[test]
fn padding_behind_a_packet_is_not_looked_at() {
    let (mut world, links, mut port) = calm().build_with_intruder();
    let [a, b] = world.connect(MTU, [1, 1], |_| {}, fast);
    let frames = capture(&world, links[0].there, false);
    for (i, trailer) in [0, 1, 2, 4, 46, 500].into_iter().enumerate() {
        let [left, right] = &mut world.hosts;
        let len = [0, 1, 5, 1000, 8, 1024][i];
        let id = i as u64;
        let data = crate::common::pattern(id, len);
        left.region.write_at(0, &data).unwrap();
        right.post_recv(b, id, &[right.sge(0, len as u32)]);
        left.post_send(a, id, SendOp::Send, &[left.sge(0, len as u32)]);
        world.settle();
        let mut frame = frames.borrow_mut().pop().unwrap();
        frame.resize(frame.len() + trailer, 0x5a);
        inject(&mut world, &mut port, &frame);
        let received = world.hosts[1].completions();
        assert_eq!(ids(&received), ok(&[id]), "{trailer} bytes behind {len}");
        assert_eq!(received[0].byte_len as usize, len);
        assert!(world.hosts[1].bytes(0, len) == data);
        assert_eq!(ids(&world.hosts[0].completions()), ok(&[id]));
    }
}

/// A WRITE of one byte as a peer of `dest` would send it, from any address.
fn write_from(world: &World, src: Gid, dest: Qpn, psn: u32) -> Vec<u8> {
    let [left, right] = &world.hosts;
    let mut path = left.path_to(right);
    path.src = src;
    let template = HeaderTemplate::new(Lower::Ethernet, &path, dest, PKey::DEFAULT).unwrap();
    let emit = Emit {
        opcode: Opcode::RcWriteOnly,
        psn: Psn::new(psn),
        ack_req: true,
        solicited: false,
        payload_len: 1,
    };
    let mut frame = vec![0; template.max_len(1)];
    let mut out = template.start(&mut frame, &emit).unwrap();
    out.reth(&xroce_wire::reth::Reth {
        va: right.va(0),
        rkey: right.mr.rkey,
        len: 1,
    });
    out.payload_mut()[0] = 0xee;
    let len = out.finish();
    frame.truncate(len);
    frame
}

/// Rule W22.
#[test]
fn frames_from_a_wrong_address_are_ignored_and_counted() {
    let (mut world, _, mut port) = calm().build_with_intruder();
    let [a, b] = world.connect(MTU, [100, 200], |_| {}, fast);
    let foreign = Gid::from_v4([192, 0, 2, 9]);
    let frame = write_from(&world, foreign, b, 100);
    inject(&mut world, &mut port, &frame);
    assert_eq!(world.hosts[1].bytes(0, 1), [0]);
    let c = world.hosts[1].engine.qp_counters(b).unwrap();
    assert_eq!((c.discards, c.rx_packets, c.tx_packets), (1, 0, 0));
    // The same packet from the peer's address is the peer's: only the address made the difference.
    let own = world.hosts[0].gid;
    let frame = write_from(&world, own, b, 100);
    inject(&mut world, &mut port, &frame);
    assert_eq!(world.hosts[1].bytes(0, 1), [0xee]);
    let c = world.hosts[1].engine.qp_counters(b).unwrap();
    assert_eq!((c.discards, c.rx_packets), (1, 1));
    assert_eq!(world.hosts[0].engine.qp_state(a), Some(QpState::Rts));
}

/// Rule W22.
#[test]
fn frames_for_nobody_are_counted() {
    let (mut world, _, mut port) = calm().build_with_intruder();
    let [_, b] = world.connect(MTU, [100, 200], |_| {}, fast);
    let own = world.hosts[0].gid;
    let other = Qpn::new(b.value() + 1);
    let frame = write_from(&world, own, other, 100);
    inject(&mut world, &mut port, &frame);
    let stats = world.hosts[1].engine.stats();
    assert_eq!((stats.unknown_qp, stats.delivered), (1, 0));
}

/// Rewrites the source address of IPv4 frames and mends the header checksum, as a NAT does.
fn translate(frame: &mut [u8]) -> Verdict {
    if frame[12..14] == [8, 0] {
        frame[26..30].copy_from_slice(&[192, 0, 2, 200]);
        frame[24..26].fill(0);
        let sum: u32 = frame[14..34]
            .chunks(2)
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let check = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&check.to_be_bytes());
    }
    Verdict::Pass
}

#[test]
fn case_16_address_translation_shows_as_icrc_errors_and_is_named() {
    // Requests translated: the responder counts, the requester can only guess.
    let (mut world, [a, _]) = pair();
    world.net.set_filter(world.link.there, translate);
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    left.post_send(a, 1, SendOp::Write { va, rkey }, &[left.sge(0, 8)]);
    let (sent, _) = finish(&mut world, 1, 0, SECOND);
    assert_eq!(ids(&sent), [(1, WcStatus::RetryExcErr)]);
    let stats = world.hosts[1].engine.stats();
    assert_eq!((stats.icrc_errors, stats.delivered), (8, 0), "{stats:?}");
    let text = world.hosts[0].engine.failure(a).unwrap().to_string();
    assert!(text.contains("rewrites addresses or ports"), "{text}");

    // Answers translated: the requester sees them fail and says so.
    let (mut world, [a, _]) = pair();
    world.net.set_filter(world.link.back, translate);
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    left.post_send(a, 1, SendOp::Write { va, rkey }, &[left.sge(0, 8)]);
    let (sent, _) = finish(&mut world, 1, 0, SECOND);
    assert_eq!(ids(&sent), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(world.hosts[0].engine.stats().icrc_errors, 8);
    let text = world.hosts[0].engine.failure(a).unwrap().to_string();
    let words = "8 packets for this queue pair failed the ICRC check";
    assert!(text.contains(words) && text.contains("(NAT)"), "{text}");
}
