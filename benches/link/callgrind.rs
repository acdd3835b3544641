//! Instructions per message: the difference of two runs of this program under callgrind, so that
//! set-up does not count.

use std::io::ErrorKind;
use std::process::Command;

const SHORT: usize = 4_000;
const LONG: usize = 24_000;

/// For one SEND of 64 bytes, both ends together.
pub(crate) fn per_message() -> Result<f64, String> {
    let (short, long) = (collected(SHORT)?, collected(LONG)?);
    Ok((long - short) / (LONG - SHORT) as f64)
}

fn collected(messages: usize) -> Result<f64, String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(exe)
        .args(["--messages", &messages.to_string()])
        .output()
        .map_err(|e| match e.kind() {
            ErrorKind::NotFound => String::from("needs valgrind"),
            _ => format!("valgrind: {e}"),
        })?;
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines()
        .find_map(|l| l.split_once("Collected :")?.1.trim().parse().ok())
        .ok_or_else(|| format!("valgrind: {}", said.lines().last().unwrap_or("no output")))
}
