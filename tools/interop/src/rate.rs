//! Row D8 of the performance targets: two machines on one link, rxe to rxe with perftest, then
//! xroce to xroce over AF_XDP in the same two machines, in turns.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{Table, presets};
use serde::Serialize;
use xroce_testnet::Netns;
use xroce_vm::{Accel, Cache, Extra, Kernel, Net, Vm, VmConfig, prepare};

use crate::ends::wait_for_port;

/// IP MTU of the link.
const MTU: u32 = 4_200;
/// Messages outstanding, of either side: perftest's default.
const DEPTH: u32 = 128;
/// One measurement, boot of the program included.
const PATIENCE: Duration = Duration::from_secs(120);
/// TCP ports of perftest and of `xroce perf`.
const PERFTEST_PORT: u16 = 18_515;
const PERF_PORT: u16 = 18_715;
/// Where xroce is in the guests.
const XROCE: &str = "/usr/bin/xroce";
/// What is measured: operation, size, messages, and the ratio wanted.
const TESTS: [(&str, u32, u32, f64); 6] = [
    ("send", 64, 8_000, 3.0),
    ("write", 64, 8_000, 3.0),
    ("read", 64, 8_000, 3.0),
    ("send", 1 << 20, 60, 2.0),
    ("write", 1 << 20, 60, 2.0),
    ("read", 1 << 20, 60, 2.0),
];

/// How to measure.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RateArgs {
    /// Rounds, each of them rxe then xroce
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Model of the emulated processor; "max" has carry-less multiplication for CRCs
    #[arg(long, default_value = "qemu64")]
    cpu: String,
}

/// One test, all rounds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    operation: &'static str,
    size: u32,
    /// Messages a second of rxe, by round.
    rxe: Vec<f64>,
    /// Messages a second of xroce, by round.
    xroce: Vec<f64>,
    target: f64,
}

impl Row {
    fn ratios(&self) -> Vec<f64> {
        self.xroce
            .iter()
            .zip(&self.rxe)
            .map(|(x, r)| x / r)
            .collect()
    }
}

/// Median, least, most.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
    let middle = if sorted.len() % 2 == 1 {
        at(sorted.len() / 2)
    } else {
        f64::midpoint(at(sorted.len() / 2), at((sorted.len() / 2).wrapping_sub(1)))
    };
    (middle, at(0), at(sorted.len().wrapping_sub(1)))
}

/// Measures and prints; the figures also go into `rate.json` in `dir`.
pub(crate) fn run(cache: &Cache, args: &RateArgs, accel: Accel, dir: &Path) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("xroce");
    ensure!(
        program.exists(),
        "{} is missing: build it with cargo build --release -p xroce",
        program.display()
    );
    let extra = Extra {
        guest: XROCE.to_owned(),
        host: program,
        mode: 0o755,
    };
    let image = prepare(cache, Kernel::V6_12, &[extra], &mut |l| eprintln!("{l}"))?;
    let scratch = tempfile::Builder::new().prefix("xroce-rate-").tempdir()?;
    let netns = Netns::alone(1).map_err(|e| anyhow::anyhow!(e))?;
    netns.run(|| std::fs::write("/proc/sys/net/unix/max_dgram_qlen", "4096"))?;
    let path = |name: &str| scratch.path().join(name);
    let boot = |host: u8, own: &str, other: &str| {
        let net = Net::Dgram {
            local: path(own),
            remote: path(other),
        };
        Vm::boot(&VmConfig {
            name: format!("host{host}"),
            netns: Some(netns.name().to_owned()),
            mac: [0x52, 0x54, 0, 0x77, 1, host],
            mtu: MTU,
            v4: Some(([10, 77, 0, host].into(), 24)),
            memory_mib: 512,
            accel,
            cpu: Some(args.cpu.clone()),
            ..VmConfig::new(image.clone(), net, path(&format!("vm{host}")))
        })
    };
    let mut server = boot(1, "a.sock", "b.sock")?;
    let mut client = boot(2, "b.sock", "a.sock")?;
    let mut port = String::new();
    let mut rows: Vec<Row> = TESTS
        .map(|(operation, size, _, target)| Row {
            operation,
            size,
            rxe: Vec::new(),
            xroce: Vec::new(),
            target,
        })
        .to_vec();
    for round in 1..=args.rounds {
        for (row, (op, size, messages, _)) in rows.iter_mut().zip(TESTS) {
            let theirs = rxe(&mut server, &mut client, op, size, messages)
                .with_context(|| format!("rxe, {op} of {size} B"))?;
            let ours = xroce(&mut server, &mut client, op, size, messages, &mut port)
                .with_context(|| format!("xroce, {op} of {size} B"))?;
            eprintln!(
                "round {round}: {op} of {size} B: rxe {theirs:.0}/s, xroce {ours:.0}/s, {:.2}",
                ours / theirs
            );
            row.rxe.push(theirs);
            row.xroce.push(ours);
        }
    }
    print(&rows, &image.release, client.accel(), &port);
    let json = serde_json::to_string_pretty(&rows)?;
    std::fs::write(dir.join("rate.json"), json + "\n").context("rate.json")
}

