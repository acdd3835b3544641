//! Units of the figures, and how they are shown.

use serde::{Deserialize, Serialize};

/// What a figure counts. Samples are in the base unit named here, people see a handier one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// 1/s.
    PacketsPerSecond,
    /// 1/s.
    MessagesPerSecond,
    /// 1/s, where there are thousands and not millions: between emulated machines.
    SlowMessagesPerSecond,
    /// bit/s.
    BitsPerSecond,
    /// byte/s.
    BytesPerSecond,
    /// ns.
    Nanoseconds,
    /// Instructions a message.
    Instructions,
    /// Allocations a message.
    Allocations,
    /// Bytes.
    Bytes,
}

impl Unit {
    /// For a heading.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PacketsPerSecond => "k packets/s",
            Self::MessagesPerSecond => "M messages/s",
            Self::SlowMessagesPerSecond => "k messages/s",
            Self::BitsPerSecond => "Gb/s",
            Self::BytesPerSecond => "GB/s",
            Self::Nanoseconds => "µs",
            Self::Instructions => "instructions/message",
            Self::Allocations => "allocations/message",
            Self::Bytes => "bytes",
        }
    }

    /// A figure in base units, as a number for people in [`Unit::name`].
    #[must_use]
    pub fn show(self, v: f64) -> String {
        match self {
            Self::PacketsPerSecond => format!("{:.0}", v / 1e3),
            Self::MessagesPerSecond => format!("{:.2}", v / 1e6),
            Self::SlowMessagesPerSecond => format!("{:.2}", v / 1e3),
            Self::BitsPerSecond => format!("{:.1}", v / 1e9),
            Self::BytesPerSecond if v < 1e9 => format!("{:.3}", v / 1e9),
            Self::BytesPerSecond => format!("{:.2}", v / 1e9),
            Self::Nanoseconds if v < 1e3 => format!("{:.3}", v / 1e3),
            Self::Nanoseconds => format!("{:.2}", v / 1e3),
            Self::Instructions | Self::Bytes => format!("{v:.0}"),
            Self::Allocations => format!("{v}"),
        }
    }

    /// Whether less is better.
    #[must_use]
    pub fn less_is_better(self) -> bool {
        match self {
            Self::PacketsPerSecond
            | Self::MessagesPerSecond
            | Self::SlowMessagesPerSecond
            | Self::BitsPerSecond
            | Self::BytesPerSecond => false,
            Self::Nanoseconds | Self::Instructions | Self::Allocations | Self::Bytes => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        for (unit, value, text) in [
            (Unit::PacketsPerSecond, 501_400.0, "501"),
            (Unit::MessagesPerSecond, 5.049e6, "5.05"),
            (Unit::SlowMessagesPerSecond, 4981.0, "4.98"),
            (Unit::BitsPerSecond, 21.44e9, "21.4"),
            (Unit::BytesPerSecond, 58e6, "0.058"),
            (Unit::Nanoseconds, 7641.0, "7.64"),
            (Unit::Nanoseconds, 241.0, "0.241"),
            (Unit::Instructions, 2068.4, "2068"),
            (Unit::Allocations, 0.0, "0"),
            (Unit::Bytes, 2303.7, "2304"),
        ] {
            assert_eq!(unit.show(value), text, "{unit:?}");
        }
    }
}
