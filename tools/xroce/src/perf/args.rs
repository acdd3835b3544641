//! Command line of `xroce perf`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use xroce_control::SOCKET_DEFAULT;
use xroce_engine::PollMode;
use xroce_wire::path::HOP_LIMIT_DEFAULT;

use crate::perf::congestion::CongestionArgs;
use crate::perf::device::verbs::Verbs;
use crate::perf::loopback::LoopbackArgs;
use crate::perf::measure::pace::Arrivals;
use crate::perf::parse::{
    Numbers, NumbersParser, Rates, RatesParser, Sizes, SizesParser, parse_mtu, parse_seconds,
    parse_warmup,
};
use crate::perf::plan::{self, Limit, Op, Plan, Repair, Test};

/// TCP port of the side channel unless told otherwise.
pub(crate) const DEFAULT_PORT: u16 = 18_715;
/// The same for perftest and ibv_rc_pingpong.
const COMPAT_PORT: u16 = 18_515;
/// Milliseconds per measurement unless told otherwise.
const DEFAULT_MILLIS: u64 = 2_000;

/// Receive chunks of an AF_XDP port. A queue pair has up to 256 packets in flight, and one of path
/// MTU 4096 takes two chunks: with fewer, a receiver that loses its core for a moment loses
/// packets.
pub(crate) const RING: u32 = 1024;
/// Longest warm-up unless told otherwise, in milliseconds.
const MAX_USUAL_WARMUP: u64 = 500;

/// How to have another program as the peer.
const COMPAT_HELP: &str = "\
With perftest or ibv_rc_pingpong as the peer (RoCE v2, its GID of the family of --local; it sends
IP headers that only AF_XDP sees, so --dev is needed):
  xroce perf server --dev eth0 --compat perftest --op write --qps 2
      ib_write_bw -d rxe0 -x 1 -q 2 HOST
  xroce perf client HOST --dev eth0 --compat perftest --op send --test lat
      ib_send_lat -d rxe0 -x 1
  xroce perf server --dev eth0 --compat pingpong
      ibv_rc_pingpong -d rxe0 -g 1 HOST
Their options: -s --size, -a --sizes all, -n --messages, -q --qps, -b --bidirectional, -m --mtu,
-t --depth, -r --rx-depth, -p --port. Both sides must be given the same.";

/// `xroce perf …`.
#[derive(Subcommand, Debug)]
pub(crate) enum PerfCommand {
    /// Wait for clients and do what they ask.
    #[command(after_long_help = COMPAT_HELP)]
    Server(ServerArgs),
    /// Measure SEND, WRITE or READ against a server.
    #[command(after_long_help = COMPAT_HELP)]
    Client(ClientArgs),
    /// Measure what AF_XDP itself carries on a link, without any protocol.
    Raw(RawArgs),
    /// Measure between two queue pairs of one device.
    #[command(hide = true)]
    Loopback(LoopbackArgs),
}

impl PerfCommand {
    /// The process whose end ends this one.
    pub(crate) fn parent(&self) -> Option<i32> {
        match self {
            Self::Server(args) => args.port_args.parent,
            Self::Client(args) => args.port_args.parent,
            Self::Raw(args) => args.parent,
            Self::Loopback(args) => args.port_args.parent,
        }
    }
}

/// How frames come and go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Backend {
    /// AF_XDP on an interface; needs root (CAP_NET_ADMIN, CAP_BPF, CAP_NET_RAW).
    Xdp,
    /// A UDP socket; needs no privileges.
    Udp,
}

/// Where the XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum XdpMode {
    /// In the driver, else in the generic hook.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the generic hook of the kernel, which every interface has.
    Generic,
}

/// What to do when there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Poll {
    /// Spin: the lowest latency, a whole core.
    Busy,
    /// Spin for a moment, then sleep until a packet or a timer wakes.
    #[default]
    Adaptive,
}

impl From<Poll> for PollMode {
    fn from(poll: Poll) -> Self {
        match poll {
            Poll::Busy => Self::Busy,
            Poll::Adaptive => Self::Adaptive,
        }
    }
}

