//! What the boundary between a process and the daemon costs: the same traffic over an engine in
//! this process and over one in a daemon, in alternating rounds of one run.
//!
//! Both ends are queue pairs of one device, a UDP socket that sends to itself. In this process the
//! engine is driven in both ways there are: by whoever posts and polls (one thread, no lock that
//! anybody else wants), and by a thread of its own (two threads and a lock between them). With the
//! daemon two threads are at work, and memory between them. What is compared is the better of the
//! first two.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a bench: prints, and dies of what goes wrong"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};
use xroce_verbs::{
    Access, Completion, ConnectAttr, Context, Cq, Device, Drive, Mr, PollMode, Qp, Rc, RecvBatch,
    Region, SendBatch,
};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(700);
/// Messages posted and not completed, at most, and posted at a time.
const DEPTH: u32 = 256;
const BATCH: u32 = 16;
const SIZE: u64 = 64;

struct Ends {
    /// Has to be polled by whoever waits.
    driven: bool,
    context: Context,
    cqs: [Cq; 2],
    mrs: [Mr; 2],
    qps: [Qp<Rc>; 2],
}

impl Ends {
    fn of(context: Context, driven: bool) -> Self {
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let pd = context.alloc_pd().unwrap();
        let cqs = [(); 2].map(|()| context.create_cq(1024).unwrap());
        let mrs = [(); 2].map(|()| pd.alloc_mr(1 << 16, all).unwrap());
        let [a, b] = [0, 1].map(|n| {
            let qp = pd
                .qp::<Rc>(&cqs[n], &cqs[n])
                .max_send_wr(DEPTH)
                .max_recv_wr(DEPTH);
            qp.create().unwrap().init(all).unwrap()
        });
        let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
        let attr = ConnectAttr {
            timeout: 18,
            ..ConnectAttr::default()
        };
        let a = a.connect(&ends[1], &attr).unwrap();
        let b = b.connect(&ends[0], &attr).unwrap();
        Self {
            driven,
            context,
            cqs,
            mrs,
            qps: [a, b],
        }
    }

    fn move_on(&self) {
        if self.driven {
            self.context.poll().unwrap();
        } else {
            std::hint::spin_loop();
        }
    }

    /// WRITEs per second.
    fn rate(&self) -> f64 {
        let there = self.mrs[1].remote().unwrap();
        let mut batch = SendBatch::new();
        for n in 0..BATCH {
            let wr = batch.write(n.into(), there);
            let wr = wr.sge(self.mrs[0].slice(0..SIZE).unwrap());
            if n + 1 < BATCH {
                wr.unsignaled();
            }
        }
        let mut out = [Completion::EMPTY; 32];
        let (mut posted, mut done) = (0u64, 0u64);
        let began = Instant::now();
        while began.elapsed() < ROUND {
            while posted - done + u64::from(BATCH) <= u64::from(DEPTH) {
                self.qps[0].post(&batch).unwrap();
                posted += u64::from(BATCH);
            }
            let found = self.cqs[0].poll(&mut out).unwrap();
            for wc in &out[..found] {
                wc.ok().unwrap();
            }
            done += found as u64 * u64::from(BATCH);
            if found == 0 {
                self.move_on();
            }
        }
        let rate = done as f64 / began.elapsed().as_secs_f64();
        while done < posted {
            done += self.cqs[0].poll(&mut out).unwrap() as u64 * u64::from(BATCH);
            self.move_on();
        }
        rate
    }

