//! What needs no link: two engines in one thread over the in-memory port (D6, D7, D9 to D11).

use xroce_engine::clock;
use xroce_net::datapath::Link;
use xroce_net::sim::LoopPort;
use xroce_proto::time::Duration;
use xroce_wire::newtypes::PathMtu;

use super::profile::{self, ICRC, Work};
use super::qps::Scaling;
use super::rows::{D6, D6_INSTRUCTIONS, D7, D7_CC, D9_INSTRUCTIONS, D9_MEMORY, D10, D11};
use super::sizes;
use super::support::core::{ByteRate, MessageRate, icrc_alone};
use super::support::{Op, Pace, Pair};
use super::{Lab, counting, plan, qps};

/// Bytes of a packet of D7.
const PACKET: f64 = 4096.0;

/// What is asked for, made once.
pub(crate) struct Memory {
    messages: Option<MessageRate>,
    bytes: Option<ByteRate>,
    scaling: Option<Scaling>,
    sizes: Option<Pair<LoopPort>>,
}

impl Memory {
    pub(crate) fn open(lab: &Lab) -> Self {
        let wants = |id| lab.options.wants(id);
        let bytes = wants(D7.id) || wants(D7_CC.id) || wants(D9_MEMORY.id);
        let pair = || Pair::in_memory(Link::Ethernet, PathMtu::Mtu4096, 1);
        Self {
            messages: wants(D6.id).then(MessageRate::new),
            bytes: bytes.then(ByteRate::new),
            scaling: wants(D11.id).then(Scaling::new),
            sizes: wants(plan::SIZES).then(pair),
        }
    }

    pub(crate) fn round(&mut self, lab: &mut Lab) {
        if let Some(messages) = &mut self.messages {
            lab.table.add(&D6, messages.measure(), None);
        }
        if let Some(bytes) = &mut self.bytes {
            in_bytes(lab, bytes);
        }
        if let Some(scaling) = &mut self.scaling {
            lab.progress.says("D11");
            scaling.round(lab);
        }
        if let Some(pair) = &mut self.sizes {
            lab.progress.says("sizes, in memory");
            for (op, size) in sizes::swept() {
                let rate = in_memory(pair, op, size, lab.options.part(sizes::PART));
                lab.curves
                    .add("sizes-memory", sizes::name(op), false, size, rate);
            }
        }
    }

    /// What is counted and not timed: once a run.
    pub(crate) fn count(lab: &mut Lab) {
        if lab.options.wants(D6.id) || lab.options.wants(D9_MEMORY.id) {
            lab.progress.part("instructions");
            instructions(lab);
        }
        if lab.options.wants(D10.id) {
            allocations(lab);
        }
        if lab.options.wants(D11.id) {
            qps::memory(lab);
        }
    }
}

/// One round of D7, with pacing, and of D9.
fn in_bytes(lab: &mut Lab, bytes: &mut ByteRate) {
    let with = |pace| move |bytes: &mut ByteRate| bytes.measure(pace);
    if lab.options.wants(D7.id) {
        let (ours, bare) = lab.measure(bytes, with(Pace::Fixed), ByteRate::copy_and_crc);
        lab.table.add(&D7, ours, bare);
    }
    if lab.options.wants(D7_CC.id) {
        let (paced, plain) = lab.measure(bytes, with(Pace::Dcqcn), with(Pace::Fixed));
        lab.table.add(&D7_CC, paced, plain);
    }
    if lab.options.wants(D9_MEMORY.id) {
        let ours = |_: &mut ByteRate| 2.0 * icrc_alone() * 1e9;
        let (ours, rate) = lab.measure(bytes, ours, with(Pace::Fixed));
        lab.table
            .add(&D9_MEMORY, ours, rate.map(|r| PACKET * 1e9 / r));
    }
}

/// Messages a second, in turns of a few.
fn in_memory(pair: &mut Pair<LoopPort>, op: Op, size: u32, time: Duration) -> f64 {
    // Receives that are left are of the size before.
    pair.disconnect();
    pair.connect(PathMtu::Mtu4096);
    // The port holds 256 frames: a turn keeps it full for a while also with large messages.
    let turn = (16 << 20) / size.max(4096);
    pair.stream(op, size, turn as usize / 4);
    let start = clock::now();
    let mut count = 0;
    loop {
        pair.stream(op, size, turn as usize);
        count += u64::from(turn);
        let took = clock::now().since(start);
        if took >= time {
            return count as f64 * 1e9 / took.as_nanos() as f64;
        }
    }
}

fn instructions(lab: &mut Lab) {
    for work in [Work::Send64, Work::Write4k] {
        match (profile::take(work), work) {
            (Ok(profile), work) => {
                lab.bars.push(profile.bar());
                if work == Work::Send64 && lab.options.wants(D6.id) {
                    lab.table.add(&D6_INSTRUCTIONS, profile.total(), None);
                }
                if work == Work::Write4k && lab.options.wants(D9_MEMORY.id) {
                    let (icrc, all) = (profile.of(ICRC), profile.total());
                    lab.table.add(&D9_INSTRUCTIONS, icrc, Some(all));
                }
            }
            (Err(why), Work::Send64) if lab.options.wants(D6.id) => {
                lab.table.note(&D6_INSTRUCTIONS, why);
            }
            (Err(why), _) if lab.options.wants(D9_MEMORY.id) => {
                lab.table.note(&D9_INSTRUCTIONS, why);
            }
            (Err(_), _) => {}
        }
    }
}

/// D10 for all operations; the other links add theirs with each measurement.
fn allocations(lab: &mut Lab) {
    const COUNT: usize = 20_000;
    let mut pair = Pair::in_memory(Link::Ethernet, PathMtu::Mtu4096, 1);
    for (op, size) in [(Op::Send, 64), (Op::Write, 8192), (Op::Read, 8192)] {
        pair.stream(op, size, COUNT);
        let before = counting::asked();
        pair.stream(op, size, COUNT);
        let asked = counting::asked() - before;
        lab.table.add(&D10, asked as f64 / COUNT as f64, None);
    }
    lab.table.note(&D10, "in memory");
}