/// The data port of either side.
#[derive(Args, Clone, Debug)]
pub(crate) struct PortArgs {
    /// How frames come and go [default: xdp with --dev, else udp]
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    /// Network interface (perf: or several, separated by commas)
    #[arg(long, value_name = "IF")]
    pub dev: Option<String>,
    /// Queue of the interface (xdp) [default: 0]
    #[arg(long, value_name = "N")]
    pub queue: Option<u32>,
    /// Frames that the receive ring holds (xdp), a power of two: more absorb longer bursts, and cost
    /// cache [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=16_384))]
    pub ring: Option<u32>,
    /// Where the XDP program runs [default: auto]
    #[arg(long, value_enum)]
    pub xdp_mode: Option<XdpMode>,
    /// RoCE address of this side (perf: or several, separated by commas, one for each port)
    /// [default: that of --dev or of the daemon's device, or the one the side channel uses]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub local: Vec<IpAddr>,
    /// Tag frames with this VLAN id (xdp) [default: that of --dev, if it is a VLAN interface]; the
    /// addresses and neighbours are those of --dev
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Service level: its low three bits are the priority in the VLAN tag (xdp)
    #[arg(long, default_value_t = 0, value_name = "N",
          value_parser = clap::value_parser!(u8).range(..=15))]
    pub sl: u8,
    /// DSCP and ECN of packets, as the byte of the IP header: 2 is ECT(0)
    #[arg(long, default_value_t = 0, value_name = "BYTE")]
    pub traffic_class: u8,
    /// IPv6 flow label; the UDP source port follows from it too (xdp) [default: by queue pair]
    #[arg(long, default_value_t = 0, value_name = "N", hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(..=0xf_ffff))]
    pub flow_label: u32,
    /// TTL or hop limit of packets (xdp)
    #[arg(long, default_value_t = HOP_LIMIT_DEFAULT, value_name = "N",
          value_parser = clap::value_parser!(u8).range(1..))]
    pub hop_limit: u8,
    /// How fast this side sends.
    #[command(flatten)]
    pub congestion: CongestionArgs,
    /// Core to run on
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// What to do when there is nothing to do
    #[arg(long, value_enum, default_value_t)]
    pub poll: Poll,
    /// End when the parent process, which has this number, ends
    #[arg(long, hide = true, value_name = "PID")]
    pub parent: Option<i32>,
    /// A device by its verbs instead of a port; only perf has it, from [`DaemonArgs`].
    #[arg(skip)]
    pub verbs: Option<Verbs>,
}

impl PortArgs {
    /// The backend that was asked for, or the one that fits.
    pub(crate) fn backend(&self) -> Backend {
        let fitting = if self.dev.is_some() {
            Backend::Xdp
        } else {
            Backend::Udp
        };
        self.backend.unwrap_or(fitting)
    }

    /// The queue of the interface.
    pub(crate) fn queue(&self) -> u32 {
        self.queue.unwrap_or(0)
    }

    /// Frames that the receive ring holds.
    pub(crate) fn ring(&self) -> u32 {
        self.ring.unwrap_or(RING)
    }

    /// The address that was asked for.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.local.first().copied()
    }
}

/// Several ports of one process, each with an engine and a thread of its own.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SeveralArgs {
    /// Queues of the interface (xdp), like 0-3 or 0,2: one port for each, and for each --dev
    #[arg(long, value_name = "LIST", value_parser = NumbersParser, conflicts_with = "queue")]
    pub queues: Option<Numbers>,
    /// Cores to run on, one for each port
    #[arg(long, value_name = "LIST", value_parser = NumbersParser, conflicts_with = "core")]
    pub cores: Option<Numbers>,
}

/// A device of the daemon instead of a port of this process.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DaemonArgs {
    /// Use a device of the daemon that listens at SOCKET, instead of a port of one's own
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = SOCKET_DEFAULT)]
    pub daemon: Option<PathBuf>,
    /// Name of the daemon's device [default: the daemon's first]
    #[arg(long, value_name = "NAME", requires = "daemon")]
    pub device: Option<String>,
    /// Use the port by its verbs, moved by a thread: what the daemon's device is compared with
    #[arg(long, hide = true, conflicts_with = "daemon")]
    pub engine_thread: bool,
}

