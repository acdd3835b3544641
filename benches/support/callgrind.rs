//! Instructions of a run of this program under callgrind, by function and source file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::Command;
use std::{env, fs};

/// Where instructions were spent: in this function, in code written in this file. They differ
/// where code was inlined.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub file: String,
    pub function: String,
}

/// Instructions by place; what is called counts where it is spent.
pub type Costs = BTreeMap<Place, f64>;

/// Runs this program with `args` under callgrind.
///
/// # Errors
/// There is no valgrind, or it or the program failed.
pub fn count<S: AsRef<OsStr>>(args: &[S]) -> Result<Costs, String> {
    let exe = env::current_exe().map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| format!("a folder for valgrind: {e}"))?;
    let out = folder.path().join("out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(exe)
        .args(args)
        .output()
        .map_err(|e| match e.kind() {
            ErrorKind::NotFound => String::from("needs valgrind"),
            _ => format!("valgrind: {e}"),
        })?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or("it failed").to_owned();
    if !output.status.success() {
        return Err(format!("valgrind: {last}"));
    }
    let text = fs::read(&out).map_err(|_| format!("valgrind: {last}"))?;
    let costs = parse(&String::from_utf8_lossy(&text));
    if costs.is_empty() {
        return Err(String::from("valgrind: its file has no costs"));
    }
    Ok(costs)
}

/// Costs of a unit of work: what a run of `long` units takes beyond one of `short`, so that set-up
/// does not count.
///
/// # Errors
/// See [`count`].
pub fn per_unit<S: AsRef<OsStr>>(
    args: impl Fn(u32) -> Vec<S>,
    short: u32,
    long: u32,
) -> Result<Costs, String> {
    let before = count(&args(short))?;
    let each = |(place, n): (Place, f64)| {
        let n = n - before.get(&place).copied().unwrap_or_default();
        (place, n / f64::from(long - short))
    };
    Ok(count(&args(long))?.into_iter().map(each).collect())
}

/// Own costs of functions from a file of callgrind.
pub fn parse(text: &str) -> Costs {
    let mut names: [BTreeMap<String, String>; 2] = Default::default();
    let (mut file, mut function) = (String::new(), String::new());
    let mut costs = Costs::new();
    let mut is_call = false;
    for line in text.lines() {
        // "fl=(3) name" gives a name, "fl=(3)" uses it. Files and functions count on their own.
        let (key, value) = line.split_once('=').unwrap_or(("", ""));
        match key {
            "fl" | "fi" | "fe" => file = name(&mut names[0], value),
            "fn" => function = name(&mut names[1], value),
            "cfl" | "cfi" => drop(name(&mut names[0], value)),
            "cfn" => drop(name(&mut names[1], value)),
            "calls" => is_call = true,
            _ => {
                let mut columns = line.split_whitespace();
                let is_place = columns.next().is_some_and(|c| {
                    c.starts_with(['+', '-', '*']) || c.starts_with(|c: char| c.is_ascii_digit())
                });
                let cost = columns.next().and_then(|c| c.parse::<f64>().ok());
                if let (true, Some(cost)) = (is_place, cost) {
                    // The line behind "calls=" is what the called one took altogether.
                    if !std::mem::take(&mut is_call) {
                        let (file, function) = (file.clone(), function.clone());
                        *costs.entry(Place { file, function }).or_default() += cost;
                    }
                }
            }
        }
    }
    costs
}

fn name(names: &mut BTreeMap<String, String>, value: &str) -> String {
    let Some((number, name)) = value.split_once(')') else {
        return value.to_owned();
    };
    let name = name.trim();
    if name.is_empty() {
        names.get(number).cloned().unwrap_or_default()
    } else {
        names.insert(number.to_owned(), name.to_owned());
        name.to_owned()
    }
}
