//! `xroce sim sweep`: a scenario with many values of some keys.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use xroce_fabric::Summary;
use xroce_net::sim::Rng;

use super::edit::{self, Assignment};
use super::pareto::{Objective, front};
use super::run::simulate;
use super::{read, report_path, sweep_page, write};
use crate::stop;

/// Runs of a sweep, at most.
const RUNS_MAX: usize = 20_000;

/// Run a scenario with many values of some keys
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepArgs {
    /// Scenario, or sweep file: TOML with scenario = "FILE" and a table of values, vary
    pub file: PathBuf,
    /// Values of a key, such as ecn.kmin=5KB,20KB,80KB; may be repeated: all combinations are run
    #[arg(long, value_name = "KEY=A,B,C")]
    pub vary: Vec<String>,
    /// A fixed value for a key; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = Assignment::parse)]
    pub set: Vec<Assignment>,
    /// Not all combinations, but so many random ones
    #[arg(long, value_name = "N")]
    pub random: Option<usize>,
    /// Runs of each combination, with seeds one after the other; means are compared
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: Option<u64>,
    /// What counts [default: slowdown_p99,queue_p95,goodput]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    pub objective: Vec<Objective>,
    /// Runs at the same time [default: one per core]
    #[arg(long, short, value_name = "N")]
    pub jobs: Option<usize>,
    /// Write everything as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report to this file [default: report/sim/NAME-sweep.html]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// No progress bar
    #[arg(long, short)]
    pub quiet: bool,
}

/// A sweep as a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepFile {
    /// Scenario, from the folder of this file.
    scenario: PathBuf,
    /// Values by key.
    vary: Table,
    /// Fixed values by key.
    #[serde(default)]
    set: Table,
    random: Option<usize>,
    seeds: Option<u64>,
    #[serde(default)]
    objectives: Vec<Objective>,
}

/// A sweep, from wherever.
#[derive(Clone, Debug)]
struct Plan {
    name: String,
    text: String,
    set: Vec<Assignment>,
    vary: Vec<(String, Vec<Value>)>,
    random: Option<usize>,
    seeds: u64,
    objectives: Vec<Objective>,
}

/// One combination and what came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    /// Values, in the order of the keys.
    pub values: Vec<String>,
    /// What counts, means over the seeds; empty if it is impossible.
    pub results: Vec<f64>,
    /// Whether no other beats it.
    pub best: bool,
    /// Why it is impossible.
    pub error: Option<String>,
    /// The run of the first seed.
    pub summary: Option<Summary>,
}

/// All combinations.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sweep {
    /// Name.
    pub name: String,
    /// Keys that vary.
    pub keys: Vec<String>,
    /// What counts.
    pub objectives: Vec<Objective>,
    /// Seeds per combination.
    pub seeds: u64,
    /// Combinations.
    pub points: Vec<Point>,
}

/// Values of "key=a,b,c", where the whole may also be a TOML array.
fn values(text: &str) -> Vec<Value> {
    match edit::value(&format!("[{text}]")) {
        Value::Array(items) if !items.is_empty() => items,
        _ => text.split(',').map(|v| edit::value(v.trim())).collect(),
    }
}

impl Plan {
    fn of(args: &SweepArgs) -> Result<Self> {
        let text = read(&args.file)?;
        let file = args.file.display();
        let is_sweep = text
            .parse::<Table>()
            .is_ok_and(|t| t.contains_key("scenario"));
        let stem = args
            .file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let mut plan = Self {
            name: stem,
            text,
            set: args.set.clone(),
            vary: Vec::new(),
            random: args.random,
            seeds: args.seeds.unwrap_or(1),
            objectives: args.objective.clone(),
        };
        if is_sweep {
            let sweep: SweepFile = toml::from_str(&plan.text)
                .map_err(|e| anyhow!("{file}: {}", e.message().replace('\n', " ")))?;
            let folder = args
                .file
                .parent()
                .unwrap_or_else(|| std::path::Path::new(""));
            plan.text = read(&folder.join(&sweep.scenario))?;
            plan.random = args.random.or(sweep.random);
            plan.seeds = args.seeds.or(sweep.seeds).unwrap_or(1);
            if plan.objectives.is_empty() {
                plan.objectives = sweep.objectives;
            }
            let fixed = sweep.set.into_iter();
            plan.set
                .splice(0..0, fixed.map(|(key, value)| Assignment { key, value }));
            for (key, value) in sweep.vary {
                let Value::Array(items) = value else {
                    bail!("{file}: vary.{key} is no list of values");
                };
                plan.vary.push((key, items));
            }
        }
        for text in &args.vary {
            let (key, list) = edit::split(text).map_err(|e| anyhow!(e))?;
            plan.vary.push((key, values(list)));
        }
        plan.check()?;
        Ok(plan)
    }

