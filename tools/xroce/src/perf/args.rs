//! Command line of `xroce perf`.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueEnum};
use xroce_engine::PollMode;

use super::plan::{self, Limit, Op, Plan, Test};

/// TCP port of the side channel unless told otherwise.
pub(crate) const DEFAULT_PORT: u16 = 18_715;

/// `xroce perf …`.
#[derive(Subcommand, Debug)]
pub(crate) enum PerfCommand {
    /// Wait for clients and do what they ask.
    Server(ServerArgs),
    /// Measure SEND, WRITE or READ against a server.
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
    /// TCP port to listen on for clients; 0 lets the system choose
    #[arg(long, default_value_t = DEFAULT_PORT, value_name = "PORT")]
    pub port: u16,
    /// Serve one client and end
    #[arg(long)]
    pub once: bool,
}

/// `xroce perf client`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    /// Name or address of the server
    #[arg(value_name = "SERVER")]
    pub server: String,
    #[command(flatten)]
    pub port_args: PortArgs,
    /// TCP port of the server
    #[arg(long, default_value_t = DEFAULT_PORT, value_name = "PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Operations, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "send")]
    pub op: Vec<Op>,
    /// Bandwidth or latency, or both separated by a comma
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bw")]
    pub test: Vec<Test>,
    /// Message size in bytes, like 64, 4k, 1m [default: 64k, for latency 2]
    #[arg(long, value_parser = plan::parse_size, value_name = "N")]
    pub size: Option<u32>,
    /// Several message sizes: a list separated by commas, or "all" for 2 B to 1 MB
    #[arg(long, value_parser = SizesParser, value_name = "LIST", conflicts_with = "size")]
    pub sizes: Option<Sizes>,
    /// Outstanding messages per queue pair (bandwidth)
    #[arg(long, default_value_t = 64, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(plan::MAX_DEPTH)))]
    pub depth: u32,
    /// Queue pairs (bandwidth)
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(plan::MAX_QPS)))]
    pub qps: u32,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest both links carry]
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    pub mtu: Option<u32>,
    /// Messages per queue pair and measurement
    #[arg(long, value_name = "N", conflicts_with = "seconds",
          value_parser = clap::value_parser!(u64).range(1..=plan::MAX_MESSAGES))]
    pub messages: Option<u64>,
    /// Seconds per measurement
    #[arg(long, default_value = "2", value_name = "S", value_parser = parse_seconds)]
    pub seconds: u64,
    /// Compare every message with what was sent, on the far side too
    #[arg(long)]
    pub verify: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Seconds to wait for the server to answer
    #[arg(long, default_value = "5", value_name = "S", value_parser = parse_seconds)]
    pub timeout: u64,
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
        let default_size = if self.test == [Test::Lat] {
            2
        } else {
            64 << 10
        };
        let sizes = match (&self.sizes, self.size) {
            (Some(list), _) => list.0.clone(),
            (None, size) => vec![size.unwrap_or(default_size)],
        };
        let limit = self
            .messages
            .map_or(Limit::Millis(self.seconds), Limit::Messages);
        Plan {
            ops: self.op.clone(),
            tests: self.test.clone(),
            sizes,
            qps: self.qps,
            depth: self.depth,
            bw_limit: limit,
            lat_limit: self.latency_seconds.map_or(limit, Limit::Millis),
            verify: self.verify,
            lat_max_size: self.latency_max_size.unwrap_or(plan::MAX_SIZE),
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

/// A list of message sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sizes(pub Vec<u32>);

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
        let parse = |text: &str| plan::parse_sizes(text).map(Sizes);
        clap::builder::TypedValueParser::parse_ref(&parse, cmd, arg, value)
    }
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