impl DaemonArgs {
    /// The device that is used by its verbs, if one is.
    pub(crate) fn verbs(&self) -> Option<Verbs> {
        match &self.daemon {
            Some(socket) => Some(Verbs::Daemon {
                socket: socket.clone(),
                device: self.device.clone(),
            }),
            None => self.engine_thread.then_some(Verbs::Thread),
        }
    }
}

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// A line for each measurement, and one with the names before.
    Csv,
    /// One object with stable names.
    Json,
    /// The columns of perftest.
    Perftest,
}

/// `xroce perf server`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    pub port_args: PortArgs,
    #[command(flatten)]
    pub several: SeveralArgs,
    #[command(flatten)]
    pub daemon: DaemonArgs,
    /// Address to listen on for clients [default: all]
    #[arg(long, value_name = "ADDR")]
    pub bind: Option<IpAddr>,
    /// TCP port to listen on for clients; 0 lets the system choose [default: 18715, with --compat
    /// 18515]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Serve one client and end
    #[arg(long)]
    pub once: bool,
    /// Only with --compat: otherwise the client says what to measure.
    #[command(
        flatten,
        next_help_heading = "What to measure (only with --compat, otherwise the client decides)"
    )]
    pub what: TestArgs,
}

/// Programs that `xroce perf` can have as its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Compat {
    /// ib_send_bw, ib_write_bw, ib_read_bw, ib_send_lat, ib_write_lat or ib_read_lat of perftest:
    /// --op and --test say which.
    Perftest,
    /// ibv_rc_pingpong of rdma-core.
    Pingpong,
}

impl std::fmt::Display for Compat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Perftest => "perftest",
            Self::Pingpong => "pingpong",
        })
    }
}

impl Compat {
    /// Names of the programs.
    pub(crate) fn peers(self) -> &'static str {
        match self {
            Self::Perftest => "ib_send_bw, ib_write_bw, ...",
            Self::Pingpong => "ibv_rc_pingpong -g INDEX",
        }
    }
}

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct TestArgs {
    /// Measure with another program as the peer; both are given the same options
    #[arg(long, value_enum, value_name = "PROGRAM")]
    pub compat: Option<Compat>,
    /// Operations, separated by commas [default: send]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub op: Vec<Op>,
    /// Bandwidth or latency, or both separated by a comma [default: bw]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub test: Vec<Test>,
    /// Message size in bytes, like 64, 4k, 1m [default: 64k, for latency 2, with --rate 64, for
    /// pingpong 4k]
    #[arg(long, value_parser = plan::parse_size, value_name = "N")]
    pub size: Option<u32>,
    /// Several message sizes: a list separated by commas, or "all" for 2 B to 1 MB (perftest: only
    /// "all", its -a, for 2 B to 8 MB)
    #[arg(long, value_parser = SizesParser, value_name = "LIST", conflicts_with = "size")]
    pub sizes: Option<Sizes>,
    /// Outstanding messages per queue pair (bandwidth, --rate): a list separated by commas [default:
    /// 64, perftest 128]
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(plan::MAX_DEPTH)))]
    pub depth: Vec<u32>,
    /// Receives kept posted per queue pair (only with --compat) [default: 512, pingpong 500]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(plan::MAX_RX_DEPTH)))]
    pub rx_depth: Option<u32>,
    /// Queue pairs of each port (bandwidth, --rate): a list separated by commas [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(plan::MAX_QPS)))]
    pub qps: Vec<u32>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest both links carry, for pingpong
    /// 1024]
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    pub mtu: Option<u32>,
    /// Messages per queue pair and measurement [with --compat default: 1000, WRITE bandwidth 5000]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=plan::MAX_MESSAGES))]
    pub messages: Option<u64>,
    /// Both sides send (bandwidth, --rate)
    #[arg(long)]
    pub bidirectional: bool,
    /// How losses are repaired; "selective" needs xroce on both sides, "adaptive" suits every peer
    #[arg(long, value_enum, default_value_t)]
    pub repair: Repair,
    /// Compare every message with what was sent, on the far side too
    #[arg(long)]
    pub verify: bool,
    /// How to print results [default: table]
    #[arg(long, value_enum, conflicts_with = "json")]
    pub format: Option<Format>,
    /// Print one JSON object: the same as --format json
    #[arg(long)]
    pub json: bool,
    /// Print every counter of this side too (docs/counters.md; not with --compat)
    #[arg(long)]
    pub stats: bool,
    /// Seconds to wait for the other side to answer [default: 5, with --compat 30]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub timeout: Option<u64>,
}

