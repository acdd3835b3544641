//! Command line of `xroce perf`.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueEnum};
use xroce_engine::PollMode;
use xroce_wire::path::HOP_LIMIT_DEFAULT;

use super::congestion::CongestionArgs;
use super::plan::{self, Limit, Op, Plan, Repair, Test};

/// TCP port of the side channel unless told otherwise.
pub(crate) const DEFAULT_PORT: u16 = 18_715;
/// The same for perftest and ibv_rc_pingpong.
const COMPAT_PORT: u16 = 18_515;
/// Milliseconds per measurement unless told otherwise.
const DEFAULT_MILLIS: u64 = 2_000;

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
}

impl PerfCommand {
    /// The process whose end ends this one.
    pub(crate) fn parent(&self) -> Option<i32> {
        match self {
            Self::Server(args) => args.port_args.parent,
            Self::Client(args) => args.port_args.parent,
            Self::Raw(args) => args.parent,
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
    /// Network interface
    #[arg(long, value_name = "IF")]
    pub dev: Option<String>,
    /// Queue of the interface (xdp)
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub queue: u32,
    /// Where the XDP program runs
    #[arg(long, value_enum, default_value_t)]
    pub xdp_mode: XdpMode,
    /// RoCE address of this side [default: that of --dev, or the one the side channel uses]
    #[arg(long, value_name = "ADDR")]
    pub local: Option<IpAddr>,
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
}

/// `xroce perf server`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    pub port_args: PortArgs,
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
    /// Message size in bytes, like 64, 4k, 1m [default: 64k, for latency 2, for pingpong 4k]
    #[arg(long, value_parser = plan::parse_size, value_name = "N")]
    pub size: Option<u32>,
    /// Several message sizes: a list separated by commas, or "all" for 2 B to 1 MB (perftest: only
    /// "all", its -a, for 2 B to 8 MB)
    #[arg(long, value_parser = SizesParser, value_name = "LIST", conflicts_with = "size")]
    pub sizes: Option<Sizes>,
    /// Outstanding messages per queue pair (bandwidth) [default: 64, perftest 128]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(plan::MAX_DEPTH)))]
    pub depth: Option<u32>,
    /// Receives kept posted per queue pair (only with --compat) [default: 512, pingpong 500]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(plan::MAX_RX_DEPTH)))]
    pub rx_depth: Option<u32>,
    /// Queue pairs (bandwidth) [default: 1]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(plan::MAX_QPS)))]
    pub qps: Option<u32>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest both links carry, for pingpong
    /// 1024]
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    pub mtu: Option<u32>,
    /// Messages per queue pair and measurement [with --compat default: 1000, WRITE bandwidth 5000]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=plan::MAX_MESSAGES))]
    pub messages: Option<u64>,
    /// Both sides send (perftest bandwidth)
    #[arg(long)]
    pub bidirectional: bool,
    /// How losses are repaired; "selective" needs xroce on both sides, "adaptive" suits every peer
    #[arg(long, value_enum, default_value_t)]
    pub repair: Repair,
    /// Compare every message with what was sent, on the far side too
    #[arg(long)]
    pub verify: bool,
    /// Print one JSON object instead of a table
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
            ("--depth", self.depth.is_some()),
            ("--rx-depth", self.rx_depth.is_some()),
            ("--qps", self.qps.is_some()),
            ("--mtu", self.mtu.is_some()),
            ("--messages", self.messages.is_some()),
            ("--bidirectional", self.bidirectional),
            ("--verify", self.verify),
            ("--json", self.json),
            ("--timeout", self.timeout.is_some()),
        ];
        given.iter().find(|(_, is)| *is).map(|(name, _)| *name)
    }

    /// The first option given that only another program as the peer gives a meaning.
    pub(crate) fn only_compat(&self) -> Option<&'static str> {
        let given = [
            ("--rx-depth", self.rx_depth.is_some()),
            ("--bidirectional", self.bidirectional),
        ];
        given.iter().find(|(_, is)| *is).map(|(name, _)| *name)
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
    /// TCP port of the server [default: 18715, with --compat 18515]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    #[command(flatten)]
    pub what: TestArgs,
    /// Seconds per measurement [default: 2]
    #[arg(long, value_name = "S", value_parser = parse_seconds, conflicts_with = "messages")]
    pub seconds: Option<u64>,
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
        let tests = if test.test.is_empty() {
            vec![Test::Bw]
        } else {
            test.test.clone()
        };
        let default_size = if tests == [Test::Lat] { 2 } else { 64 << 10 };
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
            qps: test.qps.unwrap_or(1),
            depth: test.depth.unwrap_or(64),
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

/// Message sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Sizes {
    /// Powers of two from 2 up.
    All,
    /// These.
    List(Vec<u32>),
}

impl Sizes {
    /// The sizes in bytes; "all" means this many powers of two.
    pub(crate) fn list(&self, all: u32) -> Vec<u32> {
        match self {
            Self::All => (1..=all).map(|n| 1 << n).collect(),
            Self::List(list) => list.clone(),
        }
    }
}

/// Turns a list into [`Sizes`]; a type of its own since clap takes a plain `Vec` for an option
/// that may be repeated.
#[derive(Clone, Debug)]
struct SizesParser;

impl clap::builder::TypedValueParser for SizesParser {
    type Value = Sizes;

    fn parse_ref(
        &self,
        cmd: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Sizes, clap::Error> {
        clap::builder::TypedValueParser::parse_ref(&parse_sizes, cmd, arg, value)
    }
}

fn parse_sizes(text: &str) -> Result<Sizes, String> {
    if text.trim() == "all" {
        return Ok(Sizes::All);
    }
    let list: Result<_, _> = text.split(',').map(plan::parse_size).collect();
    Ok(Sizes::List(list?))
}

fn parse_mtu(text: &str) -> Result<u32, String> {
    let mtu = text.parse::<u32>().ok();
    mtu.filter(|m| matches!(m, 256 | 512 | 1024 | 2048 | 4096))
        .ok_or_else(|| "a path MTU is one of 256, 512, 1024, 2048, 4096".to_owned())
}

/// Seconds, with a fraction, to milliseconds.
fn parse_seconds(text: &str) -> Result<u64, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    #[allow(clippy::cast_precision_loss, reason = "3.6 million is exact in f64")]
    let max = plan::MAX_MILLIS as f64 / 1e3;
    if !(0.001..=max).contains(&seconds) {
        return Err(format!("between 0.001 and {max} seconds"));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to lie in 0.001 ..= 3600"
    )]
    Ok((seconds * 1e3).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        assert_eq!(parse_sizes("2,1k"), Ok(Sizes::List(vec![2, 1024])));
        let all = parse_sizes("all").unwrap().list(20);
        assert_eq!((all.len(), all[0], all[19]), (20, 2, 1 << 20));
        assert!(parse_sizes("2,,4").is_err());
    }
}
