//! Traffic of daemons, captured and read back by `decode` and by tshark.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that fails may panic"
)]

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use clap::Parser;
use serde_json::Value;
use tempfile::TempDir;
use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};
use xroce_verbs::{
    Access, ConnectAttr, Context as Verbs, Cq, Mr, Pd, Qp, Rc, RecvBatch, SendBatch,
};

use super::*;
use crate::decode::{self, DecodeArgs};

const LONG: StdDuration = StdDuration::from_secs(60);
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A daemon with one device.
struct Host {
    daemon: Option<Daemon>,
    dir: TempDir,
}

impl Host {
    fn start() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // 127.32.0.0/11: no other test's.
        let addr = Ipv4Addr::new(127, 32 + n, high, low.clamp(1, 254));
        Self::on(addr.into()).unwrap()
    }

    fn on(addr: IpAddr) -> Result<Self, xroce_daemon::DaemonError> {
        Self::below(Below::Udp { addr, ifname: None })
    }

    fn below(below: Below) -> Result<Self, xroce_daemon::DaemonError> {
        let dir = TempDir::new().unwrap();
        let device = DeviceConfig::new(below);
        let config = DaemonConfig::new(dir.path().join("s"), vec![device]);
        let daemon = Some(Daemon::start(config)?);
        Ok(Self { daemon, dir })
    }

    fn args(&self, more: &[&str]) -> CaptureArgs {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: CaptureArgs,
        }
        let socket = self.dir.path().join("s");
        let line = ["capture", "--socket", socket.to_str().unwrap()];
        let line = line.iter().chain(more);
        Line::try_parse_from(line).unwrap().args
    }

    fn session(&self, args: &CaptureArgs) -> Result<Session> {
        Session::begin(&args.socket, None, &args.spec())
    }

    fn end(&self) -> End {
        let context = Verbs::attach(&self.dir.path().join("s"), None).unwrap();
        let pd = context.alloc_pd().unwrap();
        End {
            cq: context.create_cq(4096).unwrap(),
            mr: pd.alloc_mr(1 << 20, ALL).unwrap(),
            pd,
        }
    }
}

