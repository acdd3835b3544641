//! `xroce perf --compat` against a peer that is not xroce: actors on plain TCP, written from the
//! description of the exchange. They read as perftest does, each message with one `read` that must
//! bring it whole, and they write one byte at a time, as nobody does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the test has failed")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Running, command, udp_server, xroce};

/// Version, cycle buffer, cache line, MTU.
const GREETING: [usize; 4] = [16, 4, 4, 2];
/// A key, which is also how the sides wait for each other ("hs").
const KEY: usize = 108;
const REPORT: [usize; 5] = [8; 5];

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    stream
}

/// One message, with one `read`.
#[track_caller]
fn hear(stream: &mut TcpStream, size: usize) -> Vec<u8> {
    let mut message = vec![0; size];
    let got = stream.read(&mut message).unwrap();
    assert_eq!(got, size, "{}", message.escape_ascii());
    message
}

/// One message, byte by byte.
fn say(stream: &mut TcpStream, message: &[u8]) {
    for byte in message {
        stream.write_all(&[*byte]).unwrap();
    }
}

fn is_key(message: &[u8]) -> bool {
    let widths = [4, 4, 6, 6, 8, 16];
    let widths = widths.into_iter().chain([2; 16]).chain([8]);
    let mut rest = message;
    for width in widths {
        let (field, after) = rest.split_at(width);
        let is_hex = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
        if !field.iter().all(is_hex) || after[0] != b':' {
            return false;
        }
        rest = &after[1..];
    }
    rest == [0]
}

