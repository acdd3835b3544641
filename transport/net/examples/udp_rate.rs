//! Packets per second of the UDP backend alone, and of the in-memory ports beside it.
//!
//! `cargo run --release -p xroce-net --example udp_rate [seconds per figure] [part of a line]`
//!
//! UDP runs over loopback and, as root, over a veth pair between two network namespaces; in one
//! thread (both ends by turns) and in two (one way, a bounded number of bytes in flight). Frames
//! are not filled and not looked at: this is the backend and the kernel, nothing else.
#![allow(clippy::print_stdout, reason = "a program for people")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measurement, with a clock"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use xroce_net::datapath::{Datapath, TxMeta};
use xroce_net::sim::{Impairment, LoopConfig, SimNet, loop_pair};
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_testnet::NetnsPair;
use xroce_wire::newtypes::Gid;

/// RC SEND of 64 bytes, Middle of path MTU 1024, WRITE First of path MTU 4096.
const SIZES: [usize; 3] = [84, 1040, 4120];
/// Frames sent before the other end of an in-memory port gets its turn.
const MEMORY_BURST: usize = 32;
/// Bytes sent before the other end gets its turn, or in flight between two threads.
const WINDOW_BYTES: usize = 256 << 10;

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    let wanted = args.next().unwrap_or_default();
    println!(
        "{:28} {:>6} {:>10} {:>8} {:>8}",
        "", "bytes", "packets/s", "Gb/s", "CPU ns"
    );
    let run = |what: &str, size: usize, measure: &mut dyn FnMut() -> Figure| {
        if what.contains(&wanted) {
            print(what, size, &measure());
        }
    };
    for size in SIZES {
        let (mut a, mut b) = loop_pair(&LoopConfig::default());
        run("loop pair", size, &mut || {
            one_thread(&mut a, &mut b, Gid::default(), size, MEMORY_BURST, time)
        });
        let (mut a, mut b) = SimNet::direct();
        run("simulated, perfect wire", size, &mut || {
            one_thread(&mut a, &mut b, Gid::default(), size, MEMORY_BURST, time)
        });
        run("simulated, events", size, &mut || simulated(size, time));
    }
    let bind = |ip: IpAddr| UdpPort::bind(ip, &UdpConfig::default()).unwrap();
    let udp = |path: &str, mut a: UdpPort, mut b: UdpPort| {
        for size in SIZES {
            let dst = b.gid();
            run(&format!("UDP {path}, one thread"), size, &mut || {
                one_thread(&mut a, &mut b, dst, size, window(size), time)
            });
            run(&format!("UDP {path}, two threads"), size, &mut || {
                two_threads(&mut a, &mut b, size, time)
            });
        }
    };
    let lo = |n| bind(Ipv4Addr::new(127, 0, 91, n).into());
    udp("loopback", lo(1), lo(2));
    let Some(net) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    let a = net.a.run(|| bind(net.a.ip(false)));
    let b = net.b.run(|| bind(net.b.ip(false)));
    udp("veth", a, b);
}

/// Time spent, by the wall and by this process: on a busy machine only the second says much.
struct Watch {
    wall: Instant,
    cpu: Duration,
}

impl Watch {
    fn start() -> Self {
        Self {
            wall: Instant::now(),
            cpu: cpu_time(),
        }
    }

    fn runs(&self, time: Duration) -> bool {
        self.wall.elapsed() < time
    }

    fn stop(&self, frames: u64) -> Figure {
        Figure {
            frames,
            wall: self.wall.elapsed(),
            cpu: cpu_time() - self.cpu,
        }
    }
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

struct Figure {
    frames: u64,
    wall: Duration,
    cpu: Duration,
}

#[allow(clippy::cast_precision_loss, reason = "for printing")]
fn print(what: &str, size: usize, figure: &Figure) {
    let frames = figure.frames as f64;
    let rate = frames / figure.wall.as_secs_f64();
    let gigabits = rate * size as f64 * 8.0 / 1e9;
    let cpu = figure.cpu.as_secs_f64() * 1e9 / frames;
    println!("{what:28} {size:6} {rate:10.0} {gigabits:8.2} {cpu:8.1}");
}

/// Commits up to `n` frames; how many.
fn send(port: &mut impl Datapath, dst: Gid, size: usize, n: usize) -> usize {
    let mut sent = 0;
    while sent < n {
        let Some(frame) = port.tx_begin() else { break };
        frame[0] = 4;
        port.tx_commit(&TxMeta { dst, tos: 2 }, size);
        sent += 1;
    }
    port.tx_flush().unwrap();
    sent
}

fn window(size: usize) -> usize {
    (WINDOW_BYTES / size).min(256)
}

fn one_thread(
    a: &mut impl Datapath,
    b: &mut impl Datapath,
    dst: Gid,
    size: usize,
    burst: usize,
    time: Duration,
) -> Figure {
    let watch = Watch::start();
    let mut received = 0;
    while watch.runs(time) {
        for _ in 0..16 {
            let sent = send(a, dst, size, burst);
            let mut got = 0;
            while got < sent {
                let n = b
                    .rx_burst(256, &mut |rx| {
                        std::hint::black_box(rx);
                    })
                    .unwrap();
                if n == 0 {
                    break;
                }
                got += n;
            }
            received += got as u64;
        }
    }
    watch.stop(received)
}

fn two_threads(a: &mut UdpPort, b: &mut UdpPort, size: usize, time: Duration) -> Figure {
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let dst = b.gid();
    let watch = Watch::start();
    thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Relaxed) {
                let n = b
                    .rx_burst(256, &mut |rx| {
                        std::hint::black_box(rx);
                    })
                    .unwrap();
                received.fetch_add(n as u64, Relaxed);
            }
        });
        // In flight in half windows, so that trains are full.
        let (mut sent, half) = (0, window(size).div_ceil(2).max(64));
        let mut idle = 0;
        while watch.runs(time) {
            if sent - received.load(Relaxed) <= half as u64 || idle > 10_000 {
                // What was lost never arrives: go on after a while.
                if idle > 10_000 {
                    sent = received.load(Relaxed);
                }
                sent += send(a, dst, size, half) as u64;
                idle = 0;
            } else {
                idle += 1;
                std::hint::spin_loop();
            }
        }
        stop.store(true, Relaxed);
    });
    watch.stop(received.load(Relaxed))
}

/// Two ports with delay, a rate and a little of everything between them.
fn simulated(size: usize, time: Duration) -> Figure {
    let net = SimNet::new(1);
    let imp = Impairment {
        rate_bps: 100_000_000_000,
        jitter_ns: 100,
        loss_ppm: 1_000,
        duplicate_ppm: 1_000,
        reorder_ppm: 1_000,
        reorder_positions: 8,
        ..Impairment::delay(5_000)
    };
    let (mut a, mut b) = net.pair(imp, imp);
    let watch = Watch::start();
    let mut received = 0;
    while watch.runs(time) {
        for _ in 0..16 {
            send(&mut a, Gid::default(), size, 64);
            while let Some(at) = net.next_event() {
                net.advance_to(at);
                let n = b
                    .rx_burst(256, &mut |rx| {
                        std::hint::black_box(rx);
                    })
                    .unwrap();
                received += n as u64;
            }
        }
    }
    watch.stop(received)
}