struct End {
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

fn pair(near: &End, far: &End) -> [Qp<Rc>; 2] {
    let [a, b] = [near, far].map(|end| {
        let qp = end.pd.qp::<Rc>(&end.cq, &end.cq).max_send_wr(256);
        qp.create().unwrap().init(ALL).unwrap()
    });
    let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    let attr = ConnectAttr {
        timeout: 18,
        ..ConnectAttr::default()
    };
    [
        a.connect(&ends[1], &attr).unwrap(),
        b.connect(&ends[0], &attr).unwrap(),
    ]
}

/// `count` SENDs of 3000 bytes at once, and as many WRITEs of 70 000, a READ and an atomic.
fn traffic(near: &End, far: &End, [a, b]: &[Qp<Rc>; 2], count: u64) {
    let mut receives = RecvBatch::new();
    let mut sends = SendBatch::new();
    let there = far.mr.remote().unwrap();
    for n in 0..count {
        receives.recv(n).sge(far.mr.slice(0..3000).unwrap());
        sends.send(n).sge(near.mr.slice(0..3000).unwrap());
        let write = sends.write(n, there.slice(8192..78_192).unwrap());
        write.sge(near.mr.slice(0..70_000).unwrap());
    }
    let from = there.slice(0..20_000).unwrap();
    sends.read(0, from).sge(near.mr.slice(0..20_000).unwrap());
    let word = near.mr.word(0).unwrap();
    sends.fetch_add(0, there.word(0).unwrap(), 1, word);
    b.post_recv(&receives).unwrap();
    a.post(&sends).unwrap();
    for _ in 0..2 * count + 2 {
        near.cq.next(LONG).unwrap().unwrap().ok().unwrap();
    }
    for _ in 0..count {
        far.cq.next(LONG).unwrap().unwrap().ok().unwrap();
    }
}

/// Ends a capture; the file, and what was counted.
fn ended(args: &CaptureArgs, mut session: Session) -> (Vec<u8>, CaptureStats) {
    let stats = session.end().unwrap();
    let mut bytes = Vec::new();
    let mut taken = Taken::default();
    let file = PcapNgFile::begin(&mut bytes, args, &session).unwrap();
    let mut sink = Sink::File(file);
    taken.rest(args, &mut session, &mut sink).unwrap();
    if let Sink::File(file) = &mut sink {
        file.end(&stats).unwrap();
    }
    assert_eq!(taken.packets, stats.captured);
    (bytes, stats)
}

/// What `xroce decode --json` says of a file.
fn decoded(bytes: &[u8]) -> Vec<Value> {
    let lines = json(bytes);
    let lines = lines.lines().map(|l| serde_json::from_str(l).unwrap());
    lines.collect()
}

fn json(bytes: &[u8]) -> String {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("capture.pcapng");
    std::fs::write(&file, bytes).unwrap();
    let mut out = Vec::new();
    let (json, summary) = (true, false);
    let args = DecodeArgs {
        file,
        json,
        summary,
    };
    decode::run(&args, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Of packets, what both ends see alike.
fn common(packets: &[Value], from: &str) -> Vec<[Value; 7]> {
    let of = packets.iter().filter(|p| p["src"] == from);
    of.map(|p| {
        let fields = [
            "dst",
            "sport",
            "opcode_name",
            "dest_qp",
            "psn",
            "payload_len",
            "icrc",
        ];
        fields.map(|field| p[field].clone())
    })
    .collect()
}

#[test]
fn every_packet_is_there_at_both_ends() {
    both_ends(&[Host::start(), Host::start()], 1);
}

#[cfg(feature = "xdp")]
#[test]
fn netns_frames_of_xdp_come_with_their_ethernet_headers() {
    let Some(net) = xroce_testnet::NetnsPair::or_skip(4200, 1) else {
        return;
    };
    let hosts = [&net.a, &net.b].map(|ns| {
        let below = Below::Xdp {
            ifname: ns.ifname().to_owned(),
            queue: 0,
            ring_size: 2048,
        };
        ns.run(|| Host::below(below).unwrap())
    });
    // In bursts that a veth pair carries without loss: its queue has 256 places.
    let near = both_ends(&hosts, 10);
    // The link type stands in the block behind the section header.
    let section = u32::from_be_bytes(near[4..8].try_into().unwrap()) as usize;
    assert_eq!(near[section + 8..section + 10], [0, 1]);
    let text = String::from_utf8_lossy(&near);
    assert!(!text.contains("synthetic") && text.contains("AF_XDP veth0"));
}

/// Traffic between two hosts in so many bursts, captured at both; the file of the first.
fn both_ends(hosts: &[Host; 2], bursts: u64) -> Vec<u8> {
    let ends = [hosts[0].end(), hosts[1].end()];
    let qps = pair(&ends[0], &ends[1]);
    let args = [hosts[0].args(&[]), hosts[1].args(&[])];
    let sessions = [0, 1].map(|n| hosts[n].session(&args[n]).unwrap());
    for _ in 0..bursts {
        traffic(&ends[0], &ends[1], &qps, 20 / bursts);
    }
    // Both have passed the last ACK on to their processes, and so have seen it.
    let [near, far] = sessions;
    let (near, far) = (ended(&args[0], near), ended(&args[1], far));
    for (_, stats) in [&near, &far] {
        assert_eq!((stats.dropped, stats.filtered), (0, 0));
        assert_eq!(stats.seen, stats.captured);
    }
    let file = near.0;
    let (near, far) = (decoded(&file), decoded(&far.0));
    assert!(near.iter().chain(&far).all(|p| p["icrc"] == "ok"));
    // Once each, or again after an RNR NAK: the receives may come a moment late.
    let sends = near.iter().filter(|p| p["opcode_name"] == "RC SEND Only");
    let psns: HashSet<String> = sends.map(|p| p["psn"].to_string()).collect();
    assert_eq!(psns.len(), 20);
    let addresses = [&near[0]["src"], &near[0]["dst"]];
    for address in addresses {
        let address = address.as_str().unwrap();
        assert_eq!(common(&near, address), common(&far, address));
    }
    assert!(near.len() > 20 * 19);
    let times = near.iter().map(|p| p["ts"].as_f64().unwrap());
    assert!(times.is_sorted());
    file
}

#[test]
fn the_same_over_ipv6_and_within_one_device() {
    let host = match Host::on(Ipv6Addr::LOCALHOST.into()) {
        Ok(host) => host,
        Err(error) => {
            eprintln!("no IPv6 here, not tested: {error}");
            return;
        }
    };
    let ends = [host.end(), host.end()];
    let qps = pair(&ends[0], &ends[1]);
    let args = host.args(&[]);
    let session = host.session(&args).unwrap();
    traffic(&ends[0], &ends[1], &qps, 5);
    let (bytes, _) = ended(&args, session);
    let packets = decoded(&bytes);
    // Everything once as it leaves and once as it comes.
    assert!(packets.len() > 200 && packets.len().is_multiple_of(2));
    assert!(
        packets
            .iter()
            .all(|p| p["icrc"] == "ok" && p["src"] == "::1")
    );
}

#[test]
fn tshark_reads_it_as_roce() {
    let host = Host::start();
    let ends = [host.end(), host.end()];
    let qps = pair(&ends[0], &ends[1]);
    let args = host.args(&["--direction", "out"]);
    let session = host.session(&args).unwrap();
    traffic(&ends[0], &ends[1], &qps, 5);
    let (bytes, stats) = ended(&args, session);
    let file = host.dir.path().join("c.pcapng");
    std::fs::write(&file, &bytes).unwrap();
    let fields = "frame.time_epoch frame.packet_flags_direction infiniband.bth.psn \
                  ip.checksum.status infiniband.bth.destqp ip.src";
    let mut command = Command::new("tshark");
    command.args(["-n", "-o", "ip.check_checksum:TRUE", "-T", "fields", "-r"]);
    command.arg(&file);
    for field in fields.split_whitespace() {
        command.args(["-e", field]);
    }
    let Ok(run) = command.output() else {
        eprintln!("tshark is not installed: not tested");
        return;
    };
    assert!(run.status.success(), "{run:?}");
    let text = String::from_utf8(run.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split('\t').collect()).collect();
    assert_eq!(rows.len() as u64, stats.captured);
    let (ours, texts) = (decoded(&bytes), json(&bytes));
    assert_eq!(ours.len(), rows.len());
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    };
    for ((row, packet), text) in rows.iter().zip(&ours).zip(texts.lines()) {
        // To the nanosecond: as text.
        assert!(text.contains(&format!("\"ts\":{},", row[0])), "{text}");
        assert_eq!(number(row[1]), 2, "sent");
        assert_eq!(number(row[2]), packet["psn"]);
        assert_eq!(number(row[3]), 1, "the checksum is right");
        assert_eq!(number(row[4]), packet["dest_qp"]);
        assert_eq!(row[5], packet["src"]);
    }
}

#[test]
fn a_queue_pair_is_followed_in_both_directions() {
    let hosts = [Host::start(), Host::start()];
    let ends = [hosts[0].end(), hosts[1].end()];
    let other = pair(&ends[0], &ends[1]);
    // Two more on one side, so that the numbers of a pair differ.
    let _more = [pair(&ends[0], &ends[0]), pair(&ends[0], &ends[0])];
    let qps = pair(&ends[0], &ends[1]);
    let numbers = [qps[0].qpn().value(), qps[1].qpn().value()];
    let address = |n: usize| hosts[n].daemon.as_ref().unwrap().devices()[0].clone();
    assert_ne!(numbers[0], numbers[1], "{}", address(0));
    for wanted in numbers {
        let text = wanted.to_string();
        let args = [hosts[0].args(&["--qp", &text]), hosts[1].args(&[])];
        let sessions = [0, 1].map(|n| hosts[n].session(&args[n]).unwrap());
        traffic(&ends[0], &ends[1], &other, 3);
        traffic(&ends[0], &ends[1], &qps, 3);
        let [near, far] = sessions;
        let (near, _) = ended(&args[0], near);
        let (far, _) = ended(&args[1], far);
        let (near, far) = (decoded(&near), decoded(&far));
        let of = |p: &&Value| p["dest_qp"] == numbers[0] || p["dest_qp"] == numbers[1];
        let far: Vec<Value> = far.iter().filter(of).cloned().collect();
        assert!(!near.is_empty());
        for from in [&near[0]["src"], &near[0]["dst"]] {
            let from = from.as_str().unwrap();
            assert_eq!(common(&near, from), common(&far, from));
        }
    }
}

#[test]
fn a_connection_made_while_it_runs_is_followed_too() {
    let hosts = [Host::start(), Host::start()];
    let ends = [hosts[0].end(), hosts[1].end()];
    // So that the numbers of the pair differ.
    let _more = pair(&ends[0], &ends[0]);
    let [a, b] = [&ends[0], &ends[1]].map(|end| {
        let qp = end.pd.qp::<Rc>(&end.cq, &end.cq).max_send_wr(256);
        qp.create().unwrap().init(ALL).unwrap()
    });
    let args = hosts[0].args(&["--qp", &a.qpn().value().to_string()]);
    let session = hosts[0].session(&args).unwrap();
    let info = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    let attr = ConnectAttr::default();
    let a = a.connect(&info[1], &attr).unwrap();
    let b = b.connect(&info[0], &attr).unwrap();
    assert_ne!(a.qpn(), b.qpn());
    traffic(&ends[0], &ends[1], &[a, b], 2);
    let (bytes, stats) = ended(&args, session);
    assert_eq!(stats.captured, stats.seen, "nothing else passes");
    let packets = decoded(&bytes);
    let sends = packets
        .iter()
        .filter(|p| p["opcode_name"] == "RC SEND Only");
    assert!(sends.count() >= 2);
}

#[test]
fn cut_packets_and_samples_are_told_of() {
    let host = Host::start();
    let ends = [host.end(), host.end()];
    let qps = pair(&ends[0], &ends[1]);
    let args = host.args(&["--snaplen", "40", "--sample", "3", "--direction", "in"]);
    let mut session = host.session(&args).unwrap();
    traffic(&ends[0], &ends[1], &qps, 5);
    let stats = session.end().unwrap();
    assert_eq!(stats.filtered * 2, stats.seen);
    assert_eq!(stats.captured, (stats.filtered).div_ceil(3));
    let mut bytes = Vec::new();
    let mut taken = Taken::default();
    let mut sink = Sink::Lines(Live::new(&mut bytes));
    taken.rest(&args, &mut session, &mut sink).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(text.lines().count() as u64, stats.captured);
    assert!(text.contains("truncated: 68 of"), "{text}");
    let line = summary(&session, &taken, Some(&stats), Duration::from_millis(1_500));
    let cut = format!("in 1.500 s, {} of them cut to the snap length", taken.cut);
    assert!(
        line.contains(&cut) && line.contains("left out by sampling"),
        "{line}"
    );
}

#[test]
fn the_command_ends_by_count_and_says_what_it_did() {
    let host = Host::start();
    let ends = [host.end(), host.end()];
    let qps = pair(&ends[0], &ends[1]);
    let path = host.dir.path().join("out.pcapng");
    let args = host.args(&["--count", "500", "-w", path.to_str().unwrap()]);
    let done = AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        let capturing = scope.spawn(|| {
            let mut said = Vec::new();
            let file = Box::new(File::create(&path).unwrap());
            let result = capture(&args, file, &mut said);
            done.store(true, Ordering::Relaxed);
            result.unwrap();
            String::from_utf8(said).unwrap()
        });
        while !done.load(Ordering::Relaxed) {
            traffic(&ends[0], &ends[1], &qps, 3);
        }
        capturing.join().unwrap()
    });
    assert!(said.starts_with("500 packets of "), "{said}");
    assert!(said.contains("(UDP lo 127."), "{said}");
    assert_eq!(decoded(&std::fs::read(&path).unwrap()).len(), 500);
    // And by time.
    let args = host.args(&["--duration", "0.2"]);
    let (mut said, out) = (Vec::new(), Box::new(io::sink()));
    capture(&args, out, &mut said).unwrap();
    let said = String::from_utf8(said).unwrap();
    assert!(said.starts_with("0 packets of 0 bytes captured"), "{said}");
}

