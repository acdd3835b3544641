//! BIND_MW among other requests (K6).

use super::*;
use crate::memory::Bind;
use crate::wc::WcOpcode;
use crate::wr::PostError;

use WcStatus::{MwBindErr, Success, WrFlushErr};

const WINDOW: RKey = RKey::new(0x500);

fn bind(rkey: RKey) -> SendOp {
    SendOp::BindMw {
        rkey,
        bind: Bind {
            lkey: LKey::new(KEY),
            va: Va::new(BASE + 8),
            len: 0x1_2345_6789,
            access: Access::REMOTE_READ | Access::ZERO_BASED,
        },
    }
}

fn post(t: &mut Bench, wr_id: u64, rkey: RKey, flags: SendFlags) {
    t.send_sges(wr_id, bind(rkey), &[], flags);
}

#[test]
fn it_reaches_memory_whole_and_completes_as_bind_mw() {
    let mut t = Bench::new();
    post(&mut t, 1, WINDOW, SendFlags::SIGNALED);
    t.expect_silence();
    let SendOp::BindMw { bind, .. } = bind(WINDOW) else {
        unreachable!()
    };
    assert_eq!(t.mem.binds, [(PD, OWN, WINDOW, bind)]);
    let wc = t.log.sends[0];
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode),
        (1, Success, WcOpcode::BindMw)
    );
    assert_eq!((wc.opcode as u8, wc.byte_len), (5, 0));
}

/// Rule R4.
#[test]
fn it_waits_for_all_before_it_and_holds_back_what_follows() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    post(&mut t, 2, WINDOW, SendFlags::SIGNALED);
    post(&mut t, 3, WINDOW, SendFlags::SIGNALED);
    t.send(4, SendOp::Send, 8);
    t.expect(&["SEND Only 100 A [8]"]);
    assert!(t.mem.binds.is_empty());
    t.rx(ack(0x100));
    assert!(t.qp.wants_to_send(t.now));
    t.expect(&["SEND Only 101 A [8]"]);
    assert_eq!(t.mem.binds.len(), 2);
    assert_eq!(t.sent(), [(1, Success), (2, Success), (3, Success)]);
    t.rx(ack(0x101));
    assert_eq!(t.sent(), [(4, Success)]);
}

#[test]
fn a_loss_before_it_is_repaired_first() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 2 * MTU as u32);
    post(&mut t, 2, WINDOW, SendFlags::SIGNALED);
    assert_eq!(t.tx().len(), 2);
    t.rx(nak(0x101, 0x60));
    t.expect(&["SEND Last 101 A [1024]"]);
    assert!(t.mem.binds.is_empty());
    t.rx(ack(0x101));
    t.expect_silence();
    assert_eq!(t.sent(), [(1, Success), (2, Success)]);
}

/// Rule K6.
#[test]
fn a_bind_that_fails_is_status_6_and_the_end() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    post(&mut t, 2, RKey::new(0xbad), SendFlags::empty());
    t.send(3, SendOp::Send, 8);
    t.recv(4, 8);
    t.tx();
    t.rx(ack(0x100));
    t.expect_silence();
    assert_eq!(t.sent(), [(1, Success), (2, MwBindErr), (3, WrFlushErr)]);
    assert_eq!(MwBindErr as u8, 6);
    assert_eq!(t.received(), [(4, WrFlushErr)]);
    assert_eq!(t.events(), [], "the completion says it");
    assert_eq!(t.qp.state(), QpState::Err);
    // In ERR it is flushed like any other.
    post(&mut t, 5, WINDOW, SendFlags::empty());
    assert_eq!(t.sent(), [(5, WrFlushErr)]);
}

#[test]
fn case_67_unsignaled_and_followed_by_a_fence() {
    let mut t = Bench::new();
    t.send(1, read(BASE), 8);
    post(&mut t, 2, WINDOW, SendFlags::empty());
    t.send_flags(3, SendOp::Send, 8, SendFlags::FENCE | SendFlags::SIGNALED);
    assert_eq!(t.tx().len(), 1);
    t.rx(response(Opcode::RcReadResponseOnly, 0x100, 8));
    t.expect(&["SEND Only 101 A [8]"]);
    assert_eq!(t.sent(), [(1, Success)]);
    assert_eq!(t.mem.binds.len(), 1);
}

#[test]
fn sqd_starts_none() {
    let mut t = Bench::new();
    t.qp.modify(&QpAttr::state(QpState::Sqd), &mut t.log)
        .unwrap();
    post(&mut t, 1, WINDOW, SendFlags::SIGNALED);
    t.expect_silence();
    assert_eq!(t.sent(), []);
    t.qp.modify(&QpAttr::state(QpState::Rts), &mut t.log)
        .unwrap();
    t.expect_silence();
    assert_eq!(t.sent(), [(1, Success)]);
}

#[test]
fn it_has_no_data() {
    let mut t = Bench::new();
    let wr = SendWr {
        wr_id: 1,
        op: bind(WINDOW),
        flags: SendFlags::empty(),
        data: Data::Sges(&[sge(0, 8)]),
    };
    let refused = t.qp.post_send(&wr, &mut t.log);
    assert_eq!(refused, Err(PostError::NoData { given: 8 }));
    assert_eq!(t.qp.sends_posted(), 0);
}
