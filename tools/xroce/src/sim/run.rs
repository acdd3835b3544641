//! `xroce sim run`.

use std::io::{IsTerminal, Write};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use xroce_engine::clock;
use xroce_fabric::{Report, Setup, Simulation, Time};

use super::{RunArgs, html, load, report_path, table, write};
use crate::stop;

/// Steps of the progress bar.
const STEPS: u64 = 400;

/// How fast a run was.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Pace {
    /// Wall time, seconds.
    pub wall_s: f64,
    /// Packet events a second.
    pub packet_events_per_s: f64,
    /// Virtual seconds a second.
    pub virtual_per_wall: f64,
}

impl Pace {
    #[allow(clippy::cast_precision_loss, reason = "rates")]
    fn of(report: &Report, wall_s: f64) -> Self {
        let wall_s = wall_s.max(1e-9);
        Self {
            wall_s,
            packet_events_per_s: report.packet_events as f64 / wall_s,
            virtual_per_wall: report.end_us / 1e6 / wall_s,
        }
    }
}

/// Runs a simulation, with `progress` told how far it is: virtual time and packet events.
///
/// # Errors
/// It cannot be built, or a signal came.
pub(crate) fn simulate(
    setup: Setup,
    name: &str,
    mut progress: impl FnMut(Time, u64),
) -> Result<(Report, Pace)> {
    let start = clock::now();
    let mut sim = Simulation::new(setup)?;
    let step = Time::from_ps((sim.end().ps() / STEPS).max(1));
    while sim.run_for(step) {
        stop::check()?;
        progress(sim.now(), sim.packet_events());
    }
    let mut report = sim.report();
    name.clone_into(&mut report.name);
    #[allow(clippy::cast_precision_loss, reason = "seconds")]
    let wall_s = clock::now().since(start).as_nanos() as f64 / 1e9;
    let pace = Pace::of(&report, wall_s);
    if !report.census.is_conserved() {
        bail!("frames came from nowhere or vanished: {:?}", report.census);
    }
    Ok((report, pace))
}

/// Runs the command.
///
/// # Errors
/// One line that says what is wrong.
pub(crate) fn run(args: &RunArgs, out: &mut dyn Write) -> Result<()> {
    let (scenario, setup) = load(&args.source)?;
    let bar = bar(setup.end, args.quiet);
    let (report, pace) = simulate(setup, &scenario.name, |now, events| {
        bar.set_position(now.ns());
        bar.set_message(format!(
            "{} packet events",
            crate::perf::report::rate(as_f64(events))
        ));
    })?;
    bar.finish_and_clear();
    let to_stdout = args.json.as_deref().is_some_and(|p| p.as_os_str() == "-");
    if !to_stdout {
        writeln!(out, "{}", table::of(&report, &pace))?;
    }
    if let Some(path) = &args.json {
        let json = serde_json::json!({ "report": report, "pace": pace });
        if to_stdout {
            writeln!(out, "{json}")?;
        } else {
            write(path, &json.to_string())?;
        }
    }
    if !args.no_html {
        let path = args.html.clone();
        let path = path.unwrap_or_else(|| report_path(&scenario.name, ""));
        write(&path, &html::page(&scenario.description, &report, &pace))?;
        if !to_stdout {
            writeln!(out, "report: {}", path.display())?;
        }
    }
    if !report.contents_right {
        bail!("what arrived is not what was sent");
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "shown to people")]
fn as_f64(n: u64) -> f64 {
    n as f64
}

fn bar(end: Time, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(end.ns()), ProgressDrawTarget::stderr());
    let style =
        ProgressStyle::with_template("{bar:40} {percent}% of virtual time, {msg}, {elapsed}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}
