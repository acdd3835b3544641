//! What is tried between xroce and rdma_rxe.
//!
//! A scenario is a name, what it runs on, and a function. It gets the [`Stage`], does its work
//! over a cable that was told which faults to make, and says what it saw; whatever is not as it
//! must be is an error.

mod atomics;
mod clean;
mod errors;
mod flush;
mod invalidate;
mod loss;
mod outage;
mod pair;
mod rnr;
mod shared;
mod tools;
pub(crate) mod traffic;
mod unreliable;
mod windows;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use xroce_vm::Vm;
use xroce_wire::newtypes::PathMtu;

use crate::clock;
use crate::ends::{End, Rxe, Xroce};
use crate::fabric::account::{Account, Harm, account, harm};
use crate::fabric::fault::{Fault, Rule, Side};
use crate::fabric::look::Class;
use crate::fabric::record::Record;
use crate::fabric::{Fabric, Route};

/// Pause between two looks at counters.
const LOOK: Duration = Duration::from_millis(5);

/// Which end starts the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Direction {
    /// xroce is requester (client), rxe responder (server).
    ToRxe,
    /// The other way round.
    ToXroce,
    /// Both.
    Both,
}

impl Direction {
    /// Both single directions.
    pub(crate) const EACH: [Self; 2] = [Self::ToRxe, Self::ToXroce];

    /// As in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ToRxe => "xroce → rxe",
            Self::ToXroce => "rxe → xroce",
            Self::Both => "both",
        }
    }

    /// Who sends requests.
    fn requester(self) -> Side {
        if self == Self::ToXroce {
            Side::Vm
        } else {
            Side::Xroce
        }
    }
}

/// What came of a scenario that went as it must.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Request packets seen twice on the cable, from xroce and from rxe.
    pub retransmitted: (u64, u64),
    /// A figure worth showing.
    pub figure: String,
    /// What else the report says.
    pub notes: Vec<String>,
    /// Attempts in which the peer failed by a fault of its own, before the one that went as it must.
    pub peer_faults: Vec<String>,
}

/// A scenario.
pub(crate) struct Scenario {
    /// Kind and details, unique with what follows.
    pub name: String,
    /// Who starts.
    pub direction: Direction,
    /// Network.
    pub route: Route,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Part of the short run.
    pub smoke: bool,
    /// Does it.
    pub run: Play,
}

impl Scenario {
    /// Over IPv4, with path MTU 1024.
    pub(crate) fn plain(
        name: impl Into<String>,
        direction: Direction,
        smoke: bool,
        run: impl Fn(&mut Stage, &Self) -> Result<Outcome> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            direction,
            route: Route::V4,
            mtu: mtu(1024),
            smoke,
            run: Box::new(run),
        }
    }
}

/// What a scenario does, told on what it runs.
pub(crate) type Play = Box<dyn Fn(&mut Stage, &Scenario) -> Result<Outcome>>;

/// Where scenarios play.
pub(crate) struct Stage {
    /// Our end is a device of a daemon.
    daemon: bool,
    /// The machine with rxe.
    pub vm: Vm,
    /// The cable.
    pub fabric: Fabric,
    /// Our engine, while it is open.
    xroce: Option<Xroce>,
    /// What the last scenario left on the cable, until the runner takes it.
    pub record: Option<Record>,
    /// What repetitions within it left that failed, each with a name.
    pub failed: Vec<(&'static str, Record)>,
    /// Seeds of faults.
    seed: u64,
    /// How many random programs, and which.
    pub programs: Programs,
}

/// Random programs of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Programs {
    /// How many on a kernel.
    pub count: u32,
    /// Seed of the first one of each kind.
    pub seed: u64,
}

impl Stage {
    /// With nothing open.
    pub(crate) fn new(vm: Vm, fabric: Fabric, seed: u64, programs: Programs, daemon: bool) -> Self {
        Self {
            daemon,
            programs,
            vm,
            fabric,
            xroce: None,
            record: None,
            failed: Vec::new(),
            seed,
        }
    }

    /// Both ends, ours opened if it was not.
    pub(crate) fn ends(&mut self) -> Result<(&mut Xroce, Rxe<'_>)> {
        self.ours()?;
        let xroce = self.xroce.as_mut().context("engine")?;
        Ok((xroce, Rxe::new(self.vm.agent())))
    }

    /// Our end alone: the machine need not answer.
    fn ours(&mut self) -> Result<&mut Xroce> {
        if self.xroce.is_none() {
            self.xroce = Some(Xroce::open(&self.fabric.netns, self.daemon)?);
        }
        self.xroce.as_mut().context("engine")
    }

    /// Closes our engine, so that another process can have the interface.
    pub(crate) fn close(&mut self) {
        self.xroce = None;
    }

    /// Starts recording, with these faults.
    pub(crate) fn start(&self, rules: &[Rule]) {
        self.fabric.start(rules, self.seed);
    }

    /// Ends recording and keeps the record for the runner.
    pub(crate) fn finish(&mut self) -> Result<&Record> {
        let record = self.fabric.finish()?;
        Ok(self.record.insert(record))
    }

    /// Keeps the record of the last repetition as that of one that failed.
    pub(crate) fn set_aside(&mut self, name: &'static str) {
        let record = self.record.take();
        self.failed.extend(record.map(|record| (name, record)));
    }

    /// Ends recording and keeps what was recorded from frame `from` on as that of a repetition that
    /// failed, in place of the one of the same name; what was recorded before is that of the scenario.
    pub(crate) fn finish_failed(&mut self, name: &'static str, from: usize) -> Result<&Record> {
        let mut record = self.fabric.finish()?;
        let failed = record.split_off(from);
        if from > 0 {
            self.record = Some(record);
        }
        self.failed.retain(|(other, _)| *other != name);
        self.failed.push((name, failed));
        let (_, failed) = self.failed.last().context("record")?;
        Ok(failed)
    }
}