#[test]
fn there_is_one_capture_of_a_device() {
    let host = Host::start();
    let args = host.args(&[]);
    let mut first = host.session(&args).unwrap();
    let refused = host.session(&args).unwrap_err().to_string();
    let pid = format!("(process {}) captures on udp:", std::process::id());
    assert!(refused.contains(&pid), "{refused}");
    first.end().unwrap();
    let again = first.end().unwrap_err().to_string();
    assert!(again.contains("does not capture"), "{again}");
    let second = host.session(&args).unwrap();
    // The end of a session ends its capture.
    drop(second);
    let until = clock::now() + Duration::from_nanos(10_000_000_000);
    while host.session(&args).is_err() {
        assert!(clock::now() < until);
    }
}

#[test]
fn the_end_of_the_daemon_ends_the_capture_with_its_reason() {
    let mut host = Host::start();
    let args = host.args(&[]);
    let mut session = host.session(&args).unwrap();
    let daemon = host.daemon.take().unwrap();
    let stopping = std::thread::spawn(move || daemon.stop("maintenance"));
    let reason = loop {
        if let Err(error) = session.wait(LOOK) {
            break format!("{error:#}");
        }
    };
    assert!(reason.contains("maintenance"), "{reason}");
    stopping.join().unwrap();
    let gone = host.session(&args).unwrap_err().to_string();
    assert!(gone.contains("is it running"), "{gone}");
}

#[test]
fn values_out_of_range_are_refused() {
    for (text, words) in [("x", "number"), ("16777216", "0xffffff"), ("-1", "number")] {
        let refused = qpn(text).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(qpn("0x11"), Ok(17));
    for text in ["0", "-1", "nan", "inf", "1e99"] {
        assert!(seconds(text).is_err(), "{text}");
    }
    assert_eq!(seconds("0.5"), Ok(Duration::from_nanos(500_000_000)));
    assert!(Path::new(SOCKET_DEFAULT).is_absolute());
}