impl TestArgs {
    /// The first option given that says what to measure.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--op", !self.op.is_empty()),
            ("--test", !self.test.is_empty()),
            ("--size", self.size.is_some()),
            ("--sizes", self.sizes.is_some()),
            ("--depth", !self.depth.is_empty()),
            ("--rx-depth", self.rx_depth.is_some()),
            ("--qps", !self.qps.is_empty()),
            ("--mtu", self.mtu.is_some()),
            ("--messages", self.messages.is_some()),
            ("--bidirectional", self.bidirectional),
            ("--verify", self.verify),
            ("--json", self.json),
            ("--format", self.format.is_some()),
            ("--timeout", self.timeout.is_some()),
        ];
        given.iter().find(|(_, is)| *is).map(|(name, _)| *name)
    }

    /// How to print results.
    pub(crate) fn format(&self) -> Format {
        let usual = if self.json {
            Format::Json
        } else {
            Format::Table
        };
        self.format.unwrap_or(usual)
    }

    /// TCP port unless told otherwise.
    pub(crate) fn usual_port(&self) -> u16 {
        match self.compat {
            Some(_) => COMPAT_PORT,
            None => DEFAULT_PORT,
        }
    }

    /// Milliseconds to wait for the other side to answer.
    pub(crate) fn timeout(&self) -> u64 {
        let usual = if self.compat.is_some() { 30_000 } else { 5_000 };
        self.timeout.unwrap_or(usual)
    }
}

/// `xroce perf client`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    /// Name or address of the server
    #[arg(value_name = "SERVER")]
    pub server: String,
    #[command(flatten)]
    pub port_args: PortArgs,
    #[command(flatten)]
    pub several: SeveralArgs,
    #[command(flatten)]
    pub daemon: DaemonArgs,
    /// TCP port of the server [default: 18715, with --compat 18515]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    #[command(flatten)]
    pub what: TestArgs,
    /// Seconds per measurement [default: 2]
    #[arg(long, value_name = "S", value_parser = parse_seconds, conflicts_with = "messages")]
    pub seconds: Option<u64>,
    /// Seconds before each measurement that do not count, like 0.2 or 200ms [default: a tenth of
    /// --seconds, at most half a second; with --messages none]
    #[arg(long, value_name = "S", value_parser = parse_warmup)]
    pub warmup: Option<u64>,
    /// Open loop: messages a second, like 50k or 1.5M, or a list. They leave when they are due,
    /// whatever becomes of those before, and latency counts from when they were due
    #[arg(long, value_name = "LIST", value_parser = RatesParser, conflicts_with = "test")]
    pub rate: Option<Rates>,
    /// How messages of an open loop follow each other
    #[arg(long, value_enum, default_value_t, requires = "rate")]
    pub arrivals: Arrivals,
    /// Where the chance of --arrivals poisson starts [default: another each time]
    #[arg(long, value_name = "N", requires = "rate")]
    pub seed: Option<u64>,
    /// Write the distribution of latencies to a file, as HdrHistogram's tools do
    #[arg(long, value_name = "FILE")]
    pub histogram: Option<PathBuf>,
    /// Print a line of JSON on standard error for each finished measurement
    #[arg(long, hide = true)]
    pub progress_json: bool,
    /// Seconds per latency measurement, if other than --seconds
    #[arg(long, hide = true, value_parser = parse_seconds)]
    pub latency_seconds: Option<u64>,
    /// Latency only up to this size
    #[arg(long, hide = true)]
    pub latency_max_size: Option<u32>,
}

