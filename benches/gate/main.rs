//! The gate: what a message costs in instructions, allocations and system calls, and the sizes of
//! what is touched for each, against `benches/gate/baseline.toml`. No time is measured.
//!
//! `make gate`; after a change that is worth its cost, or that saves some, `make gate BLESS=1`
//! writes the baseline anew.
#![allow(clippy::print_stdout, reason = "a bench talks")]

mod baseline;
#[path = "../../tests/counting/mod.rs"]
mod counting;
#[path = "../support/mod.rs"]
mod support;
mod syscalls;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{env, fs};

use baseline::{Baseline, Cost};
use support::callgrind;
use work::{BACKENDS, KERNEL_PATHS, PATHS, Path};

/// Messages of the two runs whose difference is taken.
const SHORT: u32 = 1_000;
const LONG: u32 = 6_000;
/// The same for system calls.
const FEW: u32 = 2_000;
const MANY: u32 = 12_000;
/// Tries of what the kernel's timing can disturb; the best one counts.
const TRIES: usize = 3;
/// Units of work that allocations and system calls are given for.
const UNITS: f64 = 1_000.0;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).filter(|a| a != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [] => compare(),
        ["--bless"] => bless(),
        ["--path", name, count] => run(name, "memory", count),
        ["--kernel", name, backend, count] => run(name, backend, count),
        _ => Err(String::from("usage: cargo bench --bench gate [-- --bless]")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// The work itself, for who counts it.
fn run(name: &str, backend: &str, count: &str) -> Result<(), String> {
    let path = Path::named(name).ok_or_else(|| format!("no path {name}"))?;
    let count = count.parse().map_err(|_| format!("{count}: no number"))?;
    if backend == "memory" {
        path.send(&mut path.pair(), count);
        return Ok(());
    }
    path.over_kernel(backend, count)
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/gate/baseline.toml")
}

fn compare() -> Result<(), String> {
    let file = file();
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let before: Baseline = toml::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    let now = measure()?;
    show(&now, &before);
    let slips = now.slips(&before);
    for gain in now.gains(&before) {
        println!("less than the baseline says, write it down with make gate BLESS=1: {gain}");
    }
    if slips.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = slips.iter().map(ToString::to_string).collect();
    Err(format!(
        "{}\n(baseline: {}; here: {})\nIf it is worth its cost: make gate BLESS=1, and say why in \
         the commit.",
        all.join("\n"),
        before.measured,
        now.measured
    ))
}

fn bless() -> Result<(), String> {
    let now = measure()?;
    show(&now, &Baseline::default());
    let text = toml::to_string_pretty(&now).map_err(|e| e.to_string())?;
    let head = "# Written by `make gate BLESS=1`: what benches/gate compares with.\n";
    fs::write(file(), format!("{head}{text}")).map_err(|e| e.to_string())
}

fn show(now: &Baseline, before: &Baseline) {
    println!("instructions of one message or packet, both ends (before):");
    for (path, cost) in &now.paths {
        let then = before.paths.get(path).map(|c| c.instructions);
        let then = then.map_or_else(String::new, |n| format!(" ({n:.1})"));
        println!("    {path}: {:.1}{then}", cost.instructions);
    }
    println!("allocations of 1000: {:?}", now.allocations);
    println!("system calls of 1000:");
    for (path, calls) in &now.syscalls {
        println!("    {path}: {calls:?}");
    }
    println!("bytes: {:?}", now.sizes);
}

fn measure() -> Result<Baseline, String> {
    let mut now = Baseline {
        measured: machine(),
        sizes: sizes(),
        ..Baseline::default()
    };
    for path in &PATHS {
        let mut pair = path.pair();
        path.send(&mut pair, LONG);
        let asked = counting::allocations(|| path.send(&mut pair, SHORT));
        now.allocations.insert(path.name.to_owned(), asked);
        let args = |n: u32| vec![String::from("--path"), path.name.to_owned(), n.to_string()];
        let costs = callgrind::per_unit(args, SHORT, LONG)?;
        let packets = f64::from(path.packets);
        let costs = costs
            .iter()
            .map(|(place, n)| ((&*place.file, &*place.function), n / packets));
        now.paths.insert(path.name.to_owned(), Cost::of(costs));
    }
    for backend in BACKENDS {
        for name in KERNEL_PATHS {
            match calls(name, backend) {
                Ok(calls) => drop(now.syscalls.insert(format!("{name}-{backend}"), calls)),
                Err(why) if env::var_os("XROCE_REQUIRE_XDP").is_some() => return Err(why),
                Err(why) => println!("system calls of {name} over {backend} not counted: {why}"),
            }
        }
    }
    Ok(now)
}

/// System calls of 1000 packets: of a few tries that with the fewest.
fn calls(name: &str, backend: &str) -> Result<BTreeMap<String, f64>, String> {
    let args = |n: u32| {
        [
            String::from("--kernel"),
            name.to_owned(),
            backend.to_owned(),
            n.to_string(),
        ]
    };
    let packets = Path::named(name).map_or(1, |p| p.packets);
    let units = f64::from((MANY - FEW) * packets) / UNITS;
    let mut best: Option<BTreeMap<String, f64>> = None;
    for _ in 0..TRIES {
        let (few, many) = (syscalls::count(&args(FEW))?, syscalls::count(&args(MANY))?);
        let each = |(name, n): (String, f64)| {
            let n = (n - few.get(&name).copied().unwrap_or_default()) / units;
            (name, (n * 10.0).round() / 10.0)
        };
        let calls: BTreeMap<_, _> = many.into_iter().map(each).filter(|c| c.1 >= 0.1).collect();
        let sum = |c: &BTreeMap<String, f64>| c.values().sum::<f64>();
        if best.as_ref().is_none_or(|b| sum(&calls) < sum(b)) {
            best = Some(calls);
        }
    }
    Ok(best.unwrap_or_default())
}

/// What a packet or a message touches, in bytes.
fn sizes() -> BTreeMap<String, u64> {
    let sizes = [
        ("Qp", xroce_proto::qp::QP_SIZE),
        ("Completion", size_of::<xroce_proto::wc::Completion>()),
        ("SendWr", size_of::<xroce_proto::wr::SendWr<'_>>()),
        (
            "HeaderTemplate",
            size_of::<xroce_wire::template::HeaderTemplate>(),
        ),
    ];
    sizes
        .map(|(name, n)| (name.to_owned(), n as u64))
        .into_iter()
        .collect()
}

/// What instructions depend on, apart from the program.
fn machine() -> String {
    let rustc = Command::new("rustc").arg("--version").output().ok();
    let rustc = rustc.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|l| {
        let (key, value) = l.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let model = model.unwrap_or_else(|| String::from("unknown processor"));
    format!(
        "{}, {model}",
        rustc.unwrap_or_else(|| String::from("unknown rustc"))
    )
}
