//! The daemon as a process: readiness, signals, reload, `--check`, what it says when it cannot.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

mod common;

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use xroce_control::client::Client;
use xroce_verbs::{Event, RecvBatch, WcStatus};

use common::{End, LONG, Running, address, pair, send, xroced};

#[test]
fn it_says_that_it_is_ready_serves_and_ends_cleanly() {
    let mut daemon = Running::start(&["--drain", "0"]);
    let [near, far] = [End::of(daemon.attach()), End::of(daemon.attach())];
    let qps = pair(&near, &far);
    send(&near, &far, &qps, 20);

    let client = Client::connect(&daemon.socket(), "a test").unwrap();
    let report = client.report().unwrap();
    assert_eq!(report.devices[0].device, format!("udp:{}", daemon.addr));
    let sessions: Result<Vec<_>, _> = client.sessions().collect();
    let sessions = sessions.unwrap();
    assert_eq!(sessions.len(), 3);
    let own = client.welcome().session;
    let mine = sessions.iter().find(|s| s.session == own).unwrap();
    assert_eq!(
        (mine.program.as_str(), mine.device.as_ref()),
        ("a test", None)
    );
    let found: Result<Vec<_>, _> = client.qps().collect();
    assert_eq!(found.unwrap().len(), 2);

    // A receive is under way when it ends: it is flushed, and everybody is told why.
    let mut receive = RecvBatch::new();
    receive.recv(77).sge(far.mr.slice(0..64).unwrap());
    qps[1].post_recv(&receive).unwrap();
    daemon.signal(Signal::TERM);
    daemon.wait_for("STOPPING=1");
    let flushed = far.cq.next(LONG).unwrap().expect("a completion");
    assert_eq!((flushed.wr_id, flushed.status), (77, WcStatus::WrFlushErr));
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
    assert!(!daemon.socket().exists());
    let log = daemon.log();
    for words in ["serving", "attached", "stopping", "SIGTERM", "stopped"] {
        assert!(log.contains(words), "{words}: {log}");
    }
}

#[test]
fn a_daemon_that_is_killed_is_noticed_at_once_and_can_be_started_again() {
    let mut daemon = Running::start(&["--log", "warn"]);
    let [near, far] = [End::of(daemon.attach()), End::of(daemon.attach())];
    let qps = pair(&near, &far);
    send(&near, &far, &qps, 3);
    for n in 0..3 {
        let mut receive = RecvBatch::new();
        receive.recv(n).sge(far.mr.slice(0..64).unwrap());
        qps[1].post_recv(&receive).unwrap();
    }
    // One waits for a completion, one for an event, when it happens.
    let (flushed, event) = std::thread::scope(|scope| {
        let completion = scope.spawn(|| far.cq.next(LONG).unwrap().expect("a completion"));
        let event = scope.spawn(|| near.context.wait_event(LONG).unwrap());
        daemon.signal(Signal::KILL);
        (completion.join().unwrap(), event.join().unwrap())
    });
    assert_eq!((flushed.wr_id, flushed.status), (0, WcStatus::WrFlushErr));
    assert_eq!(event.map(|e| e.event), Some(Event::DeviceFatal));
    let rest = [1, 2].map(|_| far.cq.next(LONG).unwrap().unwrap().wr_id);
    assert_eq!(rest, [1, 2]);
    let over = far.cq.poll_one().unwrap_err().to_string();
    assert!(over.contains("the daemon is gone"), "{over}");
    assert_eq!(daemon.ended(), None, "killed");
    // Its socket is still there; the next one takes its place.
    assert!(daemon.socket().exists());
    let daemon = daemon.start_again(&["--log", "warn"]);
    let [near, far] = [End::of(daemon.attach()), End::of(daemon.attach())];
    send(&near, &far, &pair(&near, &far), 3);
}

#[test]
fn all_pages_of_queue_pairs_are_listed() {
    let daemon = Running::start(&["--drain", "0", "--log", "warn"]);
    let ends = [End::of(daemon.attach()), End::of(daemon.attach())];
    let qps: Vec<_> = (0..25).map(|_| pair(&ends[0], &ends[1])).collect();
    let client = Client::connect(&daemon.socket(), "a test").unwrap();
    let found: Result<Vec<_>, _> = client.qps().collect();
    let found = found.unwrap();
    assert_eq!(found.len(), 2 * qps.len());
    let keys: Vec<_> = found
        .iter()
        .map(|qp| (qp.session, qp.qpn.value()))
        .collect();
    assert!(keys.is_sorted(), "{keys:?}");
}