#[track_caller]
fn check_content(at: usize, message: &[u8]) {
    match (at, message.len()) {
        (0, 16) => assert_eq!(message, b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"),
        (1, 4) => assert_eq!(message, 4096_u32.to_be_bytes()),
        (2, 4) => assert_eq!(message, 64_u32.to_be_bytes()),
        (3, 2) => assert_eq!(message, b"3\0"),
        (_, KEY) => assert!(is_key(message), "{}", message.escape_ascii()),
        (_, 8) => {}
        _ => panic!("{at}: {}", message.escape_ascii()),
    }
}

/// Stands between a client and the server at `port`, and passes on messages of these sizes, each
/// first from the client, then from the server. Then "done" from each if there is a close, and
/// nothing more.
fn between(near: &str, port: u16, sizes: Vec<usize>, done: bool) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind((near, 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    let near = near.to_owned();
    let thread = std::thread::spawn(move || {
        let mut client = patient(listener.accept().unwrap().0);
        let mut server = patient(TcpStream::connect((near.as_str(), port)).unwrap());
        for (at, size) in sizes.into_iter().enumerate() {
            let message = hear(&mut client, size);
            check_content(at, &message);
            say(&mut server, &message);
            let message = hear(&mut server, size);
            check_content(at, &message);
            say(&mut client, &message);
        }
        for stream in [&mut client, &mut server] {
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            let last: &[u8] = if done { b"done\0" } else { b"" };
            assert_eq!(rest, last, "{}", rest.escape_ascii());
        }
    });
    (own, thread)
}

/// Both sides are xroce, the exchange between them is watched.
#[track_caller]
fn watch(net: u8, what: &str, sizes: Vec<usize>, done: bool) {
    let (near, far) = (format!("127.0.8.{net}"), format!("127.0.8.{}", net + 1));
    let what = format!("--compat perftest --mtu 1024 --json {what}");
    let (server, port) = udp_server(&near, &format!("--once {what}"));
    let (port, watcher) = between(&near, port, sizes, done);
    let client = xroce(&format!(
        "perf client {near} --local {far} --port {port} {what}"
    ));
    watcher.join().unwrap();
    client.json();
    server.finish().json();
}

#[test]
fn the_order_of_every_test() {
    let keys = |n: usize| vec![KEY; n];
    let with = |parts: &[&[usize]]| [&GREETING[..], &parts.concat()].concat();
    // Keys; connect; hs(0), hs(i); hs(0) before the run; hs(0) to close.
    let send_bw = with(&[&keys(2), &keys(1 + 2), &keys(1), &keys(1)]);
    watch(20, "--op send --qps 2 --messages 40", send_bw, true);
    // Keys; connect; hs(i), hs(0); after the run hs(0), report; hs(0) to close.
    let waits = with(&[&keys(3), &keys(3 + 1), &keys(1), &REPORT, &keys(1)]);
    watch(20, "--op write --qps 3 --messages 40", waits.clone(), true);
    watch(20, "--op read --qps 3 --messages 40", waits, true);
    // Key; connect; hs(0), hs(i); hs(0) before the run; hs(0) to close.
    let send_lat = with(&[&keys(1), &keys(2), &keys(1), &keys(1)]);
    watch(20, "--op send --test lat --messages 40", send_lat, true);
    // hs(0); key; connect; hs(i), hs(0); no close.
    let write_lat = with(&[&keys(1), &keys(1), &keys(2)]);
    watch(20, "--op write --test lat --messages 600", write_lat, false);
    let read_lat = with(&[&keys(1), &keys(1), &keys(2), &keys(1)]);
    watch(20, "--op read --test lat --messages 40", read_lat, true);
}

/// Later versions wait once more before the messages of a WRITE latency test: a client speaks first
/// and waits for the answer.
#[test]
fn later_versions_of_write_latency() {
    let what = "--compat perftest --op write --test lat --messages 300 --json";
    let (server, port) = udp_server("127.0.8.26", &format!("--once {what}"));
    let listener = TcpListener::bind(("127.0.8.26", 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    let client = Running::start(command(&format!(
        "perf client 127.0.8.26 --local 127.0.8.27 --port {own} {what}"
    )));
    let mut near = patient(listener.accept().unwrap().0);
    let mut far = patient(TcpStream::connect(("127.0.8.26", port)).unwrap());
    let version = b"6.29\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    for size in [16, 4, 4, 2, KEY, KEY, KEY, KEY, KEY] {
        let pass = |from: &mut TcpStream, to: &mut TcpStream| {
            let message = hear(from, size);
            say(to, if size == 16 { &version } else { &message });
        };
        pass(&mut near, &mut far);
        pass(&mut far, &mut near);
    }
    let mut rest = Vec::new();
    near.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "no close");
    drop((near, far));
    assert_eq!(client.finish().json()["peer_version"], "6.29");
    let report = server.finish().json();
    assert!(report["results"][0]["latency"].is_object(), "{report}");
}

#[test]
fn the_order_when_both_sides_send() {
    let with = |parts: &[&[usize]]| [&GREETING[..], &parts.concat()].concat();
    let start: &[usize] = &[KEY, KEY, KEY];
    // hs before the run, report after it, hs to close.
    let once = with(&[start, &[KEY], &REPORT, &[KEY]]);
    for op in ["send", "write", "read"] {
        let what = format!("--op {op} --bidirectional --messages 20");
        watch(22, &what, once.clone(), true);
    }
    let all = |each: &[&[usize]]| with(&[start, &each.concat().repeat(23), &[KEY]]);
    let what = |op: &str| format!("--op {op} --bidirectional --sizes all --messages 2");
    watch(22, &what("send"), all(&[&[KEY], &REPORT, &[KEY]]), true);
    let after = all(&[&[KEY], &[KEY], &REPORT]);
    watch(22, &what("write"), after.clone(), true);
    watch(22, &what("read"), after, true);
}

#[test]
fn the_order_of_all_sizes() {
    let with = |parts: &[&[usize]]| [&GREETING[..], &parts.concat()].concat();
    let what = |op: &str, test: &str| format!("--op {op} --test {test} --sizes all --messages 2");
    let start: &[usize] = &[KEY, KEY, KEY];
    let each = |hs: usize| vec![KEY; 23 * hs];
    watch(
        24,
        &what("send", "bw"),
        with(&[start, &each(2), &[KEY]]),
        true,
    );
    let waits = with(&[start, &[KEY], &REPORT, &[KEY]]);
    watch(24, &what("write", "bw"), waits.clone(), true);
    watch(24, &what("read", "bw"), waits, true);
    watch(
        24,
        &what("send", "lat"),
        with(&[start, &each(1), &[KEY]]),
        true,
    );
    watch(24, &what("write", "lat"), with(&[start, &[KEY]]), false);
    watch(
        24,
        &what("read", "lat"),
        with(&[start, &[KEY], &[KEY]]),
        true,
    );
}

#[test]
fn the_order_of_pingpong() {
    let what = "--compat pingpong --messages 40 --json";
    let (server, port) = udp_server("127.0.8.3", &format!("--once {what}"));
    let listener = TcpListener::bind(("127.0.8.3", 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    let client = Running::start(command(&format!(
        "perf client 127.0.8.3 --local 127.0.8.4 --port {own} {what}"
    )));
    let mut near = patient(listener.accept().unwrap().0);
    let mut far = patient(TcpStream::connect(("127.0.8.3", port)).unwrap());
    let address = hear(&mut near, 52);
    assert!(
        address.starts_with(b"0000:") && address.ends_with(b":00000000000000000000ffff7f000804\0"),
        "{}",
        address.escape_ascii()
    );
    say(&mut far, &address);
    let address = hear(&mut far, 52);
    say(&mut near, &address);
    let done = hear(&mut near, 5);
    assert_eq!(done, b"done\0");
    say(&mut far, &done);
    // Both programs close here, before the first packet.
    drop((near, far));
    client.finish().json();
    server.finish().json();
}

/// What a client says up to its key.
fn greeting(version: &[u8], mtu: &[u8; 2]) -> Vec<Vec<u8>> {
    let mut message = [0; 16];
    message[..version.len()].copy_from_slice(version);
    vec![
        message.to_vec(),
        4096_u32.to_be_bytes().to_vec(),
        64_u32.to_be_bytes().to_vec(),
        mtu.to_vec(),
    ]
}

fn key(qpn: u32, gid: &str) -> Vec<u8> {
    format!("0000:0001:{qpn:06x}:000000:00000001:0000000000001000:{gid}:00000000:\0").into_bytes()
}

const GID: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:7f:00:08:06";
const GID_V6: &str = "fe:80:00:00:00:00:00:00:00:00:00:00:00:00:00:01";
const NO_GID: &str = "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00";

/// A client without a NIC can do a WRITE test with no WRITEs: the server takes its word.
#[test]
fn a_client_that_sends_nothing() {
    let what = "--once --compat perftest --op write --json";
    let (server, port) = udp_server("127.0.8.5", what);
    let mut stream = patient(TcpStream::connect(("127.0.8.5", port)).unwrap());
    let mut talk = |message: &[u8]| {
        say(&mut stream, message);
        hear(&mut stream, message.len())
    };
    for message in greeting(b"5.93", b"2\0") {
        talk(&message);
    }
    for _ in 0..4 {
        talk(&key(0x11, GID));
    }
    talk(&64_u64.to_be_bytes());
    talk(&5000_u64.to_be_bytes());
    for figure in [3.5_f64, 2.5, 0.25] {
        talk(&figure.to_be_bytes());
    }
    talk(&key(0x11, GID));
    assert_eq!(hear(&mut stream, 5), b"done\0");
    drop(stream);
    let report = server.finish().json();
    assert_eq!(report["peer_version"], "5.93");
    assert_eq!(report["path_mtu"], 512);
    assert_eq!(report["results"][0]["size"], 64);
    let peer = &report["results"][0]["peer"];
    assert_eq!(peer["iterations"], 5000);
    assert_eq!(peer["peak_mib_per_s"], 3.5);
    assert_eq!(peer["average_mib_per_s"], 2.5);
    assert_eq!(peer["mega_messages_per_s"], 0.25);
}

/// What else may connect to a server; it says what is wrong and goes on.
#[test]
fn strange_clients() {
    let what = "--compat perftest --op write --qps 2 --timeout 1";
    let (server, port) = udp_server("127.0.8.6", what);
    let greeted = |more: &[Vec<u8>]| [&greeting(b"6.06", b"3\0"), more].concat();
    let bad_number = |at: usize| {
        let mut messages = greeting(b"6.06", b"3\0");
        messages[at] = vec![0xff; 4];
        messages.truncate(at + 1);
        messages
    };
    let mut garbled = key(0x11, GID);
    garbled[12] = b'x';
    let far: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:e0:00:00:01";
    let (a, b) = (key(0x11, GID), key(0x12, GID));
    for (messages, words) in [
        (vec![], &["\"version\"", "closed", "0 of 16"][..]),
        (
            vec![b"6.0".to_vec()],
            &["\"version\"", "3 of 16 bytes came", "6.0"],
        ),
        (greeting(b"5.60", b"3\0"), &["5.60", "5.70"]),
        (
            greeting(b"GET / HTTP/1.1\r\n", b"3\0"),
            &["version", "GET /"],
        ),
        (
            vec![b"XRPF\x00\x01\x00\x00\x00\x00\x00\x10{{{{".to_vec()],
            &["--compat"],
        ),
        (bad_number(1), &["cycle_buffer", "4294967295"]),
        (bad_number(2), &["cache_line", "4294967295"]),
        (greeting(b"6.06", b"6\0"), &["\"mtu\"", "6"]),
        (greeted(&[]), &["\"key\"", "closed"]),
        (
            greeted(&[garbled]),
            &["\"key\"", "queue pair number", "at byte 10"],
        ),
        (
            greeted(&[a.clone(), a.clone()]),
            &["only 1 queue pairs", "-q"],
        ),
        (
            greeted(&[a.clone(), b.clone(), b.clone()]),
            &["0x12", "0x11", "-q"],
        ),
        (
            greeted(&[key(0x11, GID_V6), key(0x12, GID_V6)]),
            &["fe80::1", "family", "-x"],
        ),
        (
            greeted(&[key(0x11, NO_GID), key(0x12, NO_GID)]),
            &["no GID", "-x"],
        ),
        (
            greeted(&[a.clone(), key(0x12, GID_V6)]),
            &["different GIDs"],
        ),
        (greeted(&[key(0x11, far), key(0x12, far)]), &["224.0.0.1"]),
        (
            greeted(&[key(0, GID), b.clone()]),
            &["queue pair number", "0x0"],
        ),
        (
            greeted(&[a.clone(), b.clone(), a.clone(), b, a]),
            &["\"key\"", "closed"],
        ),
    ] {
        let mut stream = patient(TcpStream::connect(("127.0.8.6", port)).unwrap());
        for message in &messages {
            // It may have given up already.
            let _ = stream.write_all(message);
            let _ = stream.read(&mut vec![0; message.len()]);
        }
        let _ = stream.shutdown(Shutdown::Write);
        let line = server.err_line();
        assert!(line.starts_with("xroce: client 127.0.0.1:"), "{line}");
        for word in words {
            assert!(line.contains(word), "\"{word}\" is not in {line}");
        }
    }
    let silent = TcpStream::connect(("127.0.8.6", port)).unwrap();
    let line = server.err_line();
    assert!(line.contains("said nothing for 1.0 s"), "{line}");
    assert!(line.contains("\"version\""), "{line}");
    drop(silent);

    let client = "--compat perftest --op write --qps 2 --messages 20 --json";
    xroce(&format!(
        "perf client 127.0.8.6 --local 127.0.8.7 --port {port} {client}"
    ))
    .json();
    server.signal("INT");
    assert_eq!(server.finish().code, Some(130));
}

/// A server that answers the first messages and then goes away, or stays and does nothing.
#[test]
fn servers_without_a_nic() {
    let listener = TcpListener::bind(("127.0.8.8", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = |what: &str| {
        Running::start(command(&format!(
            "perf client 127.0.8.8 --local 127.0.8.9 --port {port} --compat {what}"
        )))
    };
    let answer = |stream: &mut TcpStream, messages: &[Vec<u8>]| {
        for message in messages {
            hear(stream, message.len());
            say(stream, message);
        }
    };
    let keys = vec![key(0x11, GID); 5];

    let running = client("perftest --op send");
    let mut stream = patient(listener.accept().unwrap().0);
    answer(&mut stream, &greeting(b"6.06", b"3\0"));
    drop(stream);
    running
        .finish()
        .fails(1, &["closed the connection", "\"key\""]);

    let running = client("perftest --op send --timeout 0.5");
    let silent = patient(listener.accept().unwrap().0);
    let words = ["said nothing for 0.5 s", "\"version\"", "0 of 16"];
    running.finish().fails(1, &words);
    drop(silent);

    // It goes away while messages are on their way.
    let running = client("perftest --op send");
    let mut stream = patient(listener.accept().unwrap().0);
    answer(&mut stream, &greeting(b"6.06", b"3\0"));
    answer(&mut stream, &keys[..4]);
    drop(stream);
    running
        .finish()
        .fails(1, &["closed", "in the middle of the test"]);

    // It stays, but there is nobody at its address: the queue pair says so.
    let running = client("perftest --op send --messages 3");
    let mut stream = patient(listener.accept().unwrap().0);
    answer(&mut stream, &greeting(b"6.06", b"3\0"));
    answer(&mut stream, &keys[..4]);
    running
        .finish()
        .fails(1, &["QP 0x11", "RetryExcErr", "nothing ever came back"]);
    drop(stream);

    let running = client("pingpong");
    let mut stream = patient(listener.accept().unwrap().0);
    hear(&mut stream, 52);
    say(
        &mut stream,
        b"0000:000011:45b320:00000000000000000000000000000000\0",
    );
    running.finish().fails(1, &["no GID", "-g"]);
}
