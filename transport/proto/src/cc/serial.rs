//! Congestion control as it stands in messages between processes: a name, the rate of the link and
//! every parameter. What an algorithm has learned does not travel.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{CongestionControl, CongestionController, Fixed, ParamInfo, Rate};

/// [`CongestionControl`] in a message.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    name: String,
    /// Of the link; of `fixed` the rate itself.
    rate: Rate,
    /// Packets, of `fixed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<u32>,
    #[serde(default)]
    params: Vec<(String, u64)>,
}

fn values<T>(table: &[ParamInfo<T>], of: &T) -> Vec<(String, u64)> {
    let each = |info: &ParamInfo<T>| (info.name.to_owned(), (info.get)(of));
    table.iter().map(each).collect()
}

impl Serialize for CongestionControl {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (rate, window, params) = match self {
            Self::Fixed(cc) => (cc.rate(), Some(cc.window_psns()), Vec::new()),
            Self::Dcqcn(cc) => {
                let params = values(super::DcqcnParams::TABLE, cc.params());
                (cc.line(), None, params)
            }
            Self::Swift(cc) => {
                let params = values(super::SwiftParams::TABLE, cc.params());
                (Rate::UNLIMITED, None, params)
            }
            Self::Nscc(cc) => {
                let params = values(super::NsccParams::TABLE, cc.params());
                (cc.line(), None, params)
            }
        };
        let name = self.name().to_owned();
        let described = Described {
            name,
            rate,
            window,
            params,
        };
        described.serialize(to)
    }
}

impl<'de> Deserialize<'de> for CongestionControl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let described = Described::deserialize(from)?;
        if let (true, Some(window)) = (described.name == "fixed", described.window) {
            return Ok(Self::Fixed(Fixed::new(described.rate, window)));
        }
        let params = described.params.iter();
        let params: Vec<(&str, u64)> = params.map(|(name, n)| (name.as_str(), *n)).collect();
        Self::by_name(&described.name, described.rate, &params).map_err(de::Error::custom)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_bits_per_second().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        u64::deserialize(from).map(Self::bits_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    #[test]
    fn every_algorithm_survives_the_way() {
        let line = Rate::bits_per_second(25_000_000_000);
        for name in [
            "fixed",
            "dcqcn",
            "dcqcn-strawman",
            "dcqcn-mlx5",
            "swift",
            "nscc",
        ] {
            let made = CongestionControl::by_name(name, line, &[]).unwrap();
            let text = serde_json::to_string(&made).unwrap();
            let back: CongestionControl = serde_json::from_str(&text).unwrap();
            assert_eq!(format!("{made:?}"), format!("{back:?}"), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, words) in [
            (r#"{"name":"magic","rate":0}"#, "no congestion control"),
            (
                r#"{"name":"dcqcn","rate":0}"#,
                "starts at the rate of the link",
            ),
            (
                r#"{"name":"dcqcn","rate":1000,"params":[["rpg_threshold",99]]}"#,
                "rpg_threshold is 99",
            ),
            (r#"{"name":"fixed","rate":0,"extra":1}"#, "unknown field"),
        ] {
            let refused = serde_json::from_str::<CongestionControl>(text).unwrap_err();
            assert!(refused.to_string().contains(words), "{refused}");
        }
    }
}