    /// Half round trips of a SEND each way, ns, sorted.
    fn latency(&self) -> Vec<u64> {
        let receive = |n: usize| {
            let mut batch = RecvBatch::new();
            batch.recv(0).sge(self.mrs[n].slice(0..SIZE).unwrap());
            batch
        };
        let receives = [receive(0), receive(1)];
        let sends = [0, 1].map(|n: usize| {
            let mut batch = SendBatch::new();
            batch.send(1).inline(&[7; 8]).unsignaled();
            let mut signaled = SendBatch::new();
            signaled.send(1).inline(&[7; 8]);
            let _ = n;
            (batch, signaled)
        });
        let mut all = Vec::new();
        let began = Instant::now();
        let mut n = 0u32;
        while began.elapsed() < ROUND {
            // Now and then one that completes, so that the queue does not fill.
            let signal = n.is_multiple_of(64);
            let at = Instant::now();
            for (from, to) in [(0, 1), (1, 0)] {
                self.qps[to].post_recv(&receives[to]).unwrap();
                let (plain, signaled) = &sends[from];
                self.qps[from]
                    .post(if signal { signaled } else { plain })
                    .unwrap();
                self.wait(to);
            }
            let half = u64::try_from(at.elapsed().as_nanos()).unwrap() / 2;
            if signal {
                self.wait(0);
                self.wait(1);
            } else {
                all.push(half);
            }
            n += 1;
        }
        all.sort_unstable();
        all
    }

    fn wait(&self, end: usize) {
        loop {
            if let Some(wc) = self.cqs[end].poll_one().unwrap() {
                wc.ok().unwrap();
                return;
            }
            self.move_on();
        }
    }
}

fn address(n: u8) -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 100 + n, high, low.clamp(1, 254)))
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
    let dir = tempfile::TempDir::new().unwrap();
    let mode = PollMode::Busy;
    let socket = dir.path().join("s");
    let mut device = DeviceConfig::new(Below::Udp {
        addr: address(0),
        ifname: None,
    });
    device.poll = mode;
    let daemon = Daemon::start(DaemonConfig::new(&socket, vec![device])).unwrap();
    let mut rows: Vec<[[f64; 3]; 3]> = Vec::new();
    println!(
        "round   in-process, driven by the caller | by a thread | daemon: messages/s, p50 ns, p99 ns"
    );
    for round in 0..ROUNDS {
        let row = measure(&socket, mode, round);
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
    memory(&socket);
    daemon.stop("measured");
    waking(dir.path());
}

/// How long the first message takes after a pause in which an adaptive daemon has fallen asleep.
fn waking(dir: &Path) {
    const PAUSES: usize = 200;
    let socket = dir.join("w");
    let device = DeviceConfig::new(Below::Udp {
        addr: address(2),
        ifname: None,
    });
    let daemon = Daemon::start(DaemonConfig::new(&socket, vec![device])).unwrap();
    let ends = Ends::of(Context::attach(&socket, None).unwrap(), false);
    let mut receive = RecvBatch::new();
    receive.recv(0).sge(ends.mrs[1].slice(0..SIZE).unwrap());
    let mut send = SendBatch::new();
    send.send(1).inline(&[7; 8]);
    let mut times: Vec<f64> = (0..PAUSES)
        .map(|_| {
            ends.qps[1].post_recv(&receive).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let began = Instant::now();
            ends.qps[0].post(&send).unwrap();
            ends.wait(1);
            let time = began.elapsed().as_secs_f64() * 1e6;
            ends.wait(0);
            time
        })
        .collect();
    let (p50, least, most) = median(&mut times);
    println!(
        "a message to a daemon that sleeps: {p50:.1} us ({least:.1} to {most:.1}), target 100"
    );
    daemon.stop("measured");
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

/// All in turn; which is first changes.
fn measure(socket: &Path, mode: PollMode, round: usize) -> [[f64; 3]; 3] {
    let mut row = [[0.0; 3]; 3];
    for n in 0..3 {
        let n = (n + round) % 3;
        let device = Device::udp(address(1));
        let context = match n {
            0 => Context::open(&device, Drive::Caller).unwrap(),
            1 => Context::open(&device, Drive::Thread(mode)).unwrap(),
            _ => Context::attach(socket, None).unwrap(),
        };
        let ends = Ends::of(context, n == 0);
        let rate = ends.rate();
        let times = ends.latency();
        let at = |per_cent: usize| times[times.len() * per_cent / 100] as f64;
        row[n] = [rate, at(50), at(99)];
    }
    row
}
