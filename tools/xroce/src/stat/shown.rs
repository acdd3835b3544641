//! A span of time as tables and as JSON.

use comfy_table::Table;
use serde_json::{Map, Value, json};
use xroce_api::message::{QpReport, SessionReport};
use xroce_proto::counters::Counters;

use super::sample::{QpRates, SessionRates, Span, micros, si, state};
use crate::sim::table::{right, table};

fn heads(span: &Span<'_>, left: &[&str], counted: &[&str], more: &[&str]) -> Table {
    let per = span.per();
    let own = |text: &&str| (*text).to_owned();
    let mut all: Vec<String> = left.iter().map(own).collect();
    all.extend(counted.iter().map(|text| format!("{text}{per}")));
    all.extend(more.iter().map(own));
    table(all)
}

/// Tables for people.
pub(super) fn text(span: &Span<'_>, counters: bool) -> String {
    let report = &span.now.report;
    let mut parts = vec![
        format!(
            "xroced {}: {} sessions, {} closed for cause, {} MB resident",
            report.release,
            report.sessions,
            report.expelled,
            report.rss / 1_000_000
        ),
        devices(span).to_string(),
    ];
    if !span.now.sessions.is_empty() {
        parts.push(sessions(span).to_string());
    }
    if !span.now.qps.is_empty() {
        parts.push(qps(span).to_string());
    }
    if counters {
        parts.push(every_counter(span).to_string());
    }
    parts.join("\n")
}

fn devices(span: &Span<'_>) -> Table {
    let left = ["device", "port", "state"];
    let counted = ["tx packets", "rx packets", "tx bits", "rx bits", "compl."];
    let more = ["busy", "asleep", "core", "rx dropped", "ICRC err."];
    let mut table = heads(span, &left, &counted, &more);
    for device in &span.now.report.devices {
        let r = span.device(device);
        let mut row = vec![
            device.device.clone(),
            device.port.clone(),
            state(device).to_owned(),
        ];
        row.extend(r.cells());
        row.extend([
            device.stats.rx_dropped.to_string(),
            device.engine.icrc_errors.to_string(),
        ]);
        table.add_row(row);
    }
    right(&mut table, left.len());
    table
}

fn sessions(span: &Span<'_>) -> Table {
    let left = ["session", "program", "device"];
    let counted = ["posted", "compl.", "tx bits", "rx bits"];
    let more = [
        "pid",
        "uid",
        "QPs",
        "CQs",
        "MRs",
        "registered",
        "stalled CQs",
    ];
    let mut table = heads(span, &left, &counted, &more);
    for (s, r) in span.sessions() {
        let [qps, cqs, _, mrs, _, _] = s.objects;
        #[allow(clippy::cast_precision_loss, reason = "shown to people")]
        let bytes = s.bytes as f64;
        table.add_row([
            s.session.to_string(),
            s.program.clone(),
            s.device.clone().unwrap_or_else(|| "–".to_owned()),
            si(r.posted),
            si(r.completed),
            si(r.qps.tx_bits),
            si(r.qps.rx_bits),
            s.pid.to_string(),
            s.uid.to_string(),
            qps.to_string(),
            cqs.to_string(),
            mrs.to_string(),
            format!("{}B", si(bytes)),
            s.stalled.to_string(),
        ]);
    }
    right(&mut table, left.len());
    table
}

/// A peer as "192.0.2.1 #17".
pub(crate) fn peer(qp: &QpReport) -> String {
    match (qp.peer, qp.dest_qpn) {
        (Some(gid), Some(qpn)) => format!("{gid} #{}", qpn.value()),
        (Some(gid), None) => gid.to_string(),
        (None, _) => "–".to_owned(),
    }
}

/// "RC RTS".
pub(crate) fn kind(qp: &QpReport) -> String {
    format!("{:?} {:?}", qp.qp_type, qp.state).to_uppercase()
}

fn qps(span: &Span<'_>) -> Table {
    let left = ["session", "QP", "state", "peer"];
    let counted = [
        "tx packets",
        "rx packets",
        "tx bits",
        "rx bits",
        "messages",
        "retransm.",
        "CE",
        "CNP",
        "RNR",
    ];
    let more = ["p50 µs", "p99 µs", "in flight", "window"];
    let mut table = heads(span, &left, &counted, &more);
    for qp in &span.now.qps {
        let r = span.qp(qp);
        let rtt = |n: usize| micros(qp.rtt.and_then(|times| times.get(n).copied()));
        table.add_row([
            qp.session.to_string(),
            qp.qpn.value().to_string(),
            kind(qp),
            peer(qp),
            si(r.tx_packets),
            si(r.rx_packets),
            si(r.tx_bits),
            si(r.rx_bits),
            si(r.messages),
            si(r.retransmits),
            si(r.ce_marked),
            si(r.cnps),
            si(r.rnrs),
            rtt(0),
            rtt(2),
            qp.gauges.in_flight.to_string(),
            qp.gauges.window.to_string(),
        ]);
    }
    right(&mut table, left.len());
    table
}

