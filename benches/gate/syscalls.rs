//! System calls of a run of this program, by name, as strace counts them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::process::Command;
use std::{env, fs};

/// Calls by name.
pub(crate) type Calls = BTreeMap<String, f64>;

/// Runs this program with `args`.
pub(crate) fn count(args: &[String]) -> Result<Calls, String> {
    let exe = env::current_exe().map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| format!("a folder for strace: {e}"))?;
    let out = folder.path().join("out");
    let output = Command::new("strace")
        .args(["-f", "-c", "-U", "calls,name", "-o"])
        .arg(&out)
        .arg(exe)
        .args(args)
        .output()
        .map_err(|e| match e.kind() {
            ErrorKind::NotFound => String::from("needs strace"),
            _ => format!("strace: {e}"),
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or("it failed");
        return Err(format!("strace: {last}"));
    }
    let text = fs::read_to_string(&out).map_err(|e| format!("strace: {e}"))?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Calls {
    let row = |line: &str| {
        let (calls, name) = line.trim().split_once(char::is_whitespace)?;
        Some((name.trim().to_owned(), calls.parse().ok()?))
    };
    text.lines()
        .filter_map(row)
        .filter(|(name, _)| name != "total")
        .collect()
}
