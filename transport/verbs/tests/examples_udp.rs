//! The examples, as two processes over UDP on loopback, and over AF_XDP as root. A process is this test binary, told to run
//! `run_example`: so it is always built with the examples as they are.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]
#![allow(clippy::duplicate_mod, reason = "what the examples have in common")]

#[allow(dead_code, reason = "its main is not called")]
#[path = "../examples/copy.rs"]
mod copy;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../examples/kv.rs"]
mod kv;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../examples/pingpong.rs"]
mod pingpong;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

/// Names of the example and its arguments, one per line.
const ARGS: &str = "XROCE_EXAMPLE";

/// A child runs an example here; else this is the test of what `--help` says.
#[test]
fn run_example() {
    if let Ok(lines) = std::env::var(ARGS) {
        let args: Vec<OsString> = lines.lines().map(OsString::from).collect();
        let example = lines.lines().next().unwrap();
        let result = match example {
            "copy" => copy::run(args.into_iter()),
            "kv" => kv::run(args.into_iter()),
            "pingpong" => pingpong::run(args.into_iter()),
            _ => panic!("no example {example}"),
        };
        if let Err(error) = result {
            eprintln!("Error: {error:#}");
            std::process::exit(1);
        }
        return;
    }
    for (example, words) in [
        ("pingpong", ["server", "client"]),
        ("kv", ["server", "client"]),
        ("copy", ["receive", "send"]),
    ] {
        let (ok, text) = finish(start(&[example, "--help"]));
        assert!(ok, "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        let (_, text) = finish(start(&[example, words[1], "--help"]));
        assert!(text.contains("--dev") && text.contains("AF_XDP"), "{text}");
        assert!(!finish(start(&[example, "nonsense"])).0);
    }
}

/// A child that ends with the test.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(args: &[&str]) -> Running {
    start_as(Command::new(std::env::current_exe().unwrap()), args)
}

