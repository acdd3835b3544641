//! What programs nobody here wrote think of a capture: tshark of its form, Python's zlib of its
//! ICRCs.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Checks ICRCs; see there.
const ICRC_SCRIPT: &str = include_str!("icrc.py");

/// Protocols that tshark guesses in payloads by their first bytes: their content is random here,
/// and so would be the verdict.
const GUESSED: [&str; 8] = [
    "smc",
    "smb_direct",
    "rpcordma",
    "nvme-rdma",
    "lnet",
    "iser",
    "infiniband_sdp",
    "fcoib",
];

/// The same for Ethernet frames in InfiniBand, which are heuristics of the dissector itself.
const GUESSED_BY_ITSELF: [&str; 2] = ["eth_over_ib", "mellanox_eoib"];

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// RoCE packets whose ICRC was computed.
    pub packets: u64,
    /// Frames, from 1, with a wrong one.
    pub bad_icrc: Vec<u64>,
    /// Frames, from 1, that tshark calls malformed.
    pub malformed: Vec<u64>,
}

#[derive(Deserialize)]
struct IcrcAnswer {
    packets: u64,
    bad: Vec<u64>,
}

/// Both are there: found out before anything is run, not after.
///
/// # Errors
/// One is missing; says which package has it.
pub(crate) fn available() -> Result<()> {
    for program in ["tshark", "python3"] {
        let child = start(Command::new(program).arg("--version"), program)?;
        finish(child, program)?;
    }
    Ok(())
}

/// Checks a capture with both, at the same time.
///
/// # Errors
/// One of them is missing or failed.
pub(crate) fn capture(pcap: &Path) -> Result<Findings> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-n").arg("-r").arg(pcap);
    for name in GUESSED {
        tshark.args(["--disable-protocol", name]);
    }
    for name in GUESSED_BY_ITSELF {
        tshark.args(["--disable-heuristic", name]);
    }
    tshark.args(["-Y", "_ws.malformed", "-T", "fields", "-e", "frame.number"]);
    let tshark = start(&mut tshark, "tshark")?;
    let mut python = Command::new("python3");
    python.arg("-c").arg(ICRC_SCRIPT).arg(pcap);
    let python = start(&mut python, "python3")?;

    let icrc = finish(python, "python3")?;
    let icrc: IcrcAnswer = serde_json::from_slice(&icrc.stdout).context("answer of icrc.py")?;
    let frames = finish(tshark, "tshark")?;
    let malformed = String::from_utf8_lossy(&frames.stdout)
        .lines()
        .map(|line| line.trim().parse().context("frame number of tshark"))
        .collect::<Result<_>>()?;
    Ok(Findings {
        packets: icrc.packets,
        bad_icrc: icrc.bad,
        malformed,
    })
}

fn start(command: &mut Command, package: &str) -> Result<std::process::Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{package} does not start (Debian package {package})"))
}

fn finish(child: std::process::Child, name: &str) -> Result<Output> {
    let output = child.wait_with_output().with_context(|| name.to_owned())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed: {}", said.trim());
    }
    Ok(output)
}
