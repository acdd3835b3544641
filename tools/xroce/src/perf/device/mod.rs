//! What is measured: a software RNIC, as an engine with a port in this process ([`Node`]) or as a
//! device by its verbs ([`VerbsDevice`]), which is how the daemon has them.
//!
//! The loops that post and poll are compiled for each of the two. So over an engine in this process
//! a work request is a direct call, and the daemon costs it nothing.

pub(crate) mod node;
pub(crate) mod port;
pub(crate) mod ports;
pub(crate) mod verbs;

use std::fmt::Debug;
use std::net::IpAddr;

use anyhow::Result;
use xroce_api::{EngineStats, Failure, Mr, PollMode, PortStats};
use xroce_net::datapath::Datapath;
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::rtt::Histogram;
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq};
use xroce_proto::wr::{RecvWr, SendWr};
use xroce_shm::Region;
use xroce_wire::newtypes::{Gid, LKey, Qpn};

use self::node::Node;
use self::port::Visitor;
use self::verbs::VerbsDevice;
use crate::perf::args::PortArgs;
use crate::perf::congestion::Congestion;

/// A device whose queue pairs are measured. It belongs to the calling thread.
///
/// # Errors
/// Calls fail if the device refuses or is broken; the error says why.
pub(crate) trait Device {
    /// How packets get to a peer.
    type Path: Copy + Debug;

    /// RoCE address of this side.
    fn local(&self) -> IpAddr;
    /// IP MTU of the link in bytes.
    fn link_mtu(&self) -> usize;
    /// Name of the port, for messages to people.
    fn port_name(&self) -> &str;
    /// Whether IPv4 headers are the kernel's, so that this side never sees those of the peer.
    fn is_blind(&self) -> bool;
    /// How fast queue pairs send.
    fn congestion(&self) -> &Congestion;
    /// The way to `dst`.
    fn path(&self, dst: Gid) -> Result<Self::Path>;

    /// The protection domain of all objects.
    fn pd(&self) -> Pd;
    /// Registers memory.
    fn reg_mr(&mut self, region: &Region, access: Access) -> Result<Mr>;
    /// Takes a region back.
    fn dereg_mr(&mut self, lkey: LKey);
    /// A completion queue of at least this depth, empty. There is one at a time.
    fn cq(&mut self, depth: u32) -> Result<Cq>;
    /// Makes a queue pair.
    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn>;
    /// Changes a queue pair.
    fn modify_qp(&mut self, qpn: Qpn, attr: &QpAttr) -> Result<()>;
    /// Changes a queue pair to RTR, with the way to its peer.
    fn connect_qp(&mut self, qpn: Qpn, peer: Qpn, path: Self::Path, rtr: QpAttr) -> Result<()>;
    /// Destroys a queue pair.
    fn destroy_qp(&mut self, qpn: Qpn);

    /// Posts a send. The device may see it only with the next [`Device::ring`] or
    /// [`Device::turn`].
    fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<()>;
    /// Posts a receive, in the same way.
    fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<()>;
    /// Shows the device what was posted.
    fn ring(&mut self) -> Result<()>;
    /// Takes completions.
    fn poll_cq(&mut self, cq: Cq, out: &mut [Completion]) -> Result<usize>;
    /// What [`Device::turn`] does from now on when nothing is to be done.
    fn set_poll(&mut self, mode: PollMode);
    /// Shows the device what was posted and has it move, if it does not move by itself; waits a
    /// little if there is nothing to do. Whether there was.
    fn turn(&mut self, now: Instant) -> Result<bool>;

    /// What a queue pair has counted.
    fn counters(&self, qpn: Qpn) -> Option<Counters>;
    /// Round-trip times of a queue pair, if the device hands them out.
    fn rtt(&self, qpn: Qpn) -> Option<&Histogram>;
    /// What engine and port have counted since they began, for others too.
    fn stats(&mut self) -> Result<(EngineStats, PortStats)>;
    /// Why a queue pair failed by itself.
    fn failure(&self, qpn: Qpn) -> Result<Option<Failure>>;
}

/// What to do with a device, whichever it is.
pub(crate) trait User {
    /// Uses the device.
    ///
    /// # Errors
    /// Whatever goes wrong.
    fn run<D: Device>(self, device: D) -> Result<()>;
}

/// Opens the device that the command line asks for and hands it to `user`. `near` is the address of
/// this side on the side channel, if there is one yet: it is the RoCE address if no other was given
/// and the device has it.
///
/// # Errors
/// It cannot be opened, or what `user` returns.
pub(crate) fn open(args: &PortArgs, near: Option<IpAddr>, user: impl User) -> Result<()> {
    match &args.verbs {
        None => port::open(args, near, OnPort(user)),
        Some(_) => user.run(VerbsDevice::open(args, near)?),
    }
}

/// A user of a device that is an engine with a port.
struct OnPort<U>(U);

impl<U: User> Visitor for OnPort<U> {
    fn visit<D: Datapath>(self, node: Node<D>) -> Result<()> {
        self.0.run(node)
    }
}
