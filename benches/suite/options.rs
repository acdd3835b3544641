//! The command line: what comes after `--` of `cargo bench`.

use std::path::PathBuf;

use xroce_proto::time::Duration;

use super::profile::Work;

pub(crate) const USAGE: &str = "\
usage: cargo bench --bench suite -- [options]
  --rounds N      measurements of each row (5)
  --seconds S     length of one measurement (1)
  --quick         2 rounds of 0.2 s, for trying
  --only D1,D4    these rows only; SIZES are the curves by size
  --alone         not what they are measured against, for a profiler
  --document F    replaces the table between the marks of this file, if the run is a whole one;
                  may be repeated";

/// What to measure, and how long.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
    /// Upper case; empty: everything.
    only: Vec<String>,
    /// Without ceilings and peers.
    pub(crate) alone: bool,
    /// Fewer and shorter measurements than a judgement needs.
    quick: bool,
    /// Documents with the table.
    pub(crate) documents: Vec<PathBuf>,
    /// Nothing but so much work in memory, for counting instructions.
    pub(crate) work: Option<(Work, usize)>,
}

impl Options {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            rounds: 5,
            seconds: 1.0,
            only: Vec::new(),
            alone: false,
            quick: false,
            documents: Vec::new(),
            work: None,
        };
        let mut args = args.skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                // What cargo adds.
                "--bench" => {}
                "--alone" => options.alone = true,
                "--quick" => {
                    options.quick = true;
                    (options.rounds, options.seconds) = (2, 0.2);
                }
                _ => {
                    let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
                    options.set(&arg, &value)?;
                }
            }
        }
        Ok(options)
    }

    fn set(&mut self, arg: &str, value: &str) -> Result<(), String> {
        match arg {
            "--rounds" => {
                let rounds = value.parse().ok().filter(|n| (1..=1000).contains(n));
                self.rounds = rounds.ok_or("--rounds must be from 1 to 1000")?;
            }
            "--seconds" => {
                let seconds = value.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
                self.seconds = seconds.ok_or("--seconds must be from 0.01 to 3600")?;
            }
            "--only" => {
                self.only = value.split(',').map(str::to_uppercase).collect();
                let known = |id: &&String| super::plan::is_known(id);
                if let Some(id) = self.only.iter().find(|id| !known(id)) {
                    return Err(format!("--only {id}: there is no such row"));
                }
            }
            "--document" => self.documents.push(value.into()),
            "--work" => self.work = Some(Work::parse(value).ok_or("--work KIND:COUNT")?),
            _ => return Err(format!("unknown option {arg}")),
        }
        Ok(())
    }

    /// Whether a row with this id, or one of its family, is asked for.
    pub(crate) fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| o == id)
    }

    /// Whether everything is asked for, at full length.
    pub(crate) fn is_complete(&self) -> bool {
        self.only.is_empty() && !self.alone && !self.quick && self.rounds >= 3
    }

    pub(crate) fn time(&self) -> Duration {
        self.part(1.0)
    }

    /// So much of the time of a measurement.
    pub(crate) fn part(&self, share: f64) -> Duration {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "parse() has checked the range"
        )]
        Duration::from_nanos((self.seconds * share * 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::*;

    fn parse(args: &str) -> Result<Options, String> {
        let args = format!("suite {args}");
        Options::parse(args.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn only_a_whole_run_is_complete() {
        let whole = parse("--bench").unwrap();
        assert!(whole.is_complete() && whole.wants("D8") && whole.wants("SIZES"));
        for part in ["--only d1", "--alone", "--quick", "--rounds 2"] {
            assert!(!parse(part).unwrap().is_complete(), "{part}");
        }
        let some = parse("--only d1,D7+cc --document a --document b").unwrap();
        assert!(some.wants("D1") && some.wants("D7+CC") && !some.wants("D7"));
        assert_eq!(some.documents.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (args, words) in [
            ("--rounds", "--rounds needs a value"),
            ("--rounds 0", "--rounds must be from 1"),
            ("--seconds nan", "--seconds must be from"),
            ("--only D1,D99", "--only D99: there is no such row"),
            ("--fast yes", "unknown option --fast"),
            ("--work much", "--work KIND:COUNT"),
        ] {
            let why = parse(args).unwrap_err();
            assert!(why.contains(words), "{args}: {why}");
        }
    }
}
