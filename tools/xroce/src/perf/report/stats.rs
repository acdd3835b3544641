//! `--stats`: every counter there is, from the tables next to the counters.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use xroce_api::{EngineStats, PORT_TABLE, PortStats};
use xroce_proto::counters::{CounterInfo, Counters};
use xroce_proto::rtt::Histogram;

type Values = BTreeMap<String, u64>;

/// What one side counted, by name of the counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// All queue pairs together.
    pub qp: Values,
    /// The engine.
    pub engine: Values,
    /// The port.
    pub port: Values,
    /// Round-trip times of all queue pairs: samples, and quantiles in ns. Nothing if the device does
    /// not hand them out.
    pub rtt: Values,
}

/// How much each counter has grown.
fn growth<T>(table: &[CounterInfo<T>], before: &T, now: &T) -> Values {
    let value = |info: &CounterInfo<T>| {
        let grown = (info.get)(now).saturating_sub((info.get)(before));
        (info.name.to_owned(), grown)
    };
    table.iter().map(value).collect()
}

impl Stats {
    /// Of queue pairs, and of engine and port between two times.
    pub(crate) fn new(
        qps: &Counters,
        before: &(EngineStats, PortStats),
        now: &(EngineStats, PortStats),
        rtt: Option<&Histogram>,
    ) -> Self {
        Self {
            qp: growth(Counters::TABLE, &Counters::default(), qps),
            engine: growth(EngineStats::TABLE, &before.0, &now.0),
            port: growth(PORT_TABLE, &before.1, &now.1),
            rtt: rtt.map(quantiles).unwrap_or_default(),
        }
    }

    /// The table for people: what is not zero, with the name it has elsewhere.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_header(["", "counter", "value", "mlx5", "rxe"]);
        add(&mut table, "qp", Counters::TABLE, &self.qp);
        add(&mut table, "engine", EngineStats::TABLE, &self.engine);
        add(&mut table, "port", PORT_TABLE, &self.port);
        for name in ["samples", "p50_ns", "p99_ns", "p999_ns", "max_ns"] {
            let Some(value) = self.rtt.get(name) else {
                continue;
            };
            table.add_row(["rtt", name, &value.to_string(), "", ""]);
        }
        if let Some(column) = table.column_mut(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}

fn quantiles(rtt: &Histogram) -> Values {
    let quantile = |name: &str, per_mille| {
        let time = rtt.quantile(per_mille);
        (name.to_owned(), time.map_or(0, |t| t.as_nanos()))
    };
    let all = [
        ("samples".to_owned(), rtt.count()),
        quantile("p50_ns", 500),
        quantile("p99_ns", 990),
        quantile("p999_ns", 999),
        ("max_ns".to_owned(), rtt.max().as_nanos()),
    ];
    all.into()
}

fn add<T>(table: &mut Table, of: &str, infos: &[CounterInfo<T>], values: &Values) {
    for info in infos {
        let value = values.get(info.name).copied().unwrap_or(0);
        if value != 0 {
            let (mlx5, rxe) = (info.mlx5.unwrap_or(""), info.rxe.unwrap_or(""));
            table.add_row([of, info.name, &value.to_string(), mlx5, rxe]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_in_json_and_those_not_zero_in_the_table() {
        let qps = Counters {
            seq_naks_in: 7,
            ..Counters::default()
        };
        let before = (EngineStats::default(), PortStats::default());
        let mut now = before;
        now.0.rx_frames = 3;
        let stats = Stats::new(&qps, &before, &now, Some(&Histogram::default()));
        assert_eq!(stats.qp.len(), Counters::TABLE.len());
        assert_eq!(stats.engine.len(), EngineStats::TABLE.len());
        assert_eq!(stats.qp["seq_naks_in"], 7);
        assert_eq!(stats.engine["rx_frames"], 3);
        assert_eq!(stats.rtt["samples"], 0);
        let table = stats.table();
        assert!(table.contains("packet_seq_err") && table.contains("rcvd_seq_err"));
        assert!(!table.contains("rnr_naks_in"), "{table}");
        assert!(table.contains("p50_ns"), "{table}");
        // What was counted before, for others perhaps, is no part of it; a device that does not hand
        // out round-trip times has none.
        let stats = Stats::new(&qps, &now, &now, None);
        assert_eq!(stats.engine["rx_frames"], 0);
        assert!(stats.rtt.is_empty() && !stats.table().contains("p50_ns"));
    }
}
