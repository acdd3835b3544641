//! `xroce-interop`: xroce against Linux `rdma_rxe` in a virtual machine.
//!
//! ```text
//!   fabric     namespace, tap and cable; faults; the record of what passed
//!   ends       the two ends behind one interface: rxe through the guest's agent, our engine
//!   scenario   what is tried
//!   diff       random programs, the same between rxe and rxe, xroce and rxe, xroce and xroce
//!   run        boots a kernel, runs scenarios, collects results
//!   check      tshark and an independent ICRC over all captures
//!   report     table, JSON, Markdown
//!   rate       rxe and xroce between two machines, measured
//! ```
#![forbid(unsafe_code)]

mod archive;
mod check;
mod clock;
mod diff;
mod ends;
mod fabric;
mod rate;
mod report;
mod run;
mod scenario;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use xroce_vm::{Accel, Cache, Kernel, prepare};

use report::Report;
use run::Orders;
use scenario::Programs;

/// Runs xroce against Linux rdma_rxe in a virtual machine. Needs root.
#[derive(Parser, Debug)]
#[command(version)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// A handful of scenarios on one kernel
    #[arg(long)]
    smoke: bool,
    /// Kernels of the peer
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "6.1,6.12",
          default_value_if("smoke", "true", "6.12"), value_parser = parse_kernel)]
    kernel: Vec<Kernel>,
    /// Only scenarios whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Runs everything so often on each kernel, in one machine
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Names the scenarios and ends
    #[arg(long)]
    list: bool,
    /// Seed of the faults on the cable
    #[arg(long, default_value_t = run::SEED)]
    seed: u64,
    /// Random programs on each kernel
    #[arg(long, default_value_t = 150, default_value_if("smoke", "true", "10"),
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    programs: u32,
    /// Seed of the first random program of each kind, decimal or hex
    #[arg(long, default_value = "1", value_parser = parse_seed)]
    program_seed: u64,
    /// Where report and captures go
    #[arg(long, value_name = "DIR", default_value = REPORT)]
    report: PathBuf,
    /// Our end is a device of the daemon instead of an engine of its own
    #[arg(long)]
    daemon: bool,
    /// Runs this in the machine before everything else, such as switching on messages of its kernel
    #[arg(long, value_name = "SCRIPT")]
    guest: Option<String>,
    /// Keep the captures of all scenarios
    #[arg(long)]
    keep: bool,
    /// Document whose table is replaced by that of this run
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Emulate the processor even where hardware virtualisation works
    #[arg(long)]
    emulate: bool,
}

/// What else there is.
#[derive(Subcommand, Debug)]
enum Command {
    /// Measures message rate and bandwidth of rxe and of xroce between two virtual machines
    Rate {
        #[command(flatten)]
        args: rate::RateArgs,
        /// Where the figures go
        #[arg(long, value_name = "DIR", default_value = REPORT)]
        report: PathBuf,
        /// Emulate the processor even where hardware virtualisation works
        #[arg(long)]
        emulate: bool,
    },
}

/// Where reports go unless told otherwise.
const REPORT: &str = "report/interop";

fn parse_kernel(text: &str) -> Result<Kernel, String> {
    match text {
        "6.1" => Ok(Kernel::V6_1),
        "6.12" => Ok(Kernel::V6_12),
        _ => Err("a kernel is 6.1 or 6.12".to_owned()),
    }
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|e| format!("a seed is a number of 64 bits: {e}"))
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("xroce-interop: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn check_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("network namespaces and AF_XDP need root");
    }
    Ok(())
}

fn accel(emulate: bool) -> Accel {
    if emulate { Accel::Tcg } else { Accel::Auto }
}

fn run(cli: &Cli) -> Result<bool> {
    if let Some(Command::Rate {
        args,
        report,
        emulate,
    }) = &cli.command
    {
        check_root()?;
        let dir = run::folder(report)?;
        rate::run(&Cache::from_env()?, args, accel(*emulate), &dir)?;
        return Ok(true);
    }
    let mut scenarios = scenario::all();
    scenarios.retain(|s| !cli.smoke || s.smoke);
    if let Some(filter) = &cli.filter {
        scenarios.retain(|s| s.name.contains(filter.as_str()));
    }
    if scenarios.is_empty() {
        bail!("no scenario has {:?} in its name: see --list", cli.filter);
    }
    if cli.list {
        list(&scenarios);
        return Ok(true);
    }
    check_root()?;
    check::available()?;
    let started = clock::now();
    let dir = run::folder(&cli.report)?;
    let report = run_all(cli, &scenarios, &dir)?;
    report.write(&dir)?;
    if let Some(document) = &cli.document {
        report.update(document)?;
    }
    conclude(&report, started.elapsed(), &dir);
    Ok(report.failures().count() == 0)
}

#[allow(clippy::print_stdout, reason = "the list is the output")]
fn list(scenarios: &[scenario::Scenario]) {
    for s in scenarios {
        let (direction, network) = (s.direction.name(), s.route.name());
        println!("{}, {direction}, {network}, {} B", s.name, s.mtu.bytes());
    }
}

fn run_all(cli: &Cli, scenarios: &[scenario::Scenario], dir: &Path) -> Result<Report> {
    let cache = Cache::from_env()?;
    let orders = Orders {
        seed: cli.seed,
        dir,
        keep: cli.keep,
        accel: accel(cli.emulate),
        programs: Programs {
            count: cli.programs,
            seed: cli.program_seed,
        },
        daemon: cli.daemon,
        repeat: cli.repeat,
        guest: cli.guest.as_deref(),
    };
    let mut report = Report {
        machine: String::new(),
        packets_checked: 0,
        rows: Vec::new(),
    };
    for &kernel in &cli.kernel {
        let image = prepare(&cache, kernel, &[], &mut |line| eprintln!("{line}"))?;
        eprintln!("{}: {} scenarios", image.release, scenarios.len());
        let (rows, checked, accel) = run::kernel(&image, scenarios, &orders)?;
        report.rows.extend(rows);
        report.packets_checked += checked;
        let machine = match accel {
            Accel::Kvm => "hardware virtualisation",
            Accel::Tcg | Accel::Auto => "software emulation",
        };
        machine.clone_into(&mut report.machine);
    }
    Ok(report)
}

#[allow(clippy::print_stdout, reason = "the table is the output")]
fn conclude(report: &Report, took: Duration, dir: &Path) {
    println!("{}", report.table());
    println!(
        "{} scenarios, {} failed, {} attempts repeated for a fault of the peer; {} RoCE packets \
         checked by tshark and by an independent ICRC; {} s; {}",
        report.rows.len(),
        report.failures().count(),
        report.peer_faults().count(),
        report.packets_checked,
        took.as_secs(),
        dir.join("report.md").display()
    );
    for (row, note) in report.notes() {
        println!("{}: {note}", row.kernel);
    }
    for (row, fault) in report.peer_faults() {
        let (scenario, direction, kernel) = (&row.scenario, row.direction, &row.kernel);
        println!("peer fault: {scenario}, {direction}, {kernel}: {fault}");
    }
    for row in report.failures() {
        let why = row.error.as_deref().unwrap_or("no reason given");
        let (scenario, direction, kernel) = (&row.scenario, row.direction, &row.kernel);
        let captures = row.pcaps.join(", ");
        println!("FAILED {scenario}, {direction}, {kernel}: {why} ({captures})");
    }
}
