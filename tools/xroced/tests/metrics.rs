//! Metrics: by hand, and by a real Prometheus.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that fails may panic, and one that lacks something says so"
)]

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{End, Killed, Running, free_port, get, pair, send};

/// Name and labels of a sample, and its value.
type Samples = BTreeMap<String, f64>;

/// All samples of a page, whose form is checked: every family is described before its samples,
/// nothing comes twice, and the end is marked.
fn parse(page: &str) -> Samples {
    let mut samples = Samples::new();
    let mut described = Vec::new();
    let body = page.strip_suffix("# EOF\n").expect("the end mark");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(!described.contains(&name.to_owned()), "{line} twice");
            described.push(name.to_owned());
        } else if !line.starts_with("# HELP ") {
            let (key, value) = line.rsplit_once(' ').unwrap();
            let family = described.last().expect("a description first");
            assert!(key.starts_with(family.as_str()), "{key} below {family}");
            let before = samples.insert(key.to_owned(), value.parse().unwrap());
            assert!(before.is_none(), "{key} twice");
        }
    }
    samples
}

fn scrape(at: SocketAddr) -> Samples {
    let (head, body) = get(at, "/metrics");
    assert!(
        head.contains("200 OK") && head.contains("openmetrics"),
        "{head}"
    );
    parse(&body)
}

/// The sum of the samples of a name.
fn sum(samples: &Samples, name: &str) -> f64 {
    let of = |key: &str| key.split('{').next() == Some(name);
    samples
        .iter()
        .filter(|(key, _)| of(key))
        .map(|(_, v)| v)
        .sum()
}

fn with_metrics(more: &[&str]) -> (Running, SocketAddr) {
    let at = free_port();
    let text = at.to_string();
    let args = [&["--drain", "0", "--metrics", &text], more].concat();
    (Running::start(&args), at)
}

#[test]
fn a_scrape_has_every_counter_and_sums_never_fall() {
    let (daemon, at) = with_metrics(&[]);
    let [near, far] = [End::of(daemon.attach()), End::of(daemon.attach())];
    let qps = pair(&near, &far);
    send(&near, &far, &qps, 30);
    let first = scrape(at);
    assert_eq!(sum(&first, "xroce_qp_sends_completed_total"), 30.0);
    assert_eq!(sum(&first, "xroce_session_sends_completed_total"), 30.0);
    assert_eq!(sum(&first, "xroce_session_posted_total"), 60.0);
    assert_eq!(sum(&first, "xroce_sessions"), 2.0);
    assert_eq!(sum(&first, "xroce_device_up"), 1.0);
    assert!(sum(&first, "xroce_rtt_seconds_count") > 0.0);
    let rts = |s: &Samples| {
        let of = |(key, v): (&String, &f64)| {
            (key.starts_with("xroce_qps{") && key.contains("state=\"rts\"")).then_some(*v)
        };
        s.iter().filter_map(of).sum::<f64>()
    };
    assert_eq!(rts(&first), 2.0);
    let families = |s: &Samples, start: &str| {
        let names = s.keys().filter(|k| k.starts_with(start));
        let names = names.map(|k| k.split('{').next().unwrap().to_owned());
        names.collect::<std::collections::BTreeSet<_>>().len()
    };
    let counters = xroce_proto::counters::Counters::TABLE.len();
    assert_eq!(families(&first, "xroce_qp_"), counters);
    assert!(families(&first, "xroce_session_") > counters);
    let engine = xroce_api::EngineStats::TABLE.len();
    assert_eq!(families(&first, "xroce_engine_"), engine + 5);
    assert_eq!(families(&first, "xroce_port_"), xroce_api::PORT_TABLE.len());

    // What queue pairs did stays counted when they, and their processes, are gone.
    drop((qps, near, far));
    let gone = |s: &Samples| sum(s, "xroce_sessions") == 0.0;
    let mut last = scrape(at);
    for _ in 0..6000 {
        if gone(&last) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        last = scrape(at);
    }
    assert!(gone(&last), "{}", daemon.log());
    assert_eq!(sum(&last, "xroce_qp_sends_completed_total"), 30.0);
    assert_eq!(rts(&last), 0.0);
    let counts = |key: &str| key.starts_with("xroce_qp_") || key.starts_with("xroce_rtt_seconds_c");
    for (key, before) in first.iter().filter(|(key, _)| counts(key)) {
        let now = last.get(key).unwrap();
        assert!(now >= before, "{key}: {before}, then {now}");
    }
}