#[allow(clippy::print_stdout, reason = "the table is the output")]
fn print(rows: &[Row], kernel: &str, accel: Accel, port: &str) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["operation", "size", "rxe", "xroce", "ratio", "target"]);
    for row in rows {
        let large = row.size >= 1 << 20;
        let figure = |values: &[f64]| {
            let (median, least, most) = spread(values);
            if large {
                let mb = f64::from(row.size) / 1e6;
                let (median, least, most) = (median * mb, least * mb, most * mb);
                format!("{median:.0} ({least:.0}–{most:.0}) MB/s")
            } else {
                format!("{median:.0} ({least:.0}–{most:.0})/s")
            }
        };
        let (ratio, least, most) = spread(&row.ratios());
        table.add_row([
            row.operation.to_uppercase(),
            format!("{} B", row.size),
            figure(&row.rxe),
            figure(&row.xroce),
            format!("{ratio:.2} ({least:.2}–{most:.2})"),
            format!("{:.1}", row.target),
        ]);
    }
    println!("{table}");
    println!("D8: two machines, {kernel}, {accel:?}, {port}, path MTU 4096, {DEPTH} outstanding");
}

/// Messages a second of perftest over rxe.
fn rxe(server: &mut Vm, client: &mut Vm, op: &str, size: u32, messages: u32) -> Result<f64> {
    let gids = server.agent().gids()?;
    let v4 = |gid: &&xroce_vm::Gid| gid.v2 && gid.addr.to_ipv4_mapped().is_some();
    let index = gids.iter().find(v4).context("no IPv4 GID")?.index;
    let command =
        format!("ib_{op}_bw -F -d rxe0 -x {index} -m 4096 -s {size} -n {messages} -t {DEPTH}");
    server.agent().spawn("server", &command)?;
    wait_for_port(server.agent(), PERFTEST_PORT)?;
    let output = client
        .agent()
        .exec(&format!("{command} 10.77.0.1"), PATIENCE)?;
    server
        .agent()
        .wait("server", Duration::from_secs(10))?
        .ok()?;
    let text = output.ok()?;
    // #bytes #iterations peak average rate; the rate has too few digits for large messages.
    let row: Vec<f64> = text
        .lines()
        .rev()
        .map(|l| l.split_whitespace().map_while(|w| w.parse().ok()).collect())
        .find(|row: &Vec<f64>| row.len() >= 5)
        .with_context(|| format!("no figures in:\n{text}"))?;
    let &[_, _, _, mib, mpps, ..] = &row[..] else {
        bail!("no figures in:\n{text}");
    };
    // perftest's MB/s are 2^20 bytes.
    Ok(if size >= 1 << 20 {
        mib * f64::from(1 << 20) / f64::from(size)
    } else {
        mpps * 1e6
    })
}

/// Messages a second of `xroce perf`; `port` becomes the name of its port.
fn xroce(
    server: &mut Vm,
    client: &mut Vm,
    op: &str,
    size: u32,
    messages: u32,
    port: &mut String,
) -> Result<f64> {
    let command = format!("{XROCE} perf server --dev eth0 --once");
    server.agent().spawn("xroce", &command)?;
    wait_for_port(server.agent(), PERF_PORT)?;
    let command = format!(
        "{XROCE} perf client 10.77.0.1 --dev eth0 --op {op} --test bw --size {size} \
         --messages {messages} --depth {DEPTH} --mtu 4096 --timeout 20 --json"
    );
    let output = client.agent().exec(&command, PATIENCE)?;
    let ended = server.agent().wait("xroce", Duration::from_secs(10))?;
    let text = output
        .ok()
        .with_context(|| format!("server: {}", ended.text.trim()))?;
    ended.ok()?;
    // What went to standard error comes first.
    let json = text.find('{').and_then(|at| text.get(at..));
    let value: serde_json::Value =
        serde_json::from_str(json.unwrap_or_default()).with_context(|| text.clone())?;
    if let Some(name) = value["client_port"].as_str() {
        name.clone_into(port);
    }
    value["results"][0]["bandwidth"]["messages_per_s"]
        .as_f64()
        .with_context(|| format!("no messages_per_s in {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_extremes() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), (2.5, 1.0, 4.0));
    }
}
