//! Where the demo plays: two namespaces and AF_XDP, or loopback and UDP.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use xroce_testnet::{Netns, NetnsPair};

use crate::perf::args::Backend;

/// IP MTU of the veth pair, in bytes: path MTU 4096 and its headers fit.
const VETH_MTU: u32 = 4200;

/// Frames on the way at most in a raw measurement: as much as one queue pair of xroce.
const RAW_WINDOW: &str = "256";

/// Where the demo plays.
pub(crate) struct Stage {
    /// This program.
    exe: PathBuf,
    /// The namespaces; without them, loopback.
    pair: Option<NetnsPair>,
    /// Why there are none.
    why: Option<String>,
}

impl Stage {
    /// Makes what `backend` needs, or what is possible.
    ///
    /// # Errors
    /// AF_XDP was asked for and is not possible.
    pub(crate) fn set(backend: Option<Backend>) -> Result<Self> {
        let exe = std::env::current_exe().context("where is this program?")?;
        let mut stage = Self {
            exe,
            pair: None,
            why: None,
        };
        match backend {
            Some(Backend::Udp) => {}
            Some(Backend::Xdp) => match stage.namespaces() {
                Ok(pair) => stage.pair = Some(pair),
                Err(why) => bail!("AF_XDP is not possible here: {why}"),
            },
            None => match stage.namespaces() {
                Ok(pair) => stage.pair = Some(pair),
                Err(why) => stage.why = Some(why),
            },
        }
        Ok(stage)
    }

    /// Two namespaces in which AF_XDP works.
    fn namespaces(&self) -> Result<NetnsPair, String> {
        if cfg!(not(feature = "xdp")) {
            return Err("this xroce was built without it".to_owned());
        }
        let pair = NetnsPair::new(VETH_MTU, 1)?;
        probe(&pair.a)?;
        Ok(pair)
    }

    /// In words, for people.
    pub(crate) fn describe(&self) -> String {
        match (&self.pair, &self.why) {
            (Some(pair), _) => format!(
                "AF_XDP: namespaces {} and {} joined by a veth pair, MTU {VETH_MTU}",
                pair.a.name(),
                pair.b.name()
            ),
            (None, Some(why)) => format!(
                "AF_XDP is not possible here ({why}): UDP sockets on 127.0.0.1 and 127.0.0.2"
            ),
            (None, None) => "UDP sockets on 127.0.0.1 and 127.0.0.2".to_owned(),
        }
    }

    pub(crate) fn exe(&self) -> &Path {
        &self.exe
    }

    /// The commands of two daemons that listen at these sockets.
    ///
    /// # Errors
    /// The program is not where this one is.
    pub(crate) fn daemons(&self, sockets: &[PathBuf; 2]) -> Result<[Command; 2]> {
        let exe = self.exe.with_file_name("xroced");
        if !exe.exists() {
            bail!(
                "{} is missing: build it with cargo build -p xroced",
                exe.display()
            );
        }
        let [first, second] = sockets;
        let command = |at: usize, socket: &Path| {
            let ns = self
                .pair
                .as_ref()
                .map(|pair| if at == 0 { &pair.a } else { &pair.b });
            let mut command = match ns {
                Some(ns) => {
                    let mut command = ns.command(&exe);
                    command.args(["--dev", ns.ifname()]);
                    command
                }
                None => {
                    let mut command = Command::new(&exe);
                    command.args(["--udp", ["127.0.0.1", "127.0.0.2"][at.min(1)]]);
                    command
                }
            };
            command.args(["--log", "warn"]).arg("--socket").arg(socket);
            command
        };
        Ok([command(0, first), command(1, second)])
    }

    /// The command of the server.
    pub(crate) fn server(&self) -> Command {
        let mut command = match &self.pair {
            Some(pair) => self.inside(&pair.a),
            None => Command::new(&self.exe),
        };
        command.args(["perf", "server", "--once", "--port", "0"]);
        command.args(["--parent", &std::process::id().to_string()]);
        match &self.pair {
            Some(pair) => command.args(["--dev", pair.a.ifname()]),
            None => command
                .args(["--backend", "udp", "--local", "127.0.0.1"])
                .args(["--bind", "127.0.0.1"]),
        };
        command
    }

    /// The command of the client, without what it shall measure.
    pub(crate) fn client(&self, port: u16) -> Command {
        let mut command = match &self.pair {
            Some(pair) => {
                let mut command = self.inside(&pair.b);
                command.args(["perf", "client", &pair.a.v4.to_string()]);
                command.args(["--dev", pair.b.ifname()]);
                command
            }
            None => {
                let mut command = Command::new(&self.exe);
                command.args(["perf", "client", "127.0.0.1"]);
                command.args(["--backend", "udp", "--local", "127.0.0.2"]);
                command
            }
        };
        command.args([
            "--port",
            &port.to_string(),
            "--parent",
            &std::process::id().to_string(),
        ]);
        command
    }

    fn inside(&self, ns: &Netns) -> Command {
        ns.command(&self.exe)
    }

    /// The commands that measure what AF_XDP itself carries on this link with frames of so many
    /// bytes for so long, receiver first; none over UDP.
    pub(crate) fn raw(&self, frame: usize, seconds: f64) -> Option<(Command, Command)> {
        let pair = self.pair.as_ref()?;
        let command = |ns: &Netns, role| {
            let mut command = self.inside(ns);
            command.args(["perf", "raw", role, "--json", "--dev", ns.ifname()]);
            command.args(["--frame", &frame.to_string()]);
            command.args(["--parent", &std::process::id().to_string()]);
            command
        };
        let mut receiver = command(&pair.a, "receive");
        receiver.args(["--to", &pair.b.v4.to_string()]);
        let mut sender = command(&pair.b, "send");
        sender.args(["--to", &pair.a.v4.to_string(), "--window", RAW_WINDOW]);
        sender.args(["--seconds", &seconds.to_string()]);
        Some((receiver, sender))
    }
}

/// Whether a port can be opened there: the kernel may have no AF_XDP, or not let us.
#[cfg(feature = "xdp")]
fn probe(ns: &Netns) -> Result<(), String> {
    use xroce_net::xdp::{XdpConfig, XdpPort};
    let config = XdpConfig::new(ns.ifname());
    ns.run(|| XdpPort::open(&config).map(drop).map_err(|e| e.to_string()))
}

#[cfg(not(feature = "xdp"))]
fn probe(_: &Netns) -> Result<(), String> {
    Err("this xroce was built without it".to_owned())
}