#[test]
fn slow_and_many_clients_do_not_hold_up_a_scrape() {
    let (_daemon, at) = with_metrics(&[]);
    let mut slow: Vec<_> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
    for stream in &mut slow {
        let _ = stream.write_all(b"GET /met");
    }
    // Each of them is answered or hung up on, though none says more.
    for stream in &mut slow {
        stream.set_read_timeout(Some(common::LONG)).unwrap();
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}"),
        }
    }
    assert_eq!(sum(&scrape(at), "xroce_device_up"), 1.0);
}

/// A Prometheus that scrapes `at` every second, and where it answers; `None`: there is none here.
fn prometheus(at: SocketAddr, dir: &std::path::Path) -> Option<(Killed, SocketAddr)> {
    let web = free_port();
    let config = dir.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s}}\n\
         scrape_configs: [{{job_name: xroce, static_configs: [{{targets: ['{at}']}}]}}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let log = std::fs::File::create(dir.join("prometheus.log")).unwrap();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            dir.join("tsdb").display()
        ))
        .arg(format!("--web.listen-address={web}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    match child {
        Ok(child) => Some((Killed(child), web)),
        Err(error) => {
            println!("not scraped by a real one: prometheus: {error} (scripts/setup.sh test)");
            None
        }
    }
}

/// The value of an instant query, as soon as there is one that `fits`.
fn query(web: SocketAddr, query: &str, fits: impl Fn(f64) -> bool) -> Option<f64> {
    let mut last = None;
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(100));
        if TcpStream::connect(web).is_err() {
            continue;
        }
        let (_, body) = get(web, &format!("/api/v1/query?query={query}"));
        // The server begins by saying that it is not ready.
        let Ok(answer) = serde_json::from_str::<serde_json::Value>(&body) else {
            continue;
        };
        let value = answer["data"]["result"][0]["value"][1].as_str();
        last = value.map(|text| text.parse().unwrap());
        if last.is_some_and(&fits) {
            break;
        }
    }
    last
}

#[test]
fn a_real_prometheus_takes_it() {
    let (daemon, at) = with_metrics(&[]);
    let Some((_prometheus, web)) = prometheus(at, daemon.dir.path()) else {
        return assert_eq!(sum(&scrape(at), "xroce_device_up"), 1.0);
    };
    let [near, far] = [End::of(daemon.attach()), End::of(daemon.attach())];
    let qps = pair(&near, &far);
    send(&near, &far, &qps, 30);
    let log = || std::fs::read_to_string(daemon.dir.path().join("prometheus.log")).unwrap();
    for (text, value) in [
        ("up", 1.0),
        ("xroce_device_up", 1.0),
        ("xroce_sessions", 2.0),
        ("sum(xroce_qp_sends_completed_total)", 30.0),
        ("sum(xroce_session_recvs_completed_total)", 30.0),
        ("sum(xroce_qps%7Bstate=%22rts%22%7D)", 2.0),
        ("count(xroce_session_registered_bytes==65536)", 2.0),
    ] {
        let found = query(web, text, |v| v == value);
        assert_eq!(found, Some(value), "{text}: {}", log());
    }
    // From the buckets, as a dashboard would.
    let p99 = "histogram_quantile(0.99,xroce_rtt_seconds_bucket)";
    let found = query(web, p99, |v| v > 0.0).unwrap();
    assert!(found > 0.0 && found < 70.0, "{found}");
}
