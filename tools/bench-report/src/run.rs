//! A run as it stands in its file.

use serde::{Deserialize, Serialize};

use crate::Row;

/// Version of the file. 1 was that of the benches of the links alone.
pub const SCHEMA: u32 = 2;

/// A fact about the machine or the run: "kernel", "6.18".
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fact {
    /// Of what.
    pub name: String,
    /// What it is.
    pub value: String,
}

/// Where it was measured, and what else went on there.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel, processor, driver, XDP mode and so on, in the order of the report.
    pub facts: Vec<Fact>,
    /// Cores that the benches may use.
    pub cores: u32,
    /// Threads that are busy at once in the rows with two ends.
    pub threads: u32,
    /// Share of all cores that was busy while the benches slept, between rounds.
    pub others: Vec<f64>,
    /// Share of all cores that the host of a virtual machine kept for others, by round.
    pub stolen: Vec<f64>,
}

impl Machine {
    /// The value of a fact.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&str> {
        let fact = self.facts.iter().find(|f| f.name == name)?;
        Some(&fact.value)
    }
}

/// How an axis runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// From 0.
    Linear,
    /// In powers; what is not above 0 is not drawn.
    Log,
}

/// How the numbers of an axis read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ticks {
    /// "1000", "2 k", "3 M".
    Count,
    /// "64 B", "4 KB".
    Bytes,
    /// "99.9 %" of 0.999.
    Share,
}

/// An axis of a plot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Axis {
    /// With its unit.
    pub name: String,
    /// How it runs.
    pub scale: Scale,
    /// How its numbers read.
    pub ticks: Ticks,
}

/// A curve of a plot.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Curve {
    /// For the legend.
    pub name: String,
    /// A ceiling or peer: drawn in grey tones.
    #[serde(default)]
    pub is_peer: bool,
    /// x and y, x going up.
    pub points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// Its name over all times.
    pub key: String,
    /// Heading.
    pub title: String,
    /// What a reader has to know.
    #[serde(default)]
    pub note: String,
    /// Horizontal.
    pub x: Axis,
    /// Vertical.
    pub y: Axis,
    /// What is drawn.
    pub curves: Vec<Curve>,
}

/// A part of a bar.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// "ICRC", "kernel".
    pub name: String,
    /// Of the whole, 0 to 1.
    pub share: f64,
}

/// Where the work of something goes: a bar of parts that make up the whole.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bar {
    /// Of what.
    pub name: String,
    /// What is shared out: "CPU time", "instructions".
    pub of: String,
    /// Keys of the rows it explains.
    #[serde(default)]
    pub rows: Vec<String>,
    /// Its parts.
    pub parts: Vec<Part>,
}

/// A run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it began, "2026-03-01T12:30:00Z".
    pub started: String,
    /// The commit that was measured, if that is known.
    #[serde(default)]
    pub commit: String,
    /// Every row was asked for, with what it is measured against, at full length.
    pub complete: bool,
    /// Rounds asked for.
    pub rounds: u32,
    /// Length of one measurement in seconds.
    pub seconds: f64,
    /// Seconds the run took.
    pub took: f64,
    /// Where.
    pub machine: Machine,
    /// The rows.
    pub rows: Vec<Row>,
    /// Curves.
    #[serde(default)]
    pub plots: Vec<Plot>,
    /// Where the work goes.
    #[serde(default)]
    pub bars: Vec<Bar>,
}

impl Run {
    /// The row with this key.
    #[must_use]
    pub fn row(&self, key: &str) -> Option<&Row> {
        self.rows.iter().find(|r| r.key == key)
    }

    /// Whether it may replace the table in the documents; if not, why.
    ///
    /// # Errors
    /// What is missing. D8 may be: it needs two virtual machines, and the row says so.
    pub fn is_presentable(&self) -> Result<(), String> {
        if !self.complete {
            return Err(String::from(
                "not every row was asked for, at full length and with its peer",
            ));
        }
        let empty: Vec<&str> = self
            .rows
            .iter()
            .filter(|r| r.samples.is_empty() && r.id != "D8")
            .map(|r| r.key.as_str())
            .collect();
        if empty.is_empty() {
            Ok(())
        } else {
            Err(format!("no figures for {}", empty.join(", ")))
        }
    }
}