fn start_as(mut command: Command, args: &[&str]) -> Running {
    let child = command
        .args(["--exact", "run_example", "--nocapture"])
        .env(ARGS, args.join("\n"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Running(Some(child.unwrap()))
}

/// Whether it ended well, and all it printed.
fn finish(mut running: Running) -> (bool, String) {
    let child = running.0.take().unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let text = [stdout, stderr].concat();
    (
        status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// A server, where it listens, and the rest of its output.
struct Server {
    running: Running,
    at: String,
    out: BufReader<ChildStdout>,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let listen = format!("{}:0", address());
        Self::of(start(&[args, &["--listen", &listen]].concat()))
    }

    fn of(mut running: Running) -> Self {
        let stdout = running.0.as_mut().unwrap().stdout.take().unwrap();
        let mut out = BufReader::new(stdout);
        let at = loop {
            let mut line = String::new();
            if out.read_line(&mut line).unwrap() == 0 {
                panic!("no server: {}", finish(running).1);
            }
            // The harness may print on the same line.
            if let Some((_, at)) = line.trim_end().split_once("listening on ") {
                break at.to_owned();
            }
        };
        Self { running, at, out }
    }

    fn finish(mut self) -> (bool, String) {
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        let (ok, errors) = finish(self.running);
        (ok, text + &errors)
    }
}

/// An address of loopback that nobody else uses: RoCE has one port.
fn address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{high}.{}", 128 + n, low.clamp(1, 254))
}

/// Runs a client with an address of its own.
fn client(args: &[&str]) -> (bool, String) {
    finish(start_client(args))
}

fn start_client(args: &[&str]) -> Running {
    let local = address();
    // Options of the client come before those of its commands.
    let at = args.iter().position(|arg| arg.contains(':')).unwrap_or(1);
    let (head, tail) = args.split_at(at + 1);
    start(&[head, &["--local", &local], tail].concat())
}

#[test]
fn pingpong_compares_every_message() {
    let server = Server::start(&["pingpong", "server", "--once"]);
    let at = server.at.clone();
    let args = [
        "pingpong", "client", &at, "--size", "3000", "--count", "200",
    ];
    let (ok, text) = client(&args);
    assert!(ok, "{text}");
    assert!(
        text.contains("200 compared byte by byte, 0 wrong"),
        "{text}"
    );
    assert!(text.contains("round trip: min "), "{text}");
    let (ok, text) = server.finish();
    assert!(ok && text.contains("200 messages answered"), "{text}");
}

/// Copies `bytes` from a file to `output`; what sender and receiver said.
fn copy(folder: &Path, bytes: &[u8], output: &Path) -> [(bool, String); 2] {
    let from = folder.join("from.bin");
    fs::write(&from, bytes).unwrap();
    let server = Server::start(&["copy", "receive", "--output", output.to_str().unwrap()]);
    let at = server.at.clone();
    let sent = client(&["copy", "send", from.to_str().unwrap(), &at]);
    [sent, server.finish()]
}

#[test]
fn copies_files_of_any_size() {
    let folder = tempfile::tempdir().unwrap();
    // Nothing, less than a chunk, exactly one, and more than the window twice round.
    for (n, size) in [0, 1, 1 << 18, (1 << 18) * 33 + 12_345]
        .into_iter()
        .enumerate()
    {
        let byte = |i: u32| (i * 7 + (i >> 9)).to_le_bytes()[0];
        let bytes: Vec<u8> = (0..size).map(byte).collect();
        let output = folder.path().join(format!("to{n}"));
        let said = copy(folder.path(), &bytes, &output);
        for (ok, text) in &said {
            assert!(ok, "{size}: {said:?}");
            assert!(text.contains(&format!("{size} bytes")), "{text}");
            assert!(text.contains("sha256 "), "{text}");
        }
        assert!(fs::read(&output).unwrap() == bytes, "{size} bytes differ");
    }
    // Into a directory, under its own name.
    let into = tempfile::tempdir().unwrap();
    let said = copy(folder.path(), b"named", into.path());
    assert!(said.iter().all(|(ok, _)| *ok), "{said:?}");
    assert_eq!(fs::read(into.path().join("from.bin")).unwrap(), b"named");
}

#[test]
fn a_copy_that_fails_says_why_at_both_ends() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken");
    fs::write(&taken, b"mine").unwrap();
    let nowhere = folder.path().join("no/such/folder");
    let many = vec![7; 1 << 20];
    for (output, words) in [
        (taken.as_path(), "exists: remove it first"),
        (nowhere.as_path(), "No such file or directory"),
        (Path::new("/dev/full"), "No space left on device"),
    ] {
        for (ok, text) in copy(folder.path(), &many, output) {
            assert!(!ok && text.contains(words), "{output:?}: {text}");
        }
    }
    assert_eq!(fs::read(&taken).unwrap(), b"mine");
    let left = fs::read_dir(folder.path()).unwrap();
    let left: Vec<_> = left.map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    for (file, words) in [
        ("/no/such/file", "opening /no/such/file"),
        ("/", "is not a file"),
    ] {
        let (ok, text) = client(&["copy", "send", file, "127.0.0.1:1"]);
        assert!(!ok && text.contains(words), "{text}");
    }
    let from = folder.path().join("from.bin");
    let (ok, text) = client(&["copy", "send", from.to_str().unwrap(), "127.0.0.1:1"]);
    assert!(
        !ok && text.contains("is the server running there?"),
        "{text}"
    );
}

#[test]
fn values_are_put_got_and_counted_by_several_clients() {
    let server = Server::start(&["kv", "server", "--slots", "64"]);
    let at = server.at.as_str();
    let (ok, text) = client(&["kv", "client", at, "put", "colour", "green"]);
    assert!(ok && text.contains("stored"), "{text}");
    let (ok, text) = client(&["kv", "client", at, "get", "colour"]);
    assert!(ok && text.contains("green"), "{text}");
    let (ok, text) = client(&["kv", "client", at, "put", "colour", "blue"]);
    assert!(ok, "{text}");
    let (_, text) = client(&["kv", "client", at, "get", "colour"]);
    assert!(text.contains("blue") && !text.contains("green"), "{text}");
    let (ok, text) = client(&["kv", "client", at, "get", "size"]);
    assert!(!ok && text.contains("there is no \"size\""), "{text}");
    let long = "x".repeat(193);
    let (ok, text) = client(&["kv", "client", at, "put", "long", &long]);
    assert!(!ok && text.contains("193 bytes, at most 192"), "{text}");
    // Two processes with three clients each, on the same keys.
    let bench = [
        "kv",
        "client",
        at,
        "bench",
        "--threads",
        "3",
        "--ops",
        "100",
    ];
    let both = [(); 2].map(|()| start_client(&bench));
    for running in both {
        let (ok, text) = finish(running);
        assert!(ok, "{text}");
        assert!(
            text.contains("counter 75, expected 75; every value"),
            "{text}"
        );
    }
}

#[cfg(feature = "xdp")]
#[test]
fn every_example_runs_over_af_xdp() {
    use xroce_testnet::{Netns, NetnsPair};
    let Some(pair) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    let inside = |netns: &Netns, args: &[&str]| {
        let command = netns.command(std::env::current_exe().unwrap());
        start_as(command, &[args, &["--dev", netns.ifname()]].concat())
    };
    let listen = format!("{}:0", pair.a.v4);
    let server =
        |args: &[&str]| Server::of(inside(&pair.a, &[args, &["--listen", &listen]].concat()));

    let pingpong = server(&["pingpong", "server", "--once"]);
    let args = ["pingpong", "client", &pingpong.at, "--count", "100"];
    let (ok, text) = finish(inside(&pair.b, &args));
    assert!(ok && text.contains("over AF_XDP"), "{text}");
    assert!(
        text.contains("100 compared byte by byte, 0 wrong"),
        "{text}"
    );
    assert!(pingpong.finish().0);

    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    let bytes: Vec<u8> = (0..1_000_000u32).map(|i| i.to_le_bytes()[1]).collect();
    fs::write(&from, &bytes).unwrap();
    let copy = server(&["copy", "receive", "--output", to.to_str().unwrap()]);
    let args = ["copy", "send", from.to_str().unwrap(), &copy.at];
    let (ok, text) = finish(inside(&pair.b, &args));
    assert!(ok, "{text}");
    assert!(copy.finish().0);
    assert!(fs::read(&to).unwrap() == bytes);

    let kv = server(&["kv", "server"]);
    let put = [
        "kv",
        "client",
        &kv.at,
        "--dev",
        pair.b.ifname(),
        "put",
        "k",
        "v",
    ];
    let command = pair.b.command(std::env::current_exe().unwrap());
    let (ok, text) = finish(start_as(command, &put));
    assert!(ok && text.contains("stored"), "{text}");
}
