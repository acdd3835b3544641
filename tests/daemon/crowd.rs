//! Many processes at once.

use std::time::Instant;

use rustix::process::{Resource, getrlimit, setrlimit};
use xroce_verbs::{Context, Qp, Rc};

use super::witness::{ALL, End};
use super::{Host, resident};

/// As many processes as `XROCE_DAEMON_CROWD` says (100 unless given), with ten queue pairs each.
#[test]
fn a_crowd_attaches_with_ten_queue_pairs_each() {
    let given = std::env::var("XROCE_DAEMON_CROWD").ok();
    let crowd: usize = given.map_or(100, |n| n.parse().unwrap());
    // Both sides of every descriptor are in this process.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let host = Host::start(|_| {});
    let before = resident();
    let began = Instant::now();
    let ends: Vec<End> = (0..crowd).map(|_| End::new(host.attach())).collect();
    let attached = began.elapsed();
    let with_sessions = resident();
    let began = Instant::now();
    let qps: Vec<Qp<Rc, _>> = ends
        .iter()
        .flat_map(|end| (0..10).map(move |_| end))
        .map(|end| {
            let qp = end
                .pd
                .qp::<Rc>(&end.cq, &end.cq)
                .max_send_wr(16)
                .max_recv_wr(16);
            qp.create().unwrap().init(ALL).unwrap()
        })
        .collect();
    let made = began.elapsed();
    let with_qps = resident();
    let count = u32::try_from(crowd).unwrap();
    println!(
        "crowd: {crowd} processes attached in {attached:?} ({:?} each, {} KiB each, both sides, with \
         64 KiB of memory and a completion queue of 1024); {} queue pairs in INIT in {made:?} ({:?} and \
         {} KiB each)",
        attached / count,
        (with_sessions.saturating_sub(before) / crowd as u64) >> 10,
        qps.len(),
        made / (10 * count),
        (with_qps.saturating_sub(with_sessions) / (10 * crowd as u64)) >> 10,
    );
    let sessions = host.daemon.sessions();
    assert_eq!(sessions.len(), crowd);
    assert!(sessions.iter().all(|s| s.objects == [10, 1, 0, 1, 0, 0]));
    let one_more: Context = host.attach();
    assert!(one_more.alloc_pd().is_ok());
    drop((qps, ends, one_more));
    host.wait_for(0);
}
