//! The curves by size: each operation from 2 bytes to 1 MB over one link, a moment each.

use xroce_net::datapath::Datapath;
use xroce_wire::newtypes::PathMtu;

use super::support::threads::{Load, flood};
use super::support::{Op, Pair};
use super::{Lab, counting};

/// Length of a measurement of a point, as a part of that of a row: there are a hundred.
pub(crate) const PART: f64 = 0.1;

const SIZES: [u32; 11] = [
    2,
    8,
    64,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    1 << 20,
];
const OPS: [Op; 3] = [Op::Send, Op::Write, Op::Read];

/// What is measured over each link.
pub(crate) fn swept() -> impl Iterator<Item = (Op, u32)> {
    let sizes = |op| SIZES.map(|size| (op, size));
    OPS.into_iter().flat_map(sizes)
}

pub(crate) fn name(op: Op) -> &'static str {
    match op {
        Op::Send => "SEND",
        Op::Write => "WRITE",
        Op::Read => "READ",
    }
}

/// One round of a link with two ends in two threads.
pub(crate) fn round<D: Datapath + Send>(lab: &mut Lab, plot: &'static str, pair: &mut Pair<D>) {
    for (op, size) in swept() {
        lab.progress
            .says(&format!("{} of {size} B, {plot}", name(op)));
        let load = Load {
            op,
            size,
            mtu: PathMtu::Mtu4096,
            // As much outstanding as in the rows: 128 small messages, 1 MB or two large ones.
            depth: u64::from((1 << 20) / size.max(1)).clamp(2, 128),
        };
        let flow = flood(pair, load, lab.options.part(PART), counting::asked);
        lab.curves
            .add(plot, name(op), false, size, flow.messages_per_second());
    }
}