/// The two accounts of a record and what the cable did.
struct Seen {
    xroce: Account,
    rxe: Account,
    harm: Harm,
}

impl Seen {
    fn of(record: &Record, mtu: PathMtu) -> Self {
        Self {
            xroce: account(record, Side::Xroce, mtu.bytes()),
            rxe: account(record, Side::Vm, mtu.bytes()),
            harm: harm(record),
        }
    }

    /// The scenario is not about overload: an end that was too slow spoils it.
    fn no_overflow(&self) -> Result<()> {
        ensure!(
            self.harm.overflow == 0,
            "{} frames were lost because an end was too slow",
            self.harm.overflow
        );
        Ok(())
    }

    /// A go-back-N requester goes back at most once for each packet that was lost, damaged or
    /// overtaken, and for each request that a slow peer leaves without an answer for too long.
    fn went_back_with_reason(&self) -> Result<()> {
        let reasons = self.harm.lost + self.harm.delayed;
        ensure!(
            self.xroce.went_back <= reasons + self.xroce.unanswered,
            "xroce went back {} times ({} packets sent again) for {reasons} packets lost or \
             overtaken and {} requests without an answer",
            self.xroce.went_back,
            self.xroce.retransmitted,
            self.xroce.unanswered
        );
        Ok(())
    }

    fn outcome(&self, figure: String) -> Outcome {
        Outcome {
            retransmitted: (self.xroce.retransmitted, self.rxe.retransmitted),
            figure,
            ..Outcome::default()
        }
    }
}

/// Runs `body` with requester and responder in the order of `direction`.
fn in_order<T>(
    stage: &mut Stage,
    direction: Direction,
    body: impl FnOnce(&mut dyn End, &mut dyn End) -> Result<T>,
) -> Result<T> {
    let (xroce, mut rxe) = stage.ends()?;
    match direction {
        Direction::ToRxe | Direction::Both => body(xroce, &mut rxe),
        Direction::ToXroce => body(&mut rxe, xroce),
    }
}

/// Longer than the kernel answers with the counters of rxe that it read last: their `lifespan`, 10 ms.
const COUNTERS_KEPT: Duration = Duration::from_millis(25);

/// Waits until an end has sent so many RNR NAKs since its counters were these.
fn until_refused(end: &mut dyn End, before: &Counters, count: u64) -> Result<()> {
    let until = clock::now() + pair::WAIT;
    while grown(before, &end.counters()?, "send_rnr_err")? < count {
        ensure!(
            clock::now() < until,
            "{} did not send {count} RNR NAKs",
            end.name()
        );
        thread::sleep(LOOK);
    }
    // Whoever asks next is to see what happened since.
    thread::sleep(COUNTERS_KEPT);
    Ok(())
}

/// One in `one_in` requests and as many ACKs get lost; none if it is 0.
fn lossy_rules(direction: Direction, one_in: u32) -> Vec<Rule> {
    if one_in == 0 {
        return Vec::new();
    }
    let requester = direction.requester();
    let rule = |from, class| Rule {
        from,
        class: Some(class),
        one_in,
        fault: Fault::Drop,
    };
    vec![
        rule(requester, Class::Request),
        rule(requester.other(), Class::Ack),
    ]
}

/// `ibv_wc_status`.
mod status {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const LOC_LEN: u32 = 1;
    pub(super) const LOC_QP_OP: u32 = 2;
    pub(super) const LOC_PROT: u32 = 4;
    pub(super) const FLUSHED: u32 = 5;
    pub(super) const MW_BIND: u32 = 6;
    pub(super) const REM_INV_REQ: u32 = 9;
    pub(super) const REM_ACCESS: u32 = 10;
    pub(super) const REM_OP: u32 = 11;
    pub(super) const RETRY: u32 = 12;
}

/// All scenarios, in the order in which they run: those that need the interface for themselves
/// first.
pub(crate) fn all() -> Vec<Scenario> {
    let mut list = tools::scenarios();
    list.extend(clean::scenarios());
    list.extend(atomics::scenarios());
    list.extend(unreliable::scenarios());
    list.extend(errors::scenarios());
    list.extend(rnr::scenarios());
    list.extend(invalidate::scenarios());
    list.extend(windows::scenarios());
    list.extend(shared::scenarios());
    list.extend(flush::scenarios());
    list.extend(loss::scenarios());
    list.extend(crate::diff::scenarios());
    list.extend(outage::scenarios());
    list
}

/// A path MTU of this many bytes.
pub(crate) fn mtu(bytes: usize) -> PathMtu {
    // Only called with the five there are.
    PathMtu::from_bytes(bytes).unwrap_or(PathMtu::Mtu1024)
}

/// "1.2 MB/s".
fn rate(bytes: u64, took: Duration) -> String {
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    let rate = bytes as f64 / took.as_secs_f64() / 1e6;
    format!("{rate:.1} MB/s")
}

/// Counters of an end, by name.
type Counters = BTreeMap<String, u64>;

/// The difference of a counter.
fn grown(before: &Counters, after: &Counters, name: &str) -> Result<u64> {
    let of = |map: &Counters| {
        map.get(name).copied().ok_or_else(|| {
            let names: Vec<&str> = map.keys().map(String::as_str).collect();
            anyhow!("no counter {name}; there are {}", names.join(" "))
        })
    };
    Ok(of(after)? - of(before)?)
}