impl ClientArgs {
    /// What was asked for, not yet checked.
    pub(crate) fn plan(&self) -> Plan {
        let test = &self.what;
        let rates = self.rate.as_ref().map(|r| r.0.clone()).unwrap_or_default();
        let tests = match (test.test.as_slice(), rates.as_slice()) {
            (_, [_, ..]) => vec![Test::Open],
            ([], _) => vec![Test::Bw],
            (given, _) => given.to_vec(),
        };
        let or_else = |given: &[u32], usual| match given {
            [] => vec![usual],
            given => given.to_vec(),
        };
        let default_size = match tests.as_slice() {
            [Test::Lat] => 2,
            [Test::Open] => 64,
            _ => 64 << 10,
        };
        let sizes = match (&test.sizes, test.size) {
            (Some(list), _) => list.list(plan::OWN_SIZES),
            (None, size) => vec![size.unwrap_or(default_size)],
        };
        let millis = self.seconds.unwrap_or(DEFAULT_MILLIS);
        let limit = test.messages.map_or(Limit::Millis(millis), Limit::Messages);
        Plan {
            ops: if test.op.is_empty() {
                vec![Op::Send]
            } else {
                test.op.clone()
            },
            tests,
            sizes,
            qps: or_else(&test.qps, 1),
            depths: or_else(&test.depth, 64),
            rates,
            arrivals: self.arrivals,
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
            warmup_millis: self.warmup.unwrap_or_else(|| match limit {
                Limit::Millis(ms) => (ms / 10).min(MAX_USUAL_WARMUP),
                Limit::Messages(_) => 0,
            }),
            bidirectional: test.bidirectional,
            bw_limit: limit,
            lat_limit: self.latency_seconds.map_or(limit, Limit::Millis),
            verify: test.verify,
            lat_max_size: self.latency_max_size.unwrap_or(plan::MAX_SIZE),
            repair: test.repair,
        }
    }
}

/// What this end of the link does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum RawRole {
    /// Count what arrives, until nothing does any more.
    Receive,
    /// Send as fast as it goes.
    Send,
    /// Answer every frame.
    Echo,
    /// Send one frame at a time and wait for the answer of an echo.
    Ping,
}

/// `xroce perf raw`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RawArgs {
    /// What this end does; start "receive" or "echo" first, then "send" or "ping" at the other end
    #[arg(value_enum, value_name = "ROLE")]
    pub role: RawRole,
    /// Network interface
    #[arg(long, value_name = "IF")]
    pub dev: String,
    /// Address of the other end; "receive" with it gives a sender with --window leave to go on
    #[arg(long, value_name = "ADDR")]
    pub to: Option<IpAddr>,
    /// Frames to have on the way at most, 0 for no limit: a receiver that loses its core for a
    /// moment then loses no frames, as with a protocol
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub window: u32,
    /// Frame length in bytes, Ethernet header included
    #[arg(long, default_value_t = 1082, value_name = "BYTES")]
    pub frame: usize,
    /// Seconds to send
    #[arg(long, default_value = "2", value_name = "S", value_parser = parse_seconds)]
    pub seconds: u64,
    /// Seconds to wait for the first frame
    #[arg(long, default_value = "30", value_name = "S", value_parser = parse_seconds)]
    pub timeout: u64,
    /// Frames handed to the kernel at a time
    #[arg(long, default_value_t = 32, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub batch: u16,
    /// Queue of the interface
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub queue: u32,
    /// Where the XDP program runs
    #[arg(long, value_enum, default_value_t)]
    pub xdp_mode: XdpMode,
    /// Core to run on
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// What to do when there is nothing to do ("receive", "send"): spin, or offer the core to
    /// others
    #[arg(long, value_enum, default_value_t)]
    pub poll: Poll,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// End when the parent process, which has this number, ends
    #[arg(long, hide = true, value_name = "PID")]
    pub parent: Option<i32>,
}
