//! Raw AF_XDP on the rings of two engines: what nothing built on them can beat.

use std::io;

use xroce_engine::clock;
use xroce_net::xdp::XdpPort;
use xroce_net::xdp::raw::{DEFAULT_BATCH, RawEnd, RawPath};
use xroce_proto::time::Duration;

use super::support::threads::two;
use super::support::{Pair, Place};

/// The other end has stopped when nothing came for so long, in ns.
const QUIET_NS: u64 = 50_000_000;
/// The first frame is waited for so long, in ns.
const PATIENCE_NS: u64 = 2_000_000_000;

fn now() -> u64 {
    clock::now().as_nanos()
}

fn path(from: &Place, to: &Place) -> RawPath {
    RawPath {
        src_mac: from.mac,
        dst_mac: to.mac,
        src: from.gid,
        dst: to.gid,
        src_port: from.src_port,
    }
}

fn ends(pair: &mut Pair<XdpPort>, len: usize) -> io::Result<(RawEnd<'_>, RawEnd<'_>)> {
    let [a, b] = &mut pair.ends;
    let (there, back) = (path(&a.place, &b.place), path(&b.place, &a.place));
    Ok((
        RawEnd::new(a.engine.port_mut(), &there, len)?,
        RawEnd::new(b.engine.port_mut(), &back, len)?,
    ))
}

/// Frames a second that arrive when one end sends as fast as it can.
pub(crate) fn flood(pair: &mut Pair<XdpPort>, len: usize, time: Duration) -> io::Result<f64> {
    let (mut from, mut to) = ends(pair, len)?;
    let (sent, received) = two(
        || from.flood(DEFAULT_BATCH, time.as_nanos(), now),
        || to.sink(QUIET_NS, PATIENCE_NS, now),
    );
    sent?;
    Ok(received?.frames_per_second())
}

/// Round trips of single frames in ns, sorted.
pub(crate) fn ping_pong(
    pair: &mut Pair<XdpPort>,
    len: usize,
    time: Duration,
) -> io::Result<Vec<u64>> {
    let (mut a, mut b) = ends(pair, len)?;
    let mut round_trips = Vec::with_capacity(1 << 20);
    let (pinged, echoed) = two(
        || a.ping(time.as_nanos(), now, |ns| round_trips.push(ns)),
        || b.echo(QUIET_NS, PATIENCE_NS, now),
    );
    pinged?;
    echoed?;
    round_trips.sort_unstable();
    Ok(round_trips)
}
