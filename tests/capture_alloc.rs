//! A capture costs the engine's thread no allocation.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod counting;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tempfile::TempDir;
use xroce_api::PortStats;
use xroce_api::Request;
use xroce_api::message as reply;
use xroce_api::message::{CaptureMade, CaptureSpec, CaptureStats};
use xroce_control::capture::{self};
use xroce_control::socket::{self, Kind};
use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};
use xroce_net::addressing::Addressing;
use xroce_net::datapath::{Caps, Datapath, Rx, TxMeta};
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_shm::{Consumer, Piece, Region};
use xroce_verbs::{Access, ConnectAttr, Context, RecvBatch, SendBatch};
use xroce_wire::newtypes::{Gid, Qpn};

const LONG: Duration = Duration::from_secs(60);

/// A port that tells, from the thread that has it, what that thread has asked the allocator for
/// while it sent and received. Not of all it does: the look at the addresses, ten times a second,
/// allocates whether anybody captures or not.
struct Telling {
    port: UdpPort,
    began: Option<u64>,
    asked: Arc<AtomicU64>,
}

impl Telling {
    /// Adds what this thread asked for since `began`.
    fn add(&self, began: u64) {
        self.asked
            .fetch_add(counting::asked() - began, Ordering::Relaxed);
    }
}

impl Datapath for Telling {
    fn caps(&self) -> &Caps {
        self.port.caps()
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        let began = counting::asked();
        let came = self.port.rx_burst(budget, each);
        self.add(began);
        came
    }

    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        self.began.get_or_insert_with(counting::asked);
        self.port.tx_begin()
    }

    fn tx_commit(&mut self, meta: &TxMeta, len: usize) {
        self.port.tx_commit(meta, len);
    }

    /// Ends what began with the first frame. A poll receives before it or after it: between two
    /// calls of the port a thread may do anything.
    fn tx_flush(&mut self) -> io::Result<()> {
        let began = self.began.take().unwrap_or_else(counting::asked);
        let sent = self.port.tx_flush();
        self.add(began);
        sent
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.port.wait(timeout)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.port.readiness()
    }

    fn stats(&mut self) -> PortStats {
        self.port.stats()
    }
}

fn ask<T: DeserializeOwned>(socket: &OwnedFd, request: &Request) -> (T, Vec<OwnedFd>) {
    socket::send(socket, Kind::Request, request, &[]).unwrap();
    let message = socket::receive(socket, rustix::net::RecvFlags::empty()).unwrap();
    (message.body().unwrap(), message.fds)
}

/// Two processes of one daemon, and messages between them.
fn exchange(path: &std::path::Path, mut between: impl FnMut(&mut dyn FnMut(u64), Qpn)) {
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let ends = [(); 2].map(|()| {
        let context = Context::attach(path, None).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024).unwrap();
        let mr = pd.alloc_mr(1 << 17, all).unwrap();
        (context, pd, cq, mr)
    });
    let qps = [0, 1].map(|n: usize| {
        let (_, pd, cq, _) = &ends[n];
        let qp = pd.qp::<xroce_verbs::Rc>(cq, cq).create().unwrap();
        qp.init(all).unwrap()
    });
    let info = [qps[0].endpoint().unwrap(), qps[1].endpoint().unwrap()];
    let number = qps[0].qpn();
    let attr = ConnectAttr {
        timeout: 18,
        ..ConnectAttr::default()
    };
    let [a, b] = qps;
    let a = a.connect(&info[1], &attr).unwrap();
    let b = b.connect(&info[0], &attr).unwrap();
    let [(_, _, near, from), (_, _, far, to)] = &ends;
    let mut receive = RecvBatch::new();
    receive.recv(1).sge(to.slice(0..8192).unwrap());
    let mut send = SendBatch::new();
    send.send(2).sge(from.slice(0..6000).unwrap());
    let target = to.remote().unwrap().slice(8192..78_192).unwrap();
    send.write(3, target).sge(from.slice(0..70_000).unwrap());
    let mut run = |count| {
        for _ in 0..count {
            b.post_recv(&receive).unwrap();
            a.post(&send).unwrap();
            for cq in [near, near, far] {
                cq.next(LONG).unwrap().unwrap().ok().unwrap();
            }
        }
    };
    between(&mut run, number);
}

#[test]
fn capturing_allocates_nothing_on_the_engines_thread() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let addr = IpAddr::V4(Ipv4Addr::new(127, 16, high, low.clamp(1, 254)));
    let port = UdpPort::bind(addr, &UdpConfig::default()).unwrap();
    let addressing = Addressing::udp(Gid::from(addr), 0, port.src_port()).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let port = Telling {
        port,
        began: None,
        asked: Arc::clone(&asked),
    };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s");
    let ifname = None;
    let device = DeviceConfig::new(Below::Udp { addr, ifname });
    let config = DaemonConfig::new(&path, Vec::new());
    let _daemon = Daemon::on_port(config, &device, port, addressing).unwrap();
    exchange(&path, |run, qp| {
        run(100);
        for errors in [false, true] {
            let socket = socket::connect_to(&path).unwrap();
            let program = "capture".to_owned();
            let _: (reply::Welcome, _) = ask(&socket, &Request::Hello { program });
            let _: (reply::Opened, _) = ask(&socket, &Request::Open { device: None });
            let spec = CaptureSpec {
                qp: Some(qp),
                errors,
                entries: 1 << 13,
                ..CaptureSpec::default()
            };
            let (made, fds): (CaptureMade, _) = ask(&socket, &Request::Capture { spec });
            let mut fds = fds.into_iter();
            let geometry = capture::ring(made.ring).unwrap();
            let piece = Piece {
                fd: fds.next().unwrap(),
                offset: 0,
                len: geometry.bytes(),
            };
            let memory = Region::from_pieces(vec![piece]).unwrap();
            let mut ring = Consumer::new(&memory, 0, geometry).unwrap();
            // The count is of the end of a poll: of one after that which began the capture.
            run(1);
            let before = asked.load(Ordering::Relaxed);
            // More than the ring holds: taken out in between, and then no more.
            let mut frame = Vec::new();
            for _ in 0..10 {
                run(10);
                while capture::next(&mut ring, &mut frame).unwrap().is_some() {}
            }
            run(200);
            assert_eq!(asked.load(Ordering::Relaxed) - before, 0);
            let (stats, _): (CaptureStats, _) = ask(&socket, &Request::EndCapture);
            assert!(stats.seen > 6_000, "{stats:?}");
            if !errors {
                assert!(stats.captured > 2_000 && stats.dropped > 1_000, "{stats:?}");
            }
        }
    });
}
