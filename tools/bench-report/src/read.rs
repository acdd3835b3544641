//! Runs from and to files. A file may have been written by anybody.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use serde::Serialize as _;
use serde_json::{Value, json};

use crate::{Bar, Plot, ReportError, Row, Run, SCHEMA};

/// Bytes of a file, at most.
const FILE_MAX: u64 = 64 << 20;
/// Rows, plots and bars, curves of a plot, parts of a bar, facts, notes of a row, at most of each.
const ITEMS_MAX: usize = 1000;
/// Samples of a row, points of a curve, at most.
const SAMPLES_MAX: usize = 100_000;
/// Bytes of a text, at most.
const TEXT_MAX: usize = 4000;
/// Largest amount of a figure; and nothing that is measured is smaller than one part in it.
const FIGURE_MAX: f64 = 1e18;

/// A field and what is wrong with it.
type Wrong = (String, String);

impl Run {
    /// Reads a run and checks all of it.
    ///
    /// # Errors
    /// Which file, which field, what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let io = |source| ReportError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        let mut bytes = Vec::new();
        // Whatever the length is said to be: a pipe has none.
        file.take(FILE_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(io)?;
        if bytes.len() as u64 > FILE_MAX {
            let bytes = fs::metadata(path).map_or(bytes.len() as u64, |m| m.len());
            return Err(ReportError::TooLong {
                path: path.to_owned(),
                bytes,
                most: FILE_MAX,
            });
        }
        Self::parse(&bytes, path)
    }

    /// `path` is for what is said about errors.
    fn parse(bytes: &[u8], path: &Path) -> Result<Self, ReportError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| ReportError::NotJson {
            path: path.to_owned(),
            why: e.to_string(),
        })?;
        match value.get("schema").and_then(Value::as_u64) {
            None => {
                return Err(ReportError::NotARun {
                    path: path.to_owned(),
                });
            }
            Some(found) if found != u64::from(SCHEMA) => {
                return Err(ReportError::Schema {
                    path: path.to_owned(),
                    found,
                    known: SCHEMA.into(),
                });
            }
            Some(_) => {}
        }
        let field = |(field, why)| ReportError::Field {
            path: path.to_owned(),
            field,
            why,
        };
        let run: Self = serde_path_to_error::deserialize(value)
            .map_err(|e| field((e.path().to_string(), e.inner().to_string())))?;
        run.check().map_err(field)?;
        Ok(run)
    }

    /// As JSON, with what follows from the samples of each row as "summary", for programs that do
    /// not want to calculate. It is not read again.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut value = self
            .serialize(serde_json::value::Serializer)
            .unwrap_or_default();
        let rows = value.get_mut("rows").and_then(Value::as_array_mut);
        for (json, row) in rows.into_iter().flatten().zip(&self.rows) {
            json["summary"] = json!({
                "ours": row.ours(),
                "peer": row.peer(),
                "ratio": row.ratio(),
                "target": row.target(),
                "met": match row.met() {
                    crate::Met::Yes => Some(true),
                    crate::Met::No => Some(false),
                    crate::Met::NoGoal | crate::Met::NotMeasured => None,
                },
            });
        }
        format!("{value:#}\n")
    }

    /// Writes [`Run::to_json`].
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), ReportError> {
        fs::write(path, self.to_json()).map_err(|source| ReportError::Io {
            path: path.to_owned(),
            source,
        })
    }

    fn check(&self) -> Result<(), Wrong> {
        text("started", &self.started)?;
        text("commit", &self.commit)?;
        figure("seconds", self.seconds)?;
        figure("took", self.took)?;
        let machine = &self.machine;
        items("machine.facts", machine.facts.len(), ITEMS_MAX)?;
        for (i, fact) in machine.facts.iter().enumerate() {
            text(&format!("machine.facts[{i}].name"), &fact.name)?;
            text(&format!("machine.facts[{i}].value"), &fact.value)?;
        }
        for (name, shares) in [("others", &machine.others), ("stolen", &machine.stolen)] {
            items(&format!("machine.{name}"), shares.len(), SAMPLES_MAX)?;
            for (i, &value) in shares.iter().enumerate() {
                share(&format!("machine.{name}[{i}]"), value)?;
            }
        }
        items("rows", self.rows.len(), ITEMS_MAX)?;
        for (i, row) in self.rows.iter().enumerate() {
            check_row(&format!("rows[{i}]"), row)?;
            let is_again = |r: &Row| r.key == row.key;
            if self.rows.iter().take(i).any(is_again) {
                return Err((
                    format!("rows[{i}].key"),
                    format!("{:?} is there twice", row.key),
                ));
            }
        }
        items("plots", self.plots.len(), ITEMS_MAX)?;
        for (i, plot) in self.plots.iter().enumerate() {
            check_plot(&format!("plots[{i}]"), plot)?;
        }
        items("bars", self.bars.len(), ITEMS_MAX)?;
        for (i, bar) in self.bars.iter().enumerate() {
            check_bar(&format!("bars[{i}]"), bar)?;
        }
        Ok(())
    }
}

