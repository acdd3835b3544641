//! A run of `make bench`: what was measured against what, on which machine, with every sample.
//!
//! [`Run`] is what stands in the JSON file. From it follow all that people read, so that a run of
//! last month can be shown as one of today ([`Run::markdown`], [`Run::html`]), what it means in
//! words ([`verdict`]), and what changed between two ([`compare`]). Nothing here measures.
#![forbid(unsafe_code)]

mod chart;
mod compare;
mod document;
mod error;
mod html;
mod markdown;
mod read;
mod row;
mod run;
mod spread;
#[cfg(test)]
mod testing;
mod unit;
mod verdict;

pub use compare::{Change, Comparison, Difference, compare};
pub use document::{MARKS, replace_between, update};
pub use error::ReportError;
pub use html::escape;
pub use row::{Goal, Met, Row, Sample};
pub use run::{Axis, Bar, Curve, Fact, Machine, Part, Plot, Run, SCHEMA, Scale, Ticks};
pub use spread::Spread;
pub use unit::Unit;
pub use verdict::{Verdict, verdict};