#[test]
fn a_reload_takes_over_what_it_can_and_names_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("xroced.toml");
    let file = config.to_str().unwrap();
    std::fs::write(&config, "mode = \"0600\"\nsessions = 1\nlimit-qps = 5\n").unwrap();
    let daemon = Running::start(&["--config", file, "--drain", "0"]);
    let mode = || {
        std::fs::metadata(daemon.socket())
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(), 0o600);
    let first = daemon.attach();
    assert_eq!(first.query_device().max_qp, 5);
    let refused = xroce_verbs::Context::attach(&daemon.socket(), None).unwrap_err();
    assert!(refused.to_string().contains("the limit"), "{refused}");

    let more = "mode = \"0666\"\nsessions = 9\nlimit-qps = 6\nlog = \"debug\"\n\
        metrics = \"127.0.0.1:1\"\n";
    std::fs::write(&config, more).unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for("RELOADING=1");
    daemon.wait_for("READY=1");
    assert_eq!(mode(), 0o666);
    let second = daemon.attach();
    assert_eq!(
        (first.query_device().max_qp, second.query_device().max_qp),
        (5, 6)
    );
    let log = daemon.log();
    assert!(
        log.contains("metrics") && log.contains("restart xroced"),
        "{log}"
    );

    std::fs::write(&config, "sessions = 0\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for("RELOADING=1");
    daemon.wait_for("READY=1");
    let log = daemon.log();
    assert!(
        log.contains("stays as it was") && log.contains("--sessions 0"),
        "{log}"
    );
    assert_eq!(mode(), 0o666);
    drop(daemon.attach());
}

#[test]
fn check_explains_and_tells_wrong_from_right() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("xroced.sock");
    let (socket, addr) = (socket.to_str().unwrap(), address().to_string());
    let right = xroced(&[
        "--check", "--udp", &addr, "--socket", socket, "--mode", "0666",
    ]);
    let text = String::from_utf8(right.stdout).unwrap();
    assert_eq!(right.status.code(), Some(0), "{text}");
    for words in [
        "can be bound",
        "every user",
        "nothing is wrong",
        "queue pairs",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!dir.path().join("xroced.sock").exists());

    let wrong = [
        "--check",
        "--udp",
        "192.0.2.1",
        "--dev",
        "nonsense-if",
        "--core",
        "0",
    ];
    let wrong = [&wrong[..], &["--core", "99999", "--socket", "/nowhere/x"]].concat();
    let wrong = xroced(&wrong);
    let text = String::from_utf8(wrong.stdout).unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{text}");
    for words in [
        "nonsense-if",
        "192.0.2.1:4791 cannot be bound",
        "core 99999",
        "/nowhere does not exist",
        "things are wrong",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let lo = xroced(&["--check", "--dev", "lo:7", "--socket", socket]);
    let text = String::from_utf8(lo.stdout).unwrap();
    assert!(
        text.contains("loopback") && text.contains("no queue 7"),
        "{text}"
    );
}

#[test]
fn what_keeps_it_from_starting_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("xroced.toml");
    let file = config.to_str().unwrap();
    let socket = dir.path().join("xroced.sock");
    let socket = socket.to_str().unwrap();
    std::fs::write(&config, "socket = \"/x\"\nscoket = \"/y\"\n").unwrap();
    for (args, status, words) in [
        (vec![], 1, &["no device"][..]),
        (vec!["--nonsense"], 2, &["--nonsense"]),
        (vec!["--mode", "7777"], 2, &["7777", "octal"]),
        (vec!["--config", file], 1, &["scoket", "xroced.toml"]),
        (vec!["--config", "/nowhere.toml"], 1, &["/nowhere.toml"]),
        (
            vec!["--udp", "192.0.2.1", "--socket", socket],
            1,
            &["udp:192.0.2.1"],
        ),
        (vec!["--udp", "::1", "--log", "x=y=z"], 1, &["--log"]),
    ] {
        let done = xroced(&args);
        let text = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(status), "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        let one_line = status == 2 || text.lines().count() == 1;
        assert!(one_line, "{text}");
    }
}
