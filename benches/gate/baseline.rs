//! What the paths may cost, and which function is to blame where they cost more.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// More than the baseline by this share is a slip.
pub(crate) const ALLOWED: f64 = 0.03;
/// Functions and files below this share of the whole are not kept.
const SMALL: f64 = 0.004;
/// Functions and files named when something slipped.
const NAMED: usize = 4;

/// Instructions of one unit of work.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cost {
    /// Altogether.
    pub(crate) instructions: f64,
    /// By function, whatever was inlined into it included.
    pub(crate) functions: BTreeMap<String, f64>,
    /// By source file, wherever its code was inlined.
    pub(crate) files: BTreeMap<String, f64>,
}

/// The file that is compared with.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Baseline {
    /// Compiler that it was measured with, and the name of the processor.
    pub(crate) measured: String,
    /// Bytes of types that have to stay small. Exact: a smaller one is to be written down.
    pub(crate) sizes: BTreeMap<String, u64>,
    /// Allocations of a thousand units of work, by path. Exact.
    pub(crate) allocations: BTreeMap<String, u64>,
    /// System calls of a thousand units of work, by path and name.
    pub(crate) syscalls: BTreeMap<String, BTreeMap<String, f64>>,
    /// Instructions, by path.
    pub(crate) paths: BTreeMap<String, Cost>,
}

/// Something costs more than it may.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Slip(pub(crate) String);

impl fmt::Display for Slip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Cost {
    /// From costs by file and function.
    pub(crate) fn of<'a>(costs: impl IntoIterator<Item = ((&'a str, &'a str), f64)>) -> Self {
        let mut cost = Self::default();
        for ((file, function), n) in costs {
            cost.instructions += n;
            *cost.functions.entry(function.to_owned()).or_default() += n;
            *cost.files.entry(short(file)).or_default() += n;
        }
        let least = cost.instructions * SMALL;
        for kept in [&mut cost.functions, &mut cost.files] {
            kept.retain(|_, n| *n >= least);
            kept.values_mut().for_each(|n| *n = tenth(*n));
        }
        cost.instructions = tenth(cost.instructions);
        cost
    }

    /// The slip of a path against what it cost before.
    fn slip(&self, before: &Self, path: &str) -> Option<Slip> {
        let (now, then) = (self.instructions, before.instructions);
        if now <= then * (1.0 + ALLOWED) {
            return None;
        }
        let more = (now / then - 1.0) * 100.0;
        let mut text = format!(
            "{path}: {now:.1} instructions, {then:.1} in the baseline: {more:.1} % more, {:.0} % are \
             allowed. What grew most:",
            ALLOWED * 100.0
        );
        for (what, now, before) in [
            ("function", &self.functions, &before.functions),
            ("file", &self.files, &before.files),
        ] {
            for (name, then, now) in growth(now, before).into_iter().take(NAMED) {
                text += &format!("\n    {what} {name}: {then:.1} -> {now:.1}");
            }
        }
        Some(Slip(text))
    }
}

fn tenth(n: f64) -> f64 {
    (n * 10.0).round() / 10.0
}

/// A path as it is in every checkout and with every toolchain.
fn short(file: &str) -> String {
    for root in ["transport/", "benches/", "library/", "registry/src/"] {
        if let Some((_, rest)) = file.split_once(root) {
            return match root {
                // The folder of the registry comes first.
                "registry/src/" => rest.split_once('/').map_or(rest, |r| r.1).to_owned(),
                root => format!("{root}{rest}"),
            };
        }
    }
    file.to_owned()
}

/// What grew by more than one, most first: name, then, now.
fn growth<'a>(
    now: &'a BTreeMap<String, f64>,
    before: &BTreeMap<String, f64>,
) -> Vec<(&'a str, f64, f64)> {
    let mut all: Vec<(&str, f64, f64)> = now
        .iter()
        .map(|(name, n)| (&**name, before.get(name).copied().unwrap_or_default(), *n))
        .filter(|(_, then, now)| now - then > 1.0)
        .collect();
    all.sort_by(|a, b| (b.2 - b.1).total_cmp(&(a.2 - a.1)));
    all
}

impl Baseline {
    /// Everything that costs more here than in `before`, and what `before` does not have. What was
    /// not measured here, since the machine lacks something, is not compared.
    pub(crate) fn slips(&self, before: &Self) -> Vec<Slip> {
        let mut slips = Vec::new();
        for (name, now) in &self.sizes {
            slips.extend(exact("bytes of", name, *now, before.sizes.get(name)));
        }
        for (name, now) in &self.allocations {
            let then = before.allocations.get(name);
            slips.extend(exact("allocations of 1000", name, *now, then));
        }
        for (path, calls) in &self.syscalls {
            let Some(before) = before.syscalls.get(path) else {
                slips.push(missing(path));
                continue;
            };
            for (name, now) in calls {
                let then = before.get(name).copied().unwrap_or_default();
                if *now > then * (1.0 + ALLOWED) + 0.1 {
                    slips.push(Slip(format!(
                        "{path}: {now:.1} calls of {name} for 1000 units, {then:.1} in the baseline"
                    )));
                }
            }
        }
        for (path, cost) in &self.paths {
            match before.paths.get(path) {
                Some(before) => slips.extend(cost.slip(before, path)),
                None => slips.push(missing(path)),
            }
        }
        slips
    }

    /// Paths that cost less by more than what is allowed to slip: the baseline is out of date.
    pub(crate) fn gains(&self, before: &Self) -> Vec<String> {
        let is_less = |(path, cost): (&String, &Cost)| {
            let then = before.paths.get(path)?.instructions;
            let now = cost.instructions;
            (now < then * (1.0 - ALLOWED)).then(|| format!("{path}: {then:.1} -> {now:.1}"))
        };
        self.paths.iter().filter_map(is_less).collect()
    }
}

fn exact(what: &str, name: &str, now: u64, then: Option<&u64>) -> Option<Slip> {
    match then {
        Some(&then) if now <= then => None,
        Some(then) => Some(Slip(format!(
            "{what} {name}: {now}, {then} in the baseline"
        ))),
        None => Some(missing(name)),
    }
}

fn missing(name: &str) -> Slip {
    Slip(format!(
        "{name} is not in the baseline: write it down with --bless"
    ))
}
