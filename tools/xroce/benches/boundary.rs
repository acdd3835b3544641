//! What the boundary between a process and the daemon costs: `xroce perf loopback` over an engine in its
//! thread, over one that another thread of it moves, and through a daemon, in alternating rounds of one
//! run.
//!
//! Both ends are queue pairs of one device, a UDP socket that sends to itself, and one thread posts and
//! polls for both. So one thread is at work, two with a lock between them, and two processes with memory
//! between them. What is compared is the better of the first two.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a bench: prints, and dies of what goes wrong"
)]

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};
use xroce_verbs::{Access, Context, PollMode, Region};

/// Rounds, unless `XROCE_BOUNDARY_ROUNDS` says otherwise.
const ROUNDS: usize = 7;
/// What is measured in a round: WRITEs of 64 bytes a second, 256 outstanding; SENDs there and back.
const ROUND: &str = "--poll busy --seconds 0.7";
/// Messages so rare that an adaptive daemon falls asleep in between.
const RARE: &str = "--op write --size 64 --rate 50 --seconds 4 --json";

/// A server on the daemon's device, ended when dropped.
struct Server {
    child: Child,
    tcp: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address(n: u8) -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 100 + n, high, low.clamp(1, 254)))
}

fn perf(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xroce"));
    command.arg("perf").args(args.split_whitespace());
    command
}

/// The JSON object that a command prints.
fn found(args: &str) -> Value {
    let done = perf(args).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {done:?}"))
}

impl Server {
    fn start(daemon: &str, at: IpAddr) -> Self {
        let mut command = perf(&format!("server {daemon} --bind {at} --port 0"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let tcp = line.strip_prefix("listening on TCP port ").unwrap();
        let tcp = tcp.split(',').next().unwrap().to_owned();
        Self { child, tcp }
    }
}

/// A daemon with one device, a UDP socket.
fn daemon(socket: &Path, poll: PollMode) -> Daemon {
    let mut device = DeviceConfig::new(Below::Udp {
        addr: address(0),
        ifname: None,
    });
    device.poll = poll;
    Daemon::start(DaemonConfig::new(socket, vec![device])).unwrap()
}

fn median(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (
        values[values.len() / 2],
        values[0],
        values[values.len() - 1],
    )
}

fn main() {
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let rounds = std::env::var("XROCE_BOUNDARY_ROUNDS");
    let rounds = rounds.map_or(ROUNDS, |n| n.parse().unwrap());
    let dir = tempfile::TempDir::new().unwrap();
    let socket = dir.path().join("s");
    let mut rows: Vec<[[f64; 3]; 3]> = Vec::new();
    println!(
        "round   in-process, driven by the caller | by a thread | daemon: messages/s, p50 ns, p99 ns"
    );
    for round in 0..rounds {
        let row = measure(&socket, round);
        let shown = row.map(|[rate, p50, p99]| format!("{rate:8.0} {p50:7.0} {p99:8.0}"));
        println!("{round:5}   {}", shown.join(" | "));
        rows.push(row);
    }
    let column =
        |of: &dyn Fn(&[[f64; 3]; 3]) -> f64| median(&mut rows.iter().map(of).collect::<Vec<_>>());
    let (ratio, low, high) = column(&|r| r[2][0] / r[0][0].max(r[1][0]));
    println!("message rate, daemon / in-process: {ratio:.3} ({low:.3} to {high:.3}), target 0.8");
    let (more, low, high) = column(&|r| r[2][1] - r[0][1].min(r[1][1]));
    println!(
        "latency p50, daemon - in-process: {more:+.0} ns ({low:+.0} to {high:+.0}), target +1500"
    );
    waking(&socket);
    let daemon = daemon(&socket, PollMode::Busy);
    memory(&socket);
    daemon.stop("measured");
}

/// How long a message takes after a pause in which an adaptive daemon has fallen asleep. The server
/// sleeps too: a WRITE is the daemon's business alone.
fn waking(socket: &Path) {
    let running = daemon(socket, PollMode::Adaptive);
    let device = format!("--daemon {}", socket.display());
    let at = address(0);
    let server = Server::start(&device, at);
    let report = found(&format!(
        "client {at} --port {} {device} {RARE}",
        server.tcp
    ));
    drop(server);
    running.stop("measured");
    let latency = &report["results"][0]["open"]["latency"];
    let us = |name: &str| latency[name].as_f64().unwrap() / 1e3;
    println!(
        "a message to a daemon that sleeps, until it is acknowledged: {:.1} us ({:.1} to {:.1}), target \
         100",
        us("p50_ns"),
        us("min_ns"),
        us("max_ns")
    );
}

/// All in turn; which is first changes. The daemon runs only in its turn: it polls without pause.
fn measure(socket: &Path, round: usize) -> [[f64; 3]; 3] {
    let mut row = [[0.0; 3]; 3];
    for n in 0..3 {
        let n = (n + round) % 3;
        let own = address(0);
        let (device, running) = match n {
            0 => (format!("--local {own}"), None),
            1 => (format!("--local {own} --engine-thread"), None),
            _ => {
                let running = daemon(socket, PollMode::Busy);
                (format!("--daemon {}", socket.display()), Some(running))
            }
        };
        let found = found(&format!("loopback {ROUND} {device}"));
        let half = &found["half_round_trip"];
        let columns = [&found["messages_per_s"], &half["p50_ns"], &half["p99_ns"]];
        row[n] = columns.map(|value| value.as_f64().unwrap());
        if let Some(running) = running {
            running.stop("measured");
        }
    }
    row
}

/// What registering memory costs, beside copying as much.
fn memory(socket: &Path) {
    const LEN: usize = 1 << 30;
    let context = Context::attach(socket, None).unwrap();
    let pd = context.alloc_pd().unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let timed = |what: &str, run: &mut dyn FnMut()| {
        let began = Instant::now();
        run();
        let ms = began.elapsed().as_secs_f64() * 1e3;
        println!("{what}: {ms:.1} ms");
    };
    let from = vec![3u8; LEN];
    let mut to = vec![1u8; LEN];
    timed("copying 1 GiB", &mut || to.copy_from_slice(&from));
    drop(from);
    let heap = Region::of_heap(to).unwrap();
    let mut mr = None;
    timed("registering 1 GiB of the heap", &mut || {
        mr = Some(pd.reg_mr(&heap, access).unwrap());
    });
    drop(mr.take());
    timed("registering it again", &mut || {
        mr = Some(pd.reg_mr(&heap, access).unwrap())
    });
    let shared = Region::anonymous(LEN).unwrap();
    timed(
        "registering 1 GiB that was shared memory to begin with",
        &mut || {
            mr = Some(pd.reg_mr(&shared, access).unwrap());
        },
    );
    let page = Region::of_heap(vec![1u8; 4096]).unwrap();
    timed("registering a page of the heap", &mut || {
        mr = Some(pd.reg_mr(&page, access).unwrap());
    });
}
