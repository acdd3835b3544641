//! How fast this side may send: congestion control and rate limit of the command line.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::qp::QpAttr;

/// The options.
#[derive(Args, Clone, Debug)]
pub(crate) struct CongestionArgs {
    /// Congestion control: fixed, dcqcn, dcqcn-strawman, dcqcn-mlx5, swift or nscc
    #[arg(long, default_value = "fixed", value_name = "NAME")]
    pub cc: String,
    /// A parameter of it, by mlx5's name; may be given again
    #[arg(long, value_name = "NAME=VALUE", value_parser = parameter)]
    pub cc_param: Vec<(String, u64)>,
    /// Rate of the link in bits per second, such as 25G: where dcqcn and nscc start
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub line_rate: Option<Rate>,
    /// Send no faster than this, bits per second on the wire, such as 500M
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate_limit: Option<Rate>,
}

/// What the options come to.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    control: CongestionControl,
    rate_limit: Option<Rate>,
}

impl CongestionArgs {
    /// # Errors
    /// An unknown name, a value out of range, or no `--line-rate` where one is needed.
    pub(crate) fn resolve(&self) -> Result<Congestion> {
        let params: Vec<(&str, u64)> = self
            .cc_param
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        let line = self.line_rate.unwrap_or(Rate::UNLIMITED);
        let control = CongestionControl::by_name(&self.cc, line, &params)
            .context("--cc, --cc-param, --line-rate")?;
        Ok(Congestion {
            control,
            rate_limit: self.rate_limit,
        })
    }
}

impl Congestion {
    /// Adds it to the attributes of a change to RTS.
    pub(crate) fn apply(&self, rts: QpAttr) -> QpAttr {
        QpAttr {
            congestion: Some(self.control.clone()),
            rate_limit: self.rate_limit,
            ..rts
        }
    }
}

/// `NAME=VALUE`.
fn parameter(text: &str) -> Result<(String, u64)> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| anyhow!("\"{text}\" is not NAME=VALUE"))?;
    let value = value
        .parse()
        .with_context(|| format!("\"{value}\" is not a whole number"))?;
    Ok((name.to_owned(), value))
}

/// Bits per second with K, M or G behind a number.
fn rate(text: &str) -> Result<Rate> {
    let (number, unit) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1e3),
        Some('m' | 'M') => (&text[..text.len() - 1], 1e6),
        Some('g' | 'G') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    let bits: f64 = number
        .parse::<f64>()
        .with_context(|| format!("\"{text}\" is not a rate such as 500M or 25G"))?
        * unit;
    if !(1000.0..=1e12).contains(&bits) {
        bail!("{text} is {bits} bits per second, it must be 1K to 1000G");
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "1e3 to 1e12"
    )]
    Ok(Rate::bits_per_second(bits as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units_and_limits() {
        let bits = |text| rate(text).unwrap().as_bits_per_second();
        assert_eq!(bits("25G"), 25_000_000_000);
        assert_eq!(bits("2.5g"), 2_500_000_000);
        assert_eq!(bits("500M"), 500_000_000);
        assert_eq!(bits("64000"), 64_000);
        for bad in ["", "G", "-1G", "0", "1e30", "nan", "2T", "µ"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    fn args(cc: &str, params: &[&str], line: Option<&str>) -> CongestionArgs {
        CongestionArgs {
            cc: cc.to_owned(),
            cc_param: params.iter().map(|p| parameter(p).unwrap()).collect(),
            line_rate: line.map(|l| rate(l).unwrap()),
            rate_limit: None,
        }
    }

    #[test]
    fn mistakes_are_named() {
        args("dcqcn", &["rpg_ai_rate=100"], Some("25G"))
            .resolve()
            .unwrap();
        let say = |args: CongestionArgs| format!("{:#}", args.resolve().unwrap_err());
        assert!(say(args("dcqcn", &[], None)).contains("rate of the link"));
        assert!(say(args("bbr", &[], None)).contains("dcqcn-mlx5"));
        assert!(say(args("swift", &["betta=1"], None)).contains("max_mdf"));
        assert!(say(args("dcqcn", &["rpg_gd=1"], Some("1G"))).contains("10 to 15"));
        assert!(parameter("x").is_err() && parameter("x=y").is_err());
    }
}
