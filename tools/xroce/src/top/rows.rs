//! Rows of the two lists: what each column shows, and what it is sorted by.

use std::cmp::Ordering;

use crate::stat::sample::{Span, micros, si};
use crate::stat::shown::{kind, peer};

/// What a column is sorted by.
#[derive(Clone, PartialEq, Debug)]
enum Key {
    Number(f64),
    Text(String),
}

/// A cell.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub text: String,
    key: Key,
}

impl Cell {
    fn rate(value: f64) -> Self {
        Self {
            text: si(value),
            key: Key::Number(value),
        }
    }

    fn number(n: u32) -> Self {
        Self {
            text: n.to_string(),
            key: Key::Number(n.into()),
        }
    }

    fn text(text: String) -> Self {
        let key = Key::Text(text.clone());
        Self { text, key }
    }

    #[allow(clippy::cast_precision_loss, reason = "sorted by it")]
    fn time(ns: Option<u64>) -> Self {
        Self {
            text: micros(ns),
            key: Key::Number(ns.unwrap_or(0) as f64),
        }
    }

    /// Which of two comes first, the smaller one.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        match (&self.key, &other.key) {
            (Key::Number(a), Key::Number(b)) => a.total_cmp(b),
            (Key::Text(a), Key::Text(b)) => a.cmp(b),
            (Key::Number(_), Key::Text(_)) => Ordering::Less,
            (Key::Text(_), Key::Number(_)) => Ordering::Greater,
        }
    }
}

/// Columns of the list of sessions.
pub(super) const SESSION_HEAD: [&str; 16] = [
    "session",
    "program",
    "pid",
    "uid",
    "device",
    "QPs",
    "posted",
    "compl.",
    "tx bits",
    "rx bits",
    "p50 µs",
    "p99 µs",
    "retransm.",
    "CE+CNP",
    "RNR",
    "stalled",
];
/// Of these by what is posted, to begin with.
pub(super) const SESSION_SORT: usize = 6;
/// Columns of the list of queue pairs.
pub(super) const QP_HEAD: [&str; 15] = [
    "session",
    "QP",
    "state",
    "peer",
    "tx packets",
    "rx packets",
    "tx bits",
    "rx bits",
    "messages",
    "p50 µs",
    "p99 µs",
    "retransm.",
    "CE+CNP",
    "RNR",
    "in flight",
];
/// Of these by packets sent, to begin with.
pub(super) const QP_SORT: usize = 4;

/// A row for each session.
pub(super) fn sessions(span: &Span<'_>) -> Vec<Vec<Cell>> {
    let row = |(s, r): (
        &xroce_api::message::SessionReport,
        crate::stat::sample::SessionRates,
    )| {
        let [qps, ..] = s.objects;
        let device = s.device.clone().unwrap_or_else(|| "–".to_owned());
        vec![
            Cell::number(s.session),
            Cell::text(s.program.clone()),
            Cell::number(s.pid),
            Cell::number(s.uid),
            Cell::text(device),
            Cell::number(qps),
            Cell::rate(r.posted),
            Cell::rate(r.completed),
            Cell::rate(r.qps.tx_bits),
            Cell::rate(r.qps.rx_bits),
            Cell::time(r.rtt.map(|[p50, _]| p50)),
            Cell::time(r.rtt.map(|[_, p99]| p99)),
            Cell::rate(r.qps.retransmits),
            Cell::rate(r.qps.ce_marked + r.qps.cnps),
            Cell::rate(r.qps.rnrs),
            Cell::number(s.stalled),
        ]
    };
    span.sessions().into_iter().map(row).collect()
}

/// A row for each queue pair.
pub(super) fn qps(span: &Span<'_>) -> Vec<Vec<Cell>> {
    let row = |qp| {
        let r = span.qp(qp);
        vec![
            Cell::number(qp.session),
            Cell::number(qp.qpn.value()),
            Cell::text(kind(qp)),
            Cell::text(peer(qp)),
            Cell::rate(r.tx_packets),
            Cell::rate(r.rx_packets),
            Cell::rate(r.tx_bits),
            Cell::rate(r.rx_bits),
            Cell::rate(r.messages),
            Cell::time(qp.rtt.map(|[p50, ..]| p50)),
            Cell::time(qp.rtt.map(|[_, _, p99, _]| p99)),
            Cell::rate(r.retransmits),
            Cell::rate(r.ce_marked + r.cnps),
            Cell::rate(r.rnrs),
            Cell::number(qp.gauges.in_flight),
        ]
    };
    span.now.qps.iter().map(row).collect()
}
