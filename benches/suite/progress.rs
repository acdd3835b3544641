//! How far the run is: a bar on a terminal, a line for each round elsewhere.

use std::io::IsTerminal as _;
use std::time::Duration as StdDuration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps of the bar for each second of the estimate.
const FINE: f64 = 10.0;

pub(crate) struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    done: f64,
}

impl Progress {
    /// Of a run that takes about so many seconds.
    pub(crate) fn new(seconds: f64) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds of a run"
        )]
        let bar = ProgressBar::with_draw_target(
            Some((seconds * FINE).max(1.0) as u64),
            if is_terminal {
                ProgressDrawTarget::stderr()
            } else {
                ProgressDrawTarget::hidden()
            },
        );
        let style =
            ProgressStyle::with_template("{bar:30} {elapsed} of about {prefix}  {wide_msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(about(seconds));
        // So that a long measurement does not look like a hang; once a second costs nothing that
        // counts.
        if is_terminal {
            bar.enable_steady_tick(StdDuration::from_secs(1));
        }
        Self {
            bar,
            is_terminal,
            done: 0.0,
        }
    }

    /// What goes on now.
    pub(crate) fn says(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// A new part of the run.
    pub(crate) fn part(&self, what: &str) {
        self.says(what);
        if !self.is_terminal {
            eprintln!("{what}");
        }
    }

    /// So many seconds of the estimate are over.
    pub(crate) fn over(&mut self, seconds: f64) {
        self.done += seconds;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds of a run"
        )]
        self.bar.set_position((self.done * FINE) as u64);
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// "40 s", "7 min".
pub(crate) fn about(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{:.0} s", seconds.max(1.0))
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}
