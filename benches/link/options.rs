//! The command line: what comes after `--` of `cargo bench`.

use xroce_proto::time::Duration;

pub(crate) const USAGE: &str = "\
usage: cargo bench --bench link -- [options]
  --rounds N      measurements of each row (5)
  --seconds S     length of one measurement (1)
  --only D1,D4    these rows only
  --alone         not what they are measured against, for a profiler";

/// What to measure, and how long.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    /// Upper case; empty: everything.
    only: Vec<String>,
    /// Without ceilings and peers.
    pub(crate) alone: bool,
    /// Nothing but so many messages in memory, for counting instructions.
    pub(crate) messages: Option<usize>,
}

impl Options {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            rounds: 5,
            seconds: 1.0,
            only: Vec::new(),
            alone: false,
            messages: None,
        };
        let mut args = args.skip(1);
        while let Some(arg) = args.next() {
            // What cargo adds.
            if arg == "--bench" {
                continue;
            }
            if arg == "--alone" {
                options.alone = true;
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{arg} needs a value"));
            let number = |v: String| v.parse().map_err(|_| format!("{arg} {v}: not a number"));
            match arg.as_str() {
                "--rounds" => options.rounds = number(value?)?,
                "--messages" => options.messages = Some(number(value?)?),
                "--seconds" => {
                    let v = value?;
                    let seconds: f64 = v.parse().map_err(|_| format!("{arg} {v}: no time"))?;
                    if !(0.01..=3600.0).contains(&seconds) {
                        return Err(format!("{arg} must be from 0.01 to 3600"));
                    }
                    options.seconds = seconds;
                }
                "--only" => options.only = value?.split(',').map(str::to_uppercase).collect(),
                _ => return Err(format!("unknown option {arg}")),
            }
        }
        if options.rounds == 0 {
            return Err(String::from("--rounds must be at least 1"));
        }
        Ok(options)
    }

    /// Whether one of these rows is asked for.
    pub(crate) fn wants(&self, ids: &[&str]) -> bool {
        self.only.is_empty() || ids.iter().any(|id| self.only.iter().any(|o| o == id))
    }

    pub(crate) fn time(&self) -> Duration {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "parse() has checked the range"
        )]
        Duration::from_nanos((self.seconds * 1e9) as u64)
    }
}