    fn check(&mut self) -> Result<()> {
        if self.vary.is_empty() || self.vary.iter().any(|(_, v)| v.is_empty()) {
            bail!("nothing varies: give --vary KEY=A,B or a sweep file with a table [vary]");
        }
        if self.objectives.is_empty() {
            self.objectives = vec![
                Objective::SlowdownP99,
                Objective::QueueP95,
                Objective::Goodput,
            ];
        }
        let each = self.vary.iter().map(|(_, v)| v.len());
        let all = each.fold(1_usize, usize::saturating_mul);
        let runs = self.random.unwrap_or(all);
        let seeds = usize::try_from(self.seeds).unwrap_or(usize::MAX);
        if runs == 0 || runs.saturating_mul(seeds) > RUNS_MAX {
            bail!(
                "{runs} combinations of {seeds} seeds: 1 to {RUNS_MAX} runs are possible, --random picks some"
            );
        }
        Ok(())
    }

    /// Values of each combination, as indices.
    fn combinations(&self) -> Vec<Vec<usize>> {
        let sizes: Vec<usize> = self.vary.iter().map(|(_, v)| v.len()).collect();
        if let Some(n) = self.random {
            let mut rng = Rng::new(1);
            return (0..n)
                .map(|_| sizes.iter().map(|&s| rng.index(s)).collect())
                .collect();
        }
        let mut all = vec![Vec::new()];
        for size in sizes {
            all = all
                .into_iter()
                .flat_map(|head: Vec<usize>| {
                    (0..size).map(move |i| head.iter().copied().chain([i]).collect())
                })
                .collect();
        }
        all
    }

    fn point(&self, combination: &[usize]) -> Result<Point> {
        let mut assignments = self.set.clone();
        let mut names = Vec::new();
        for ((key, values), &i) in self.vary.iter().zip(combination) {
            let value = values[i].clone();
            names.push(edit::plain(&value));
            assignments.push(Assignment {
                key: key.clone(),
                value,
            });
        }
        let mut sums = vec![0.0; self.objectives.len()];
        let mut first = None;
        let mut error = None;
        for n in 0..self.seeds {
            stop::check()?;
            let base = edit::load(&self.text, &assignments, None);
            let again = base.and_then(|(s, _)| {
                edit::load(&self.text, &assignments, Some(s.seed.wrapping_add(n)))
            });
            let (_, mut setup) = match again {
                Ok(loaded) => loaded,
                Err(e) => {
                    error = Some(e.to_string());
                    break;
                }
            };
            // Nobody looks at the series.
            setup.sample = xroce_fabric::Time::ZERO;
            let (report, _) = simulate(setup, "", |_, _| {})?;
            for (sum, objective) in sums.iter_mut().zip(&self.objectives) {
                *sum += objective.of(&report.summary);
            }
            first.get_or_insert(report.summary);
        }
        #[allow(clippy::cast_precision_loss, reason = "up to 1000 seeds")]
        let mean = |sum: f64| sum / self.seeds as f64;
        let results = if error.is_some() {
            Vec::new()
        } else {
            sums.into_iter().map(mean).collect()
        };
        Ok(Point {
            values: names,
            results,
            best: false,
            error,
            summary: first,
        })
    }
}

/// Runs the command.
///
/// # Errors
/// One line that says what is wrong.
pub(crate) fn run(args: &SweepArgs, out: &mut dyn Write) -> Result<()> {
    let plan = Plan::of(args)?;
    let combinations = plan.combinations();
    let bar = bar(combinations.len() as u64, args.quiet);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.jobs.unwrap_or(0));
    let pool = pool.build().context("cannot start threads")?;
    let points: Result<Vec<Point>> = pool.install(|| {
        combinations
            .par_iter()
            .map(|c| {
                let point = plan.point(c);
                bar.inc(1);
                point
            })
            .collect()
    });
    bar.finish_and_clear();
    let mut points = points?;
    judge(&plan.objectives, &mut points);
    if let Some(error) = points.iter().find_map(|p| p.error.as_ref())
        && points.iter().all(|p| p.error.is_some())
    {
        bail!("none of the combinations is possible, the first: {error}");
    }
    let sweep = Sweep {
        name: plan.name,
        keys: plan.vary.into_iter().map(|(k, _)| k).collect(),
        objectives: plan.objectives,
        seeds: plan.seeds,
        points,
    };
    writeln!(out, "{}", sweep_page::table(&sweep))?;
    if let Some(path) = &args.json {
        write(path, &serde_json::to_string(&sweep)?)?;
    }
    let path = args.html.clone();
    let path = path.unwrap_or_else(|| report_path(&sweep.name, "-sweep"));
    write(&path, &sweep_page::page(&sweep))?;
    writeln!(out, "report: {}", path.display())?;
    Ok(())
}

/// Marks those that no other beats.
fn judge(objectives: &[Objective], points: &mut [Point]) {
    let mut possible: Vec<&mut Point> = points.iter_mut().filter(|p| p.error.is_none()).collect();
    let rows: Vec<Vec<f64>> = possible.iter().map(|p| p.results.clone()).collect();
    for (point, best) in possible.iter_mut().zip(front(objectives, &rows)) {
        point.best = best;
    }
}

fn bar(len: u64, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::stderr());
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {pos} of {len} combinations, {elapsed}")
    {
        bar.set_style(style);
    }
    bar
}
