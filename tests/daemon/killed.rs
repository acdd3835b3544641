//! Processes that are killed at any moment.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use xroce_verbs::{Context, RecvBatch, SendBatch, SrqInfo, Type1};

use super::witness::{self, ALL, End, Witness, pair};
use super::{Host, Random, descriptors, resident, rounds};

const SOCKET: &str = "XROCE_TEST_VICTIM";

/// Makes, uses and drops objects of every kind until it is killed. Does nothing unless it is the
/// child of the test below.
#[test]
fn victim() {
    let Ok(socket) = std::env::var(SOCKET) else {
        return;
    };
    loop {
        let contexts = [(); 2].map(|()| Context::attach(socket.as_ref(), None));
        // The daemon does not let in more than it has said.
        let [Ok(near), Ok(far)] = contexts else {
            continue;
        };
        let [near, far] = [near, far].map(End::new);
        let [a, b] = pair(&near, &far);
        let srq = near.pd.create_srq(&SrqInfo::default()).unwrap();
        let rights = ALL | xroce_verbs::Access::MW_BIND;
        let mr = near.pd.alloc_mr(1 << 16, rights).unwrap();
        let mut window = near.pd.alloc_mw::<Type1>().unwrap();
        let part = mr.slice(0..64).unwrap();
        window.bind(part, xroce_verbs::Access::REMOTE_READ).unwrap();
        let mut receive = RecvBatch::new();
        receive.recv(0).sge(far.mr.slice(0..64).unwrap());
        srq.post(&RecvBatch::new()).unwrap();
        let mut batch = SendBatch::new();
        batch.send(1).sge(near.mr.slice(0..64).unwrap());
        batch
            .write(2, far.mr.remote().unwrap())
            .sge(near.mr.slice(0..30_000).unwrap());
        for _ in 0..20 {
            b.post_recv(&receive).unwrap();
            a.post(&batch).unwrap();
            let _ = near.cq.next(Duration::from_millis(50)).unwrap();
        }
    }
}

#[test]
fn whoever_is_killed_leaves_nothing_behind() {
    let host = Host::start(|_| {});
    let before = witness::undisturbed(&host);
    let witness = Witness::start(&host);
    let mut random = Random::new("killed");
    let exe = std::env::current_exe().unwrap();
    let mut settled = (0, 0);
    let warm = rounds() / 3;
    for round in 0..rounds() {
        let mut child = Command::new(&exe)
            .args(["--exact", "killed::victim", "--nocapture"])
            .env(SOCKET, host.socket())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(
            ended.signal(),
            Some(9),
            "round {round}: it died of something else"
        );
        if round == warm {
            host.wait_for(2);
            settled = (resident(), descriptors());
        }
    }
    host.wait_for(2);
    let objects: Vec<_> = host.daemon.sessions().iter().map(|s| s.objects).collect();
    assert_eq!(objects, [[1, 1, 0, 1, 0, 0]; 2], "those of the witnesses");
    let grown = resident().saturating_sub(settled.0) >> 20;
    println!(
        "killed: {} rounds, memory grew by {grown} MiB since round {warm}",
        rounds()
    );
    assert!(grown < 16, "{grown} MiB");
    assert!(
        descriptors() <= settled.1 + 4,
        "{} then {}",
        settled.1,
        descriptors()
    );
    witness::print("killed", &before, &witness.finish());
    host.wait_for(0);
}
