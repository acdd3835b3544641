//! Processes that never poll, and those that come and go all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xroce_verbs::{Event, RecvBatch, SendBatch};

use super::witness::{self, End, Witness, pair};
use super::{Host, LONG, resident, rounds};

#[test]
fn who_never_polls_overruns_its_own_queue() {
    let host = Host::start(|_| {});
    let before = witness::undisturbed(&host);
    let witness = Witness::start(&host);
    let [near, far] = [(); 2].map(|()| End::new(host.attach()));
    let small = near.context.create_cq(16).unwrap();
    let qp = near.pd.qp::<xroce_verbs::Rc>(&small, &small);
    let qp = qp.max_send_wr(1024).create().unwrap();
    let a = qp.init(witness::ALL).unwrap();
    let qp = far.pd.qp::<xroce_verbs::Rc>(&far.cq, &far.cq);
    let b = qp.create().unwrap().init(witness::ALL).unwrap();
    let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    let attr = xroce_verbs::ConnectAttr::default();
    let a = a.connect(&ends[1], &attr).unwrap();
    let _b = b.connect(&ends[0], &attr).unwrap();
    let mut batch = SendBatch::new();
    let there = far.mr.remote().unwrap();
    for n in 0..1000 {
        batch.write(n, there).inline(b"x");
    }
    a.post(&batch).unwrap();
    // The ring is full, then the engine's queue: it is told, and nobody else is.
    let event = near.context.wait_event(LONG).unwrap().unwrap();
    assert!(small.is_source_of(&event), "{event:?}");
    assert_eq!(event.event, Event::CqErr);
    // It can still take what there was.
    let first = small.poll_one().unwrap().unwrap();
    assert_eq!(first.ok().unwrap().wr_id, 0);
    std::thread::sleep(std::time::Duration::from_millis(200));
    witness::print("stalled", &before, &witness.finish());
}

/// One that keeps its queues full all the time: others have their turn all the same.
#[test]
fn who_floods_the_daemon_shares_it() {
    let host = Host::start(|_| {});
    let before = witness::undisturbed(&host);
    let witness = Witness::start(&host);
    let stop = Arc::new(AtomicBool::new(false));
    let ends = [(); 2].map(|()| End::new(host.attach()));
    let flood = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let [a, _b] = pair(&ends[0], &ends[1]);
            let there = ends[1].mr.remote().unwrap();
            let mut one = SendBatch::new();
            one.write(1, there)
                .sge(ends[0].mr.slice(0..16_384).unwrap());
            let mut done = 0u64;
            while !stop.load(Ordering::Relaxed) {
                // Until the queue is full.
                while a.post(&one).is_ok() {}
                while let Some(wc) = ends[0].cq.poll_one().unwrap() {
                    wc.ok().unwrap();
                    done += 1;
                }
            }
            done
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(20 * rounds()));
    let during = witness.finish();
    stop.store(true, Ordering::Relaxed);
    let done = flood.join().unwrap();
    println!("flood: {done} WRITEs of 16 KiB beside the others");
    assert!(done > 0);
    witness::print("flood", &before, &during);
}

#[test]
fn connections_that_come_and_go_leave_the_memory_flat() {
    let host = Host::start(|_| {});
    let before = witness::undisturbed(&host);
    let witness = Witness::start(&host);
    let stop = Arc::new(AtomicBool::new(false));
    let socket = host.socket();
    let churn = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut count = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let attach = || End::new(xroce_verbs::Context::attach(&socket, None).unwrap());
                let ends = [attach(), attach()];
                let [a, b] = pair(&ends[0], &ends[1]);
                let mut receive = RecvBatch::new();
                receive.recv(1).sge(ends[1].mr.slice(0..64).unwrap());
                b.post_recv(&receive).unwrap();
                let mut batch = SendBatch::new();
                batch.send(2).inline(b"short");
                a.post(&batch).unwrap();
                let wc = ends[1].cq.next(LONG).unwrap().unwrap();
                assert_eq!(wc.ok().unwrap().byte_len, 5);
                count += 1;
            }
            count
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(10 * rounds()));
    let settled = resident();
    std::thread::sleep(std::time::Duration::from_millis(20 * rounds()));
    stop.store(true, Ordering::Relaxed);
    let count = churn.join().unwrap();
    host.wait_for(2);
    let grown = resident().saturating_sub(settled) >> 20;
    println!("churn: {count} connections, memory grew by {grown} MiB in the last two thirds");
    assert!(count > 0 && grown < 16, "{grown} MiB");
    witness::print("churn", &before, &witness.finish());
    host.wait_for(0);
}
