//! Hosts in network namespaces, with the addresses the kernel gives them.

use xroce_api::Failure;
use xroce_engine::clock;
use xroce_net::addressing::Addressing;
use xroce_net::datapath::Datapath;
use xroce_net::xdp::{XdpConfig, XdpPort};
use xroce_proto::counters::Counters;
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::time::Duration;
use xroce_proto::wc::{Completion, WcStatus};
use xroce_proto::wr::SendOp;
use xroce_testnet::Netns;
use xroce_wire::newtypes::{Gid, PathMtu, Psn, Qpn};
use xroce_wire::path::{AhAttr, Flow};

use super::{ALL_ACCESS, Host};

/// Nothing here takes this long.
pub const LIMIT: Duration = Duration::from_millis(20_000);

/// A host in a namespace with the addresses of its port.
pub struct End<'n, D: Datapath> {
    pub ns: &'n Netns,
    pub host: Host<D>,
    pub addressing: Addressing,
    pub qpn: Qpn,
    sgid_index: u32,
}

impl<'n, D: Datapath> End<'n, D> {
    pub fn new(ns: &'n Netns, port: D, addressing: Addressing) -> Self {
        let gid = addressing.gids().get(0).unwrap().gid;
        Self::at(ns, port, addressing, gid)
    }

    /// With an address that is not the port's first.
    pub fn at(ns: &'n Netns, port: D, addressing: Addressing, gid: Gid) -> Self {
        let at = addressing.gids().find(gid);
        let ip = gid.ip().to_canonical();
        let mut host = Host::new(port, &ip.to_string(), 0, 1 << 20);
        host.engine.set_gids(addressing.gids());
        let init = QpInit::rc(host.pd, host.cq, host.cq);
        let qpn = host.engine.create_qp(&init).unwrap();
        Self {
            ns,
            host,
            addressing,
            qpn,
            sgid_index: at.unwrap(),
        }
    }

    /// `tune` gets the attributes of each step.
    pub fn connect(
        &mut self,
        peer: Qpn,
        attr: &AhAttr,
        mtu: PathMtu,
        tune: &dyn Fn(QpAttr) -> QpAttr,
    ) {
        let flow = Flow::Connected {
            local: self.qpn,
            peer,
        };
        let (ns, addressing) = (self.ns, &self.addressing);
        let attr = AhAttr {
            sgid_index: self.sgid_index,
            ..*attr
        };
        let path = ns.run(|| addressing.resolve(&attr, flow).unwrap());
        let rts = QpAttr {
            timeout: Some(10),
            retry_cnt: Some(3),
            ..QpAttr::rts(Psn::new(1))
        };
        let rtr = QpAttr::rtr(path, mtu, peer, Psn::new(1));
        for attr in [QpAttr::init(ALL_ACCESS), rtr, rts] {
            self.host.engine.modify_qp(self.qpn, &tune(attr)).unwrap();
        }
    }

    pub fn counters(&self) -> Counters {
        self.host.engine.qp_counters(self.qpn).unwrap()
    }

    pub fn turn(&mut self) {
        self.host.engine.poll_once(clock::now()).unwrap();
    }

    /// What happened to the port, handed to the engine.
    pub fn look(&mut self) {
        let (ns, addressing) = (self.ns, &mut self.addressing);
        let mut events = Vec::new();
        ns.run(|| addressing.poll(&mut |event| events.push(event)).unwrap());
        for event in &events {
            self.host.engine.apply(event);
        }
    }

    /// Until the QP has failed; looks around before it asks why.
    pub fn dies(&mut self, other: &mut Self) -> Failure {
        let end = clock::now() + LIMIT;
        while self.host.engine.failure(self.qpn).is_none() {
            assert!(clock::now() < end, "{:?}", self.host.engine.stats());
            self.turn();
            other.turn();
        }
        self.look();
        self.host.engine.failure(self.qpn).unwrap()
    }
}

pub fn open_xdp(ns: &Netns, ifname: &str, tag: Option<u16>) -> (XdpPort, Addressing) {
    ns.run(|| {
        let port = XdpPort::open(&XdpConfig::new(ifname)).unwrap();
        (port, Addressing::ethernet(ifname, tag).unwrap())
    })
}

pub fn xdp<'n>(ns: &'n Netns, ifname: &str, tag: Option<u16>) -> End<'n, XdpPort> {
    let (port, addressing) = open_xdp(ns, ifname, tag);
    End::new(ns, port, addressing)
}

pub fn write<D: Datapath, E: Datapath>(from: &mut End<'_, D>, to: &End<'_, E>, id: u64, len: u32) {
    let (va, rkey) = (to.host.va(0), to.host.mr.rkey);
    let (qpn, sge) = (from.qpn, from.host.sge(0, len));
    from.host
        .post_send(qpn, id, SendOp::Write { va, rkey }, &[sge]);
}

/// A WRITE that succeeds.
pub fn exchange<D: Datapath, E: Datapath>(from: &mut End<'_, D>, to: &mut End<'_, E>, len: u32) {
    write(from, to, 1, len);
    let end = clock::now() + LIMIT;
    let mut done: Vec<Completion> = Vec::new();
    while done.is_empty() {
        assert!(clock::now() < end, "{:?}", to.host.engine.stats());
        from.turn();
        to.turn();
        done = from.host.completions();
    }
    let why = from.host.engine.failure(from.qpn).map(|f| f.to_string());
    assert_eq!(
        done[0].status,
        WcStatus::Success,
        "{}",
        why.unwrap_or_default()
    );
}

/// Connects the two; `way` gets the address each gives, `tune` the attributes of each step.
pub fn connect<D: Datapath, E: Datapath>(
    a: &mut End<'_, D>,
    b: &mut End<'_, E>,
    mtu: PathMtu,
    way: impl Fn(usize, &mut AhAttr),
    tune: &dyn Fn(QpAttr) -> QpAttr,
) {
    let mut attrs = [AhAttr::to(b.host.gid), AhAttr::to(a.host.gid)];
    for (i, attr) in attrs.iter_mut().enumerate() {
        way(i, attr);
    }
    let (qa, qb) = (a.qpn, b.qpn);
    a.connect(qb, &attrs[0], mtu, tune);
    b.connect(qa, &attrs[1], mtu, tune);
}

pub fn both<D: Datapath, E: Datapath>(
    a: &mut End<'_, D>,
    b: &mut End<'_, E>,
    mtu: PathMtu,
    way: impl Fn(usize, &mut AhAttr),
) {
    connect(a, b, mtu, way, &|attr| attr);
}
