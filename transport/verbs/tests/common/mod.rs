//! Two contexts, driven by hand, over the simulated network.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xroce_api::PortStats;
use xroce_net::datapath::{Caps, Datapath, Rx, TxMeta};
use xroce_net::sim::{Impairment, PortConfig, SimNet, SimPort};
use xroce_verbs::{
    Access, Addressing, Completion, ConnectAttr, Connected, Context, Cq, Drive, Gid, GidEntry,
    Init, Instant, Mr, Pd, Qp, QpBuilder, Rc, Ready, Uc,
};
use xroce_wire::newtypes::MacAddr;

/// Everything a peer may do.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL);

/// Polls at one point in time, at most.
const POLLS_MAX: u32 = 100_000;

/// Frames on their way between a context and its port on the network, which cannot leave the
/// thread it was made in.
#[derive(Debug, Default)]
struct Frames {
    inn: VecDeque<Vec<u8>>,
    out: VecDeque<Vec<u8>>,
    broken: bool,
}

/// The context's end.
#[derive(Debug)]
struct Cable {
    caps: Caps,
    frames: Arc<Mutex<Frames>>,
    lent: Vec<u8>,
    stats: PortStats,
}

impl Datapath for Cable {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        let mut frames = self.frames.lock().unwrap();
        if frames.broken {
            return Err(io::Error::other("unplugged"));
        }
        let count = budget.min(frames.inn.len());
        for frame in frames.inn.drain(..count) {
            each(Rx::Ethernet(&frame));
        }
        Ok(count)
    }

    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        self.lent.resize(self.caps.max_frame, 0);
        Some(&mut self.lent)
    }

    fn tx_commit(&mut self, _: &TxMeta, len: usize) {
        self.stats.tx_frames += 1;
        let frame = self.lent[..len].to_vec();
        self.frames.lock().unwrap().out.push_back(frame);
    }

    fn tx_flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn join(&mut self, _: Gid) -> io::Result<()> {
        Ok(())
    }

    fn stats(&mut self) -> PortStats {
        self.stats
    }
}

/// One end: a context with a PD, a CQ and one region.
pub struct Host {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
    frames: Arc<Mutex<Frames>>,
    port: SimPort,
}

impl Host {
    fn new(net: &SimNet, n: u8) -> Self {
        let port = net.port(&PortConfig::numbered(n));
        let frames = Arc::<Mutex<Frames>>::default();
        let cable = Cable {
            caps: port.caps().clone(),
            frames: Arc::clone(&frames),
            lent: Vec::new(),
            stats: PortStats::default(),
        };
        let entry = GidEntry {
            gid: gid(n),
            ifindex: 1,
            ifname: "sim".to_owned(),
            mac: mac(n),
            vlan: None,
            link_local: false,
        };
        let neighbours = (0..2).map(|n| (gid(n), mac(n))).collect();
        let addressing = Addressing::given(vec![entry], neighbours);
        let context = Context::on_port(cable, addressing, Drive::Manual).unwrap();
        let pd = context.alloc_pd().unwrap();
        Self {
            cq: context.create_cq(1024).unwrap(),
            mr: pd.alloc_mr(1 << 16, ALL).unwrap(),
            pd,
            context,
            frames,
            port,
        }
    }

    /// Carries frames between context and network; whether there were any.
    fn carry(&mut self) -> bool {
        let mut frames = self.frames.lock().unwrap();
        let mut any = !frames.out.is_empty();
        while let Some(frame) = frames.out.pop_front() {
            let room = self.port.tx_begin().unwrap();
            room[..frame.len()].copy_from_slice(&frame);
            let meta = TxMeta {
                dst: Gid::default(),
                tos: 0,
            };
            self.port.tx_commit(&meta, frame.len());
        }
        self.port.tx_flush().unwrap();
        let received = self.port.rx_burst(4096, &mut |rx| {
            let Rx::Ethernet(frame) = rx else { return };
            frames.inn.push_back(frame.to_vec());
        });
        any |= received.unwrap() != 0;
        any
    }

    /// From now on the port fails.
    pub fn unplug(&self) {
        self.frames.lock().unwrap().broken = true;
    }

    /// A queue pair to be, for up to 64 sends and receives of 4 SGEs.
    pub fn qp<S: xroce_verbs::Service>(&self) -> QpBuilder<'_, S> {
        let qp = self.pd.qp(&self.cq, &self.cq);
        qp.max_send_wr(64)
            .max_recv_wr(64)
            .max_send_sge(4)
            .max_recv_sge(4)
    }

    /// Completions that are there.
    pub fn completions(&self) -> Vec<Completion> {
        std::iter::from_fn(|| self.cq.poll_one().unwrap()).collect()
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.mr.read(at, &mut out).unwrap();
        out
    }
}

pub fn gid(n: u8) -> Gid {
    let ip: IpAddr = [192, 0, 2, n + 1].into();
    Gid::from(ip)
}

fn mac(n: u8) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, n])
}

/// Two hosts and the network between them.
pub struct World {
    pub net: SimNet,
    pub hosts: [Host; 2],
}

impl World {
    pub fn new() -> Self {
        Self::with(Impairment::delay(1000))
    }

    pub fn with(wire: Impairment) -> Self {
        let net = SimNet::new(7);
        let hosts = [0, 1].map(|n| Host::new(&net, n));
        net.connect(&hosts[0].port, &hosts[1].port, wire, wire);
        Self { net, hosts }
    }

    /// Polls until nothing has anything to do now.
    pub fn settle(&mut self) {
        let now = Instant::from_nanos(self.net.now());
        for _ in 0..POLLS_MAX {
            let mut busy = false;
            for host in &mut self.hosts {
                busy |= host.context.poll_at(now).is_ok_and(|work| !work.is_idle());
                busy |= host.carry();
            }
            if !busy {
                return;
            }
        }
        panic!("work for ever at {} ns", self.net.now());
    }

    /// Runs until nothing happens any more, or for 20 s of virtual time.
    pub fn run(&mut self) {
        let end = self.net.now() + 20_000_000_000;
        loop {
            self.settle();
            let now = self.net.now();
            let deadlines = self.hosts.iter().filter_map(|h| h.context.next_deadline());
            let deadlines = deadlines.map(Instant::as_nanos).filter(|&at| at > now);
            let next = deadlines.chain(self.net.next_event()).min();
            match next {
                Some(next) if next < end => self.net.advance_to(next.max(now + 1)),
                _ => return,
            }
        }
    }

    /// Queue pairs in INIT.
    pub fn init<S: Connected>(&self) -> [Qp<S, Init>; 2] {
        [0, 1].map(|n| {
            let qp = self.hosts[n].qp::<S>().create().unwrap();
            qp.init(ALL).unwrap()
        })
    }

    /// A connected pair.
    pub fn rc(&self) -> [Qp<Rc>; 2] {
        connect_rc(self.init(), &ConnectAttr::default())
    }

    pub fn uc(&self) -> [Qp<Uc>; 2] {
        let [a, b] = self.init::<Uc>();
        let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
        let attr = ConnectAttr::default();
        [
            a.connect(&ends[1], &attr).unwrap(),
            b.connect(&ends[0], &attr).unwrap(),
        ]
    }
}

pub fn connect_rc([a, b]: [Qp<Rc, Init>; 2], attr: &ConnectAttr) -> [Qp<Rc, Ready>; 2] {
    let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    [
        a.connect(&ends[1], attr).unwrap(),
        b.connect(&ends[0], attr).unwrap(),
    ]
}
