//! `[congestion]` and `recovery`: from names to what a queue pair takes.
//!
//! To add an algorithm: a name in [`ALGORITHMS`] and an arm in [`control`], with a line per
//! parameter.

use xroce_proto::cc::{CongestionControl, Fixed, Rate};

use super::error::{Problem, unknown, within};
use crate::flow::Recovery;
use crate::units::BitRate;

/// Names that `congestion.algorithm` may have.
pub const ALGORITHMS: [&str; 2] = ["none", "fixed"];

/// Names that `transport.recovery` may have.
pub const RECOVERIES: [&str; 1] = ["go-back-n"];

/// The congestion control that `[congestion]` asks for. `line`: rate of the host's link.
///
/// # Errors
/// A name or value that is not known.
pub(crate) fn control(table: &toml::Table, _line: BitRate) -> Result<CongestionControl, Problem> {
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
    taken: Vec<&'static str>,
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
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(recovery("go-back").unwrap_err().what.contains("go-back-n"));
    }
}
