//! What to measure with a program that cannot be told: its own options, and its defaults.

use anyhow::{Result, bail};
use xroce_proto::time::Duration;

use crate::perf::args::{Compat, Format, TestArgs};
use crate::perf::parse::Sizes;
use crate::perf::plan::{Op, Repair, Test};

/// "All" sizes of perftest are so many powers of two from 2 B up: to 8 MB.
const ALL_SIZES: u32 = 23;
/// Messages in a test.
const ITERATIONS: u64 = 1000;
/// The same for WRITE bandwidth.
const WRITE_ITERATIONS: u64 = 5000;

/// What to measure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Job {
    /// The peer.
    pub program: Compat,
    /// Operation.
    pub op: Op,
    /// Bandwidth or latency.
    pub test: Test,
    /// Message sizes in bytes, at least one.
    pub sizes: Vec<u32>,
    /// Whether the sizes are "all": the peer then waits at other places.
    pub all: bool,
    /// Messages per queue pair and size.
    pub iterations: u64,
    /// Messages outstanding on each queue pair.
    pub depth: u32,
    /// Receives kept posted on each queue pair.
    pub rx_depth: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Path MTU in bytes, if asked for.
    pub mtu: Option<u32>,
    /// Whether both sides send.
    pub bidirectional: bool,
    /// How this side repairs losses: nothing that the peer would notice.
    pub repair: Repair,
    /// Whether to print JSON.
    pub json: bool,
    /// How long the peer may be silent.
    pub patience: Duration,
}

impl Job {
    /// The job that the arguments ask for; `None` without `--compat`.
    ///
    /// # Errors
    /// The other program has nothing like it.
    pub(crate) fn new(args: &TestArgs) -> Result<Option<Self>> {
        let Some(program) = args.compat else {
            return Ok(None);
        };
        if args.verify {
            bail!(
                "--compat {program}: the peer sends nothing that could be compared: leave --verify away"
            );
        }
        if args.format() == Format::Csv {
            bail!("--compat {program}: results are a table or JSON: leave --format csv away");
        }
        if args.repair == Repair::Selective {
            bail!(
                "--compat {program}: the peer does not know selective retransmission: use --repair \
                 adaptive"
            );
        }
        let job = match program {
            Compat::Perftest => Self::perftest(args)?,
            Compat::Pingpong => Self::pingpong(args)?,
        };
        let few = u32::try_from(job.iterations).unwrap_or(u32::MAX);
        Ok(Some(Self {
            depth: job.depth.min(few),
            rx_depth: job.rx_depth.min(few),
            ..job
        }))
    }

    fn perftest(args: &TestArgs) -> Result<Self> {
        let op = one("operation", "--op", &args.op, Op::Send)?;
        let test = one("kind of test", "--test", &args.test, Test::Bw)?;
        if test == Test::Lat {
            for (given, option) in [
                (one_number("--qps", &args.qps, 1)? > 1, "--qps"),
                (args.bidirectional, "--bidirectional"),
            ] {
                if given {
                    bail!("perftest has {option} only for bandwidth: use --test bw");
                }
            }
        }
        if op != Op::Send && args.rx_depth.is_some() {
            bail!("--rx-depth is for SEND: {op} takes no receives");
        }
        let usual = if test == Test::Lat { 2 } else { 64 << 10 };
        let sizes = match &args.sizes {
            None => vec![args.size.unwrap_or(usual)],
            Some(all @ Sizes::All) => all.list(ALL_SIZES),
            Some(Sizes::List(_)) => bail!(
                "perftest measures one size or all: use --size, or --sizes all and -a at the peer"
            ),
        };
        let iterations = match (op, test) {
            (Op::Write, Test::Bw) => WRITE_ITERATIONS,
            _ => ITERATIONS,
        };
        Ok(Self {
            op,
            test,
            sizes,
            all: args.sizes.is_some(),
            iterations: args.messages.unwrap_or(iterations),
            depth: one_number("--depth", &args.depth, 128)?,
            rx_depth: args.rx_depth.unwrap_or(512),
            qps: one_number("--qps", &args.qps, 1)?,
            bidirectional: args.bidirectional,
            ..Self::common(Compat::Perftest, args)
        })
    }

    fn pingpong(args: &TestArgs) -> Result<Self> {
        for (given, option) in [
            (args.op.iter().any(|&op| op != Op::Send), "--op"),
            (args.test.iter().any(|&test| test != Test::Lat), "--test"),
            (args.sizes.is_some(), "--sizes"),
            (!args.depth.is_empty(), "--depth"),
            (one_number("--qps", &args.qps, 1)? > 1, "--qps"),
            (args.bidirectional, "--bidirectional"),
        ] {
            if given {
                bail!(
                    "ibv_rc_pingpong sends one SEND at a time on one queue pair, of one size: leave {option} away, \
                     or use --compat perftest"
                );
            }
        }
        Ok(Self {
            sizes: vec![args.size.unwrap_or(4096)],
            iterations: args.messages.unwrap_or(ITERATIONS),
            rx_depth: args.rx_depth.unwrap_or(500),
            mtu: Some(args.mtu.unwrap_or(1024)),
            ..Self::common(Compat::Pingpong, args)
        })
    }

    /// What both programs have in common, and else the least.
    fn common(program: Compat, args: &TestArgs) -> Self {
        Self {
            program,
            op: Op::Send,
            test: Test::Lat,
            sizes: Vec::new(),
            all: false,
            iterations: ITERATIONS,
            depth: 1,
            rx_depth: 1,
            qps: 1,
            mtu: args.mtu,
            bidirectional: false,
            repair: args.repair,
            json: args.format() == Format::Json,
            patience: Duration::from_millis(args.timeout()),
        }
    }

    /// The largest message in bytes.
    pub(crate) fn max_size(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }
}

fn one_number(option: &str, given: &[u32], usual: u32) -> Result<u32> {
    match given {
        [] => Ok(usual),
        [one] => Ok(*one),
        _ => bail!("--compat: {option} is one number, the peer knows no lists"),
    }
}

fn one<T: Copy>(what: &str, option: &str, given: &[T], usual: T) -> Result<T> {
    match given {
        [] => Ok(usual),
        [one] => Ok(*one),
        _ => bail!("perftest measures one {what} at a time: give one {option}"),
    }
}