/// The counters of each queue pair that are not zero, in all and per second.
fn every_counter(span: &Span<'_>) -> Table {
    let mut head = vec!["session", "QP", "counter", "in all"];
    head.extend(span.seconds.map(|_| "/s"));
    let mut table = table(head.iter().map(|h| (*h).to_owned()).collect());
    for qp in &span.now.qps {
        for info in Counters::TABLE {
            let value = (info.get)(&qp.counters);
            if value != 0 {
                let mut row = vec![
                    qp.session.to_string(),
                    qp.qpn.value().to_string(),
                    info.name.to_owned(),
                    value.to_string(),
                ];
                row.extend(span.seconds.map(|_| si(span.counter(qp, info.get))));
                table.add_row(row);
            }
        }
    }
    right(&mut table, 3);
    table
}

/// Everything, under stable names.
pub(super) fn json(span: &Span<'_>) -> Value {
    let report = &span.now.report;
    let devices = report.devices.iter().map(|device| {
        let r = span.device(device);
        let mut all = object(json!(device));
        all.insert(
            "rates".to_owned(),
            json!({
                "tx_packets": r.tx_packets, "rx_packets": r.rx_packets, "tx_bits": r.tx_bits,
                "rx_bits": r.rx_bits, "completions": r.completions, "busy": r.busy,
                "asleep": r.asleep, "core": r.core,
            }),
        );
        all
    });
    let sessions = span.sessions();
    let sessions = sessions.iter().map(|(s, r)| session(s, r));
    let qps = span.now.qps.iter().map(|qp| {
        let rates = Counters::TABLE
            .iter()
            .map(|info| (info.name.to_owned(), json!(span.counter(qp, info.get))));
        let mut all = object(json!(qp));
        all.insert("rates".to_owned(), Value::Object(rates.collect()));
        all
    });
    json!({
        "schema": 1,
        "release": report.release,
        "interval_s": span.seconds,
        "expelled": report.expelled,
        "rss_bytes": report.rss,
        "devices": devices.collect::<Vec<_>>(),
        "sessions": sessions.collect::<Vec<_>>(),
        "qps": qps.collect::<Vec<_>>(),
    })
}

fn session(s: &SessionReport, r: &SessionRates) -> Map<String, Value> {
    let QpRates {
        tx_packets,
        rx_packets,
        tx_bits,
        rx_bits,
        messages,
        retransmits,
        ce_marked,
        cnps,
        rnrs,
    } = r.qps;
    let mut all = object(json!(s));
    all.insert(
        "rates".to_owned(),
        json!({
            "posted": r.posted, "completed": r.completed, "tx_packets": tx_packets,
            "rx_packets": rx_packets, "tx_bits": tx_bits, "rx_bits": rx_bits,
            "messages": messages, "retransmits": retransmits, "ce_marked": ce_marked,
            "cnps": cnps, "rnr_naks": rnrs,
        }),
    );
    all
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::sample;
    use super::*;

    #[test]
    fn tables_have_rates_and_json_has_everything() {
        let (before, now) = (sample(1), sample(3));
        let span = Span::new(&now, Some(&before));
        let shown = text(&span, true);
        for words in [
            "eth1",
            "64.0M",
            "25 %",
            "kv",
            "copy",
            "RC RTS",
            "tx bits/s",
            "cnps_out",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        let json = json(&span);
        assert_eq!(json["interval_s"], 2.0);
        assert_eq!(json["devices"][0]["rates"]["tx_bits"], 64e6);
        assert_eq!(json["sessions"][0]["rates"]["tx_packets"], 3000.0);
        assert_eq!(json["qps"][1]["counters"]["tx_packets"], 6000);
        assert_eq!(json["qps"][1]["rates"]["tx_packets"], 2000.0);
        let names = json["qps"][0]["rates"].as_object().unwrap().len();
        assert_eq!(names, Counters::TABLE.len());
        let totals = text(&Span::new(&now, None), false);
        assert!(
            totals.contains("tx bits ") && !totals.contains("/s"),
            "{totals}"
        );
    }
}
