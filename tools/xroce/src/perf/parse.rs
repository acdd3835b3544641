//! Values of the command line of `xroce perf` that clap does not know.

use crate::perf::plan;

/// Message sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Sizes {
    /// Powers of two from 2 up.
    All,
    /// These.
    List(Vec<u32>),
}

impl Sizes {
    /// The sizes in bytes; "all" means this many powers of two.
    pub(crate) fn list(&self, all: u32) -> Vec<u32> {
        match self {
            Self::All => (1..=all).map(|n| 1 << n).collect(),
            Self::List(list) => list.clone(),
        }
    }
}

/// Turns a list into [`Sizes`]; a type of its own since clap takes a plain `Vec` for an option
/// that may be repeated.
#[derive(Clone, Debug)]
pub(crate) struct SizesParser;

fn parse_sizes(text: &str) -> Result<Sizes, String> {
    if text.trim() == "all" {
        return Ok(Sizes::All);
    }
    let list: Result<_, _> = text.split(',').map(plan::parse_size).collect();
    Ok(Sizes::List(list?))
}

/// Parses a path MTU.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn parse_mtu(text: &str) -> Result<u32, String> {
    let mtu = text.parse::<u32>().ok();
    mtu.filter(|m| matches!(m, 256 | 512 | 1024 | 2048 | 4096))
        .ok_or_else(|| "a path MTU is one of 256, 512, 1024, 2048, 4096".to_owned())
}

/// Seconds, with a fraction, to milliseconds.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn parse_seconds(text: &str) -> Result<u64, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    #[allow(clippy::cast_precision_loss, reason = "3.6 million is exact in f64")]
    let max = plan::MAX_MILLIS as f64 / 1e3;
    if !(0.001..=max).contains(&seconds) {
        return Err(format!("between 0.001 and {max} seconds"));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to lie in 0.001 ..= 3600"
    )]
    Ok((seconds * 1e3).round() as u64)
}

/// A duration to milliseconds: seconds, with a fraction, or milliseconds with "ms"; zero is none.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn parse_warmup(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let millis = match text.strip_suffix("ms") {
        Some(ms) => ms.trim_end().parse().ok(),
        None => {
            let seconds: Option<f64> = text.trim_end_matches('s').trim_end().parse().ok();
            if seconds == Some(0.0) {
                return Ok(0);
            }
            seconds.and_then(|s| parse_seconds(&s.to_string()).ok())
        }
    };
    let max = plan::MAX_WARMUP;
    millis
        .filter(|ms| *ms <= max)
        .ok_or_else(|| format!("a time like 0.5 or 200ms, at most {} s", max / 1000))
}

/// Numbers of queues or cores; a type of its own as [`SizesParser`] is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Numbers(pub Vec<u32>);

/// Turns "0-3" or "0,2" into [`Numbers`].
#[derive(Clone, Debug)]
pub(crate) struct NumbersParser;

/// Most numbers in a list.
const MAX_NUMBERS: u32 = crate::perf::peer::message::MAX_PORTS;

fn parse_numbers(text: &str) -> Result<Numbers, String> {
    let number = |t: &str| t.trim().parse::<u32>().ok();
    let mut all = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (Some(from), Some(to)) = (number(from), number(to)) else {
            return Err("a list like 0-3 or 0,2".to_owned());
        };
        if from > to {
            return Err(format!("{part} goes backwards"));
        }
        if to - from >= MAX_NUMBERS || all.len() >= MAX_NUMBERS as usize {
            return Err(format!("more than {MAX_NUMBERS} numbers"));
        }
        all.extend(from..=to);
    }
    Ok(Numbers(all))
}

/// Messages a second; a type of its own as [`SizesParser`] is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rates(pub Vec<u64>);

/// Turns "50k,1.5M" into [`Rates`].
#[derive(Clone, Debug)]
pub(crate) struct RatesParser;

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "checked to lie in 1 ..= 100 million"
)]
fn parse_rate(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (text.get(..at), 1e3),
        Some((at, 'm' | 'M')) => (text.get(..at), 1e6),
        _ => (Some(text), 1.0),
    };
    let rate: Option<f64> = digits.and_then(|d| d.trim_end().parse().ok());
    rate.map(|r| (r * unit).round())
        .filter(|r| (1.0..=plan::MAX_RATE as f64).contains(r))
        .map(|r| r as u64)
        .ok_or_else(|| {
            let max = plan::MAX_RATE / 1_000_000;
            format!("messages a second like 5000, 50k or 1.5M, between 1 and {max}M")
        })
}

fn parse_rates(text: &str) -> Result<Rates, String> {
    let all: Result<_, _> = text.split(',').map(parse_rate).collect();
    Ok(Rates(all?))
}

/// The same for each list: its parser is the function.
macro_rules! list_parser {
    ($parser:ty, $value:ty, $function:path) => {
        impl clap::builder::TypedValueParser for $parser {
            type Value = $value;

            fn parse_ref(
                &self,
                cmd: &clap::Command,
                arg: Option<&clap::Arg>,
                value: &std::ffi::OsStr,
            ) -> Result<$value, clap::Error> {
                clap::builder::TypedValueParser::parse_ref(&$function, cmd, arg, value)
            }
        }
    };
}

list_parser!(SizesParser, Sizes, parse_sizes);
list_parser!(NumbersParser, Numbers, parse_numbers);
list_parser!(RatesParser, Rates, parse_rates);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        assert_eq!(parse_sizes("2,1k"), Ok(Sizes::List(vec![2, 1024])));
        let all = parse_sizes("all").unwrap().list(20);
        assert_eq!((all.len(), all[0], all[19]), (20, 2, 1 << 20));
        assert!(parse_sizes("2,,4").is_err());
    }

    #[test]
    fn rates_parse() {
        let parsed = parse_rates("7, 50k,1.5M").map(|r| r.0);
        assert_eq!(parsed, Ok(vec![7, 50_000, 1_500_000]));
        for bad in [
            "", "0", "k", "-1", "nan", "inf", "101M", "1e30", "1,,2", "5é",
        ] {
            assert!(parse_rates(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_parse() {
        let parsed = |t| parse_numbers(t).map(|n| n.0);
        assert_eq!(parsed("0-3"), Ok(vec![0, 1, 2, 3]));
        assert_eq!(parsed("5,0-1"), Ok(vec![5, 0, 1]));
        for bad in ["", "3-0", "0-", "a", "0-4294967295", "0-64", "1,,2"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn warm_ups_parse() {
        for (text, ms) in [
            ("0.2", 200),
            ("200ms", 200),
            ("0", 0),
            ("0ms", 0),
            ("1s", 1_000),
        ] {
            assert_eq!(parse_warmup(text), Ok(ms), "{text}");
        }
        for bad in ["", "ms", "-1", "61", "60001ms", "nan", "inf"] {
            assert!(parse_warmup(bad).is_err(), "{bad}");
        }
    }
}
