//! `[congestion]` and `recovery`: from names to what a queue pair takes.
//!
//! Algorithms and their parameters have the names of `CongestionControl::by_name`.

use xroce_proto::cc::{CongestionControl, Fixed, Rate};

use super::error::{Problem, unknown, within};
use crate::flow::Recovery;
use crate::units::BitRate;

/// Names that `congestion.algorithm` may have.
pub const ALGORITHMS: [&str; 7] = [
    "none",
    "fixed",
    "dcqcn",
    "dcqcn-strawman",
    "dcqcn-mlx5",
    "swift",
    "nscc",
];

/// Names that `transport.recovery` may have.
pub const RECOVERIES: [&str; 2] = ["go-back-n", "selective"];

/// The congestion control that `[congestion]` asks for. `line`: rate of the host's link.
///
/// # Errors
/// A name or value that is not known.
pub(crate) fn control(table: &toml::Table, line: BitRate) -> Result<CongestionControl, Problem> {
    let mut keys = Keys::new("congestion", table);
    let algorithm = keys.text("algorithm")?.unwrap_or("none");
    let window = xroce_proto::params::WINDOW_PSNS_DEFAULT;
    let control = match algorithm {
        "none" => {
            let window = keys.integer("window", (1, 1 << 22))?.unwrap_or(window);
            CongestionControl::Fixed(Fixed::new(Rate::UNLIMITED, window))
        }
        "fixed" => {
            let rate = keys.rate("rate")?.map_or(Rate::UNLIMITED, to_rate);
            let window = keys.integer("window", (1, 1 << 22))?.unwrap_or(window);
            CongestionControl::Fixed(Fixed::new(rate, window))
        }
        given if ALGORITHMS.contains(&given) => {
            let params = keys.rest()?;
            CongestionControl::by_name(given, to_rate(line), &params)
                .map_err(|e| Problem::at("congestion", e.to_string()))?
        }
        given => {
            let what = unknown("algorithm", given, &ALGORITHMS);
            return Err(Problem::at("congestion.algorithm", what));
        }
    };
    keys.finish()?;
    Ok(control)
}

/// The repair of losses that `transport.recovery` names.
pub(crate) fn recovery(name: &str) -> Result<Recovery, Problem> {
    match name {
        "go-back-n" => Ok(Recovery::GoBackN),
        "selective" => Ok(Recovery::Selective),
        given => {
            let what = unknown("recovery", given, &RECOVERIES);
            Err(Problem::at("transport.recovery", what))
        }
    }
}

pub(crate) fn to_rate(rate: BitRate) -> Rate {
    Rate::bits_per_second(rate.bps())
}

/// A table whose keys are taken one by one; what is left over is not known.
pub(crate) struct Keys<'a> {
    name: &'static str,
    table: &'a toml::Table,
    taken: Vec<&'a str>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(name: &'static str, table: &'a toml::Table) -> Self {
        Self {
            name,
            table,
            taken: Vec::new(),
        }
    }

    fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    fn take(&mut self, key: &'static str) -> Option<&'a toml::Value> {
        self.taken.push(key);
        self.table.get(key)
    }

    fn wrong(&self, key: &str, value: &toml::Value, expected: &str) -> Problem {
        let what = format!("{value} is not {expected}");
        Problem::at(&self.path(key), what)
    }

    /// A string.
    pub(crate) fn text(&mut self, key: &'static str) -> Result<Option<&'a str>, Problem> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let text = value.as_str();
        text.map(Some)
            .ok_or_else(|| self.wrong(key, value, "a name in quotes"))
    }

    /// A whole number within limits.
    pub(crate) fn integer(
        &mut self,
        key: &'static str,
        limits: (u32, u32),
    ) -> Result<Option<u32>, Problem> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let number = value.as_integer();
        let number = number.ok_or_else(|| self.wrong(key, value, "a whole number"))?;
        let limits = (i64::from(limits.0), i64::from(limits.1));
        let number = within(&self.path(key), number, limits)?;
        Ok(u32::try_from(number).ok())
    }

    /// A rate such as "40G".
    pub(crate) fn rate(&mut self, key: &'static str) -> Result<Option<BitRate>, Problem> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let rate = value.clone().try_into::<BitRate>();
        rate.map(Some).map_err(|e| {
            let what = e.message().replace('\n', " ");
            Problem::at(&self.path(key), what)
        })
    }

    /// All numbers that nobody took.
    fn rest(&mut self) -> Result<Vec<(&'a str, u64)>, Problem> {
        let mut rest = Vec::new();
        for (key, value) in self.table {
            if self.taken.contains(&key.as_str()) {
                continue;
            }
            let number = value.as_integer().and_then(|n| u64::try_from(n).ok());
            let number =
                number.ok_or_else(|| self.wrong(key, value, "a whole number from 0 on"))?;
            rest.push((key.as_str(), number));
        }
        self.taken.extend(rest.iter().map(|(key, _)| *key));
        Ok(rest)
    }

    /// # Errors
    /// A key that nobody took.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        let left = self
            .table
            .keys()
            .find(|k| !self.taken.contains(&k.as_str()));
        match left {
            None => Ok(()),
            Some(key) => Err(Problem::at(
                &self.path(key),
                unknown("key", key, &self.taken),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<CongestionControl, String> {
        let table = text.parse::<toml::Table>().unwrap();
        control(&table, BitRate::from_gbps(40)).map_err(|p| p.to_string())
    }

    #[test]
    fn names_and_parameters() {
        use xroce_proto::cc::CongestionController as _;
        let fixed = of("algorithm = 'fixed'\nrate = '2.5G'\nwindow = 7").unwrap();
        assert_eq!(
            (fixed.rate(), fixed.window_psns()),
            (Rate::bits_per_second(2_500_000_000), 7)
        );
        assert_eq!(of("").unwrap().rate(), Rate::UNLIMITED);
        let slow = of("algorithm = 'dcqcn-mlx5'\nrpg_max_rate = 10000").unwrap();
        assert_eq!(slow.rate(), Rate::bits_per_second(10_000_000_000));
    }

    #[test]
    fn mistakes_are_named_with_what_would_be_right() {
        for (text, says) in [
            ("algorithm = 'fixd'", "did you mean \"fixed\""),
            (
                "algorithm = 'none'\nrate = '1G'",
                "congestion.rate: unknown key",
            ),
            ("algorithm = 'fixed'\nrate = '1Q'", "\"40G\""),
            ("algorithm = 'fixed'\nwindow = 0", "1 to 4194304"),
            ("algorithm = 7", "a name in quotes"),
            ("algorithm = 'dcqcn'\nrpg_gd = 9", "10 to 15"),
            ("algorithm = 'dcqcn'\nrpg_gdd = 11", "rpg_gd,"),
            ("algorithm = 'swift'\nbeta = 'x'", "a whole number"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(recovery("go-back").unwrap_err().what.contains("go-back-n"));
    }
}