fn check_row(at: &str, row: &Row) -> Result<(), Wrong> {
    for (name, value) in [
        ("key", &row.key),
        ("id", &row.id),
        ("measure", &row.measure),
        ("against", &row.against),
    ] {
        text(&format!("{at}.{name}"), value)?;
    }
    items(&format!("{at}.samples"), row.samples.len(), SAMPLES_MAX)?;
    for (i, sample) in row.samples.iter().enumerate() {
        figure(&format!("{at}.samples[{i}].ours"), sample.ours)?;
        figure(
            &format!("{at}.samples[{i}].peer"),
            sample.peer.unwrap_or(0.0),
        )?;
    }
    items(&format!("{at}.notes"), row.notes.len(), ITEMS_MAX)?;
    for (i, note) in row.notes.iter().enumerate() {
        text(&format!("{at}.notes[{i}]"), note)?;
    }
    Ok(())
}

fn check_plot(at: &str, plot: &Plot) -> Result<(), Wrong> {
    for (name, value) in [
        ("key", &plot.key),
        ("title", &plot.title),
        ("note", &plot.note),
        ("x.name", &plot.x.name),
        ("y.name", &plot.y.name),
    ] {
        text(&format!("{at}.{name}"), value)?;
    }
    items(&format!("{at}.curves"), plot.curves.len(), ITEMS_MAX)?;
    for (i, curve) in plot.curves.iter().enumerate() {
        let at = format!("{at}.curves[{i}]");
        text(&format!("{at}.name"), &curve.name)?;
        items(&format!("{at}.points"), curve.points.len(), SAMPLES_MAX)?;
        for (i, &(x, y)) in curve.points.iter().enumerate() {
            figure(&format!("{at}.points[{i}][0]"), x)?;
            figure(&format!("{at}.points[{i}][1]"), y)?;
        }
    }
    Ok(())
}

fn check_bar(at: &str, bar: &Bar) -> Result<(), Wrong> {
    text(&format!("{at}.name"), &bar.name)?;
    text(&format!("{at}.of"), &bar.of)?;
    items(&format!("{at}.rows"), bar.rows.len(), ITEMS_MAX)?;
    items(&format!("{at}.parts"), bar.parts.len(), ITEMS_MAX)?;
    for (i, part) in bar.parts.iter().enumerate() {
        text(&format!("{at}.parts[{i}].name"), &part.name)?;
        share(&format!("{at}.parts[{i}].share"), part.share)?;
    }
    Ok(())
}

/// No longer than people read, and nothing that a terminal would act on.
fn text(field: &str, value: &str) -> Result<(), Wrong> {
    let why = if value.len() > TEXT_MAX {
        format!("{} bytes, at most {TEXT_MAX}", value.len())
    } else if value.chars().any(char::is_control) {
        String::from("it has a control character")
    } else {
        return Ok(());
    };
    Err((field.to_owned(), why))
}

/// Nothing that is measured is negative, infinite or endless.
fn figure(field: &str, value: f64) -> Result<(), Wrong> {
    if value == 0.0 || (1.0 / FIGURE_MAX..=FIGURE_MAX).contains(&value) {
        Ok(())
    } else {
        let why = format!("{value} is no figure: 0, or from 1e-18 to 1e18");
        Err((field.to_owned(), why))
    }
}

fn share(field: &str, value: f64) -> Result<(), Wrong> {
    if (0.0..=1.0).contains(&value) {
        Ok(())
    } else {
        Err((
            field.to_owned(),
            format!("{value} is no share: it must be from 0 to 1"),
        ))
    }
}

fn items(field: &str, there: usize, most: usize) -> Result<(), Wrong> {
    if there <= most {
        Ok(())
    } else {
        Err((field.to_owned(), format!("{there} of them, at most {most}")))
    }
}

#[cfg(test)]
mod tests;
