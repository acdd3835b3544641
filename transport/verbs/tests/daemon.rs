//! Contexts of devices of a daemon: the same as those of an engine in this process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

mod threads;

use tempfile::TempDir;
use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};
use xroce_proto::qp::QpInit;
use xroce_verbs::raw::RawDevice;
use xroce_verbs::{
    AhAttr, Context, Device, Drive, Event, LKey, QKey, Qp, QpAttr, QpState, Qpn, Reason, RecvBatch,
    Region, SendBatch, SrqInfo, Type1, Type2, Uc, Ud, VerbsError, WcOpcode, WcStatus,
};

use threads::{ALL, End, LONG, address, pair, ping_pong};

/// A daemon with a device on an address of its own.
struct Host {
    daemon: Option<Daemon>,
    dir: TempDir,
}

impl Host {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let device = DeviceConfig::new(Below::Udp {
            addr: address(),
            ifname: None,
        });
        let config = DaemonConfig::new(dir.path().join("xroced.sock"), vec![device]);
        let daemon = Some(Daemon::start(config).unwrap());
        Self { daemon, dir }
    }

    fn attach(&self) -> Context {
        Context::attach(&self.dir.path().join("xroced.sock"), None).unwrap()
    }

    fn end(&self) -> End {
        End::of(self.attach())
    }

    fn stop(&mut self, reason: &str) {
        self.daemon.take().unwrap().stop(reason);
    }
}

#[test]
fn two_processes_of_one_daemon_carry_messages() {
    let host = Host::start();
    ping_pong(&host.end(), &host.end());
}

#[test]
fn processes_of_two_daemons_carry_messages() {
    let hosts = [Host::start(), Host::start()];
    ping_pong(&hosts[0].end(), &hosts[1].end());
}

#[test]
fn several_threads_post_to_one_queue_pair() {
    let hosts = [Host::start(), Host::start()];
    threads::several_threads_post(&hosts[0].end(), &hosts[1].end());
}

#[test]
fn channels_and_events_have_descriptors_to_poll() {
    let hosts = [Host::start(), Host::start()];
    threads::channels_and_events_have_descriptors(&hosts[0].end(), &hosts[1].end());
}

fn done(end: &End) -> xroce_verbs::Completion {
    let wc = end.cq.next(LONG).unwrap().expect("a completion");
    *wc.ok().unwrap()
}

fn bytes(end: &End, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    end.mr.read(at, &mut out).unwrap();
    out
}

fn posted(qp: &Qp<xroce_verbs::Rc>, end: &End, wr_id: u64, range: std::ops::Range<u64>) {
    let mut receive = RecvBatch::new();
    receive.recv(wr_id).sge(end.mr.slice(range).unwrap());
    qp.post_recv(&receive).unwrap();
}

#[test]
fn every_reliable_operation_goes_through_the_rings() {
    let hosts = [Host::start(), Host::start()];
    let [near, far] = [0, 1].map(|n| hosts[n].end());
    let [a, b] = pair(&near, &far);
    near.mr.write(0, b"sent").unwrap();
    near.mr.write(64, &77u64.to_ne_bytes()).unwrap();
    far.mr.write(200, b"readable").unwrap();
    far.mr.write(256, &5u64.to_ne_bytes()).unwrap();
    for n in 0..3 {
        posted(&b, &far, 100 + n, n * 16..n * 16 + 16);
    }
    let there = far.mr.remote().unwrap();
    let word = |at| there.word(at).unwrap();
    let slice = |range| near.mr.slice(range).unwrap();
    let mut batch = SendBatch::new();
    batch.send(1).sge(slice(0..4)).solicited();
    batch.send_imm(2, *b"imm!").inline(b"inline").unsignaled();
    let to = there.slice(128..).unwrap();
    batch.write(3, to).sge(slice(0..4));
    batch.write_imm(4, there.slice(140..150).unwrap(), [9; 4]);
    let from = there.slice(200..208).unwrap();
    batch.read(5, from).sge(slice(512..520));
    batch.fetch_add(6, word(256), 3, near.mr.word(520).unwrap());
    let old = near.mr.word(528).unwrap();
    batch.compare_swap(7, word(256), 8, 21, old).fence();
    batch.atomic_write(8, word(264), near.mr.word(64).unwrap());
    a.post(&batch).unwrap();
    let ids: Vec<u64> = (0..7).map(|_| done(&near).wr_id).collect();
    assert_eq!(ids, [1, 3, 4, 5, 6, 7, 8], "2 is unsignaled");
    assert_eq!(a.sends_posted(), 0);
    assert_eq!(bytes(&near, 512, 8), b"readable");
    assert_eq!(bytes(&near, 520, 8), 5u64.to_ne_bytes());
    assert_eq!(bytes(&near, 528, 8), 8u64.to_ne_bytes());
    let got: Vec<_> = (0..3).map(|_| done(&far)).collect();
    let what: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(what, [(100, 4), (101, 6), (102, 0)]);
    assert_eq!(got[1].imm, *b"imm!");
    assert_eq!(got[2].opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!(bytes(&far, 0, 4), b"sent");
    assert_eq!(bytes(&far, 16, 6), b"inline");
    assert_eq!(bytes(&far, 128, 4), b"sent");
    assert_eq!(bytes(&far, 256, 8), 21u64.to_ne_bytes());
    assert_eq!(bytes(&far, 264, 8), 77u64.to_ne_bytes());
}

#[test]
fn windows_and_keys_are_bound_and_taken_back() {
    let hosts = [Host::start(), Host::start()];
    let [near, far] = [0, 1].map(|n| hosts[n].end());
    let all = ALL | xroce_verbs::Access::MW_BIND;
    let mr = far.pd.alloc_mr(4096, all).unwrap();
    let [a, b] = pair(&near, &far);
    let rights = xroce_verbs::Access::REMOTE_WRITE;
    let mut one = far.pd.alloc_mw::<Type1>().unwrap();
    let two = far.pd.alloc_mw::<Type2>().unwrap();
    let by_call = one.bind(mr.slice(64..80).unwrap(), rights).unwrap();
    let mut bind = SendBatch::new();
    bind.bind(50, &two, 7, mr.slice(96..112).unwrap(), rights);
    b.post(&bind).unwrap();
    assert_eq!(done(&far).wr_id, 50);
    let by_request = two.remote(7, mr.slice(96..112).unwrap(), rights);
    let mut batch = SendBatch::new();
    batch.write(1, by_call.slice(4..8).unwrap()).inline(b"one!");
    batch.write(2, by_request).inline(b"two!");
    a.post(&batch).unwrap();
    assert_eq!((done(&near).wr_id, done(&near).wr_id), (1, 2));
    let mut seen = [0; 4];
    mr.read(68, &mut seen).unwrap();
    assert_eq!(&seen, b"one!");
    mr.read(96, &mut seen).unwrap();
    assert_eq!(&seen, b"two!");
    // A region with windows stays until they are unbound; dropped, it is given up.
    let kept = mr.dereg().unwrap_err();
    assert!(kept.to_string().contains("windows"), "{kept}");
    drop(kept.object);
    drop((one, two));
    let report = &hosts[1].daemon.as_ref().unwrap().sessions()[0];
    assert_eq!(report.objects, [1, 1, 0, 1, 0, 0], "the region is gone");
}

#[test]
fn unreliable_services_and_shared_queues_go_through_the_rings() {
    let hosts = [Host::start(), Host::start()];
    let [near, far] = [0, 1].map(|n| hosts[n].end());
    // UC, with a shared receive queue.
    let info = SrqInfo {
        limit: 2,
        ..SrqInfo::default()
    };
    let srq = far.pd.create_srq(&info).unwrap();
    let mut receive = RecvBatch::new();
    for n in 0..3u64 {
        receive.recv(n).sge(far.mr.slice(n * 8..n * 8 + 8).unwrap());
    }
    srq.post(&receive).unwrap();
    assert_eq!(srq.query().unwrap(), (info, 3));
    let a = near.pd.qp::<Uc>(&near.cq, &near.cq).create().unwrap();
    let b = far
        .pd
        .qp::<Uc>(&far.cq, &far.cq)
        .srq(&srq)
        .create()
        .unwrap();
    let (a, b) = (a.init(ALL).unwrap(), b.init(ALL).unwrap());
    let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    let attr = xroce_verbs::ConnectAttr::default();
    let a = a.connect(&ends[1], &attr).unwrap();
    let b = b.connect(&ends[0], &attr).unwrap();
    let mut batch = SendBatch::new();
    batch.send(1).inline(b"one");
    batch.send(2).inline(b"two");
    a.post(&batch).unwrap();
    assert_eq!((done(&near).wr_id, done(&near).wr_id), (1, 2));
    assert_eq!((done(&far).wr_id, done(&far).wr_id), (0, 1));
    assert_eq!(bytes(&far, 8, 3), b"two");
    let refused = b.post_recv(&receive).unwrap_err().to_string();
    assert!(refused.contains("shared receive queue"), "{refused}");
    let event = far.context.wait_event(LONG).unwrap().unwrap();
    assert!(srq.is_source_of(&event) && event.event == Event::SrqLimitReached);
    // Datagrams.
    let key = QKey::new(0x1234);
    let [a, b] = [&near, &far].map(|end| {
        let qp = end.pd.qp::<Ud>(&end.cq, &end.cq).create().unwrap();
        qp.init(key).unwrap().activate().unwrap()
    });
    let mut receive = RecvBatch::new();
    receive.recv(9).sge(far.mr.slice(100..200).unwrap());
    b.post_recv(&receive).unwrap();
    let gid = far.context.gid(0).unwrap();
    let ah = near.pd.create_ah(&AhAttr::to(gid)).unwrap();
    let mut batch = SendBatch::new();
    batch.send_to(7, ah.to(b.qpn(), key)).inline(b"to you");
    a.post(&batch).unwrap();
    assert_eq!(done(&near).wr_id, 7);
    assert_eq!(
        (done(&far).wr_id, bytes(&far, 140, 6)),
        (9, b"to you".to_vec())
    );
    // Another domain's handle is refused at once.
    let other = near.context.alloc_pd().unwrap();
    let foreign = other.create_ah(&AhAttr::to(gid)).unwrap();
    let mut batch = SendBatch::new();
    batch.send_to(8, foreign.to(b.qpn(), key)).inline(b"no");
    let refused = a.post(&batch).unwrap_err().to_string();
    assert!(refused.contains("another protection domain"), "{refused}");
}

#[test]
fn completion_queues_are_resized_with_what_is_in_them() {
    let hosts = [Host::start(), Host::start()];
    let [near, far] = [0, 1].map(|n| hosts[n].end());
    let cq = near.context.create_cq(4).unwrap();
    let a = near.pd.qp::<xroce_verbs::Rc>(&cq, &cq).create().unwrap();
    let b = far
        .pd
        .qp::<xroce_verbs::Rc>(&far.cq, &far.cq)
        .create()
        .unwrap();
    let (a, b) = (a.init(ALL).unwrap(), b.init(ALL).unwrap());
    let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    let attr = xroce_verbs::ConnectAttr::default();
    let a = a.connect(&ends[1], &attr).unwrap();
    let _b = b.connect(&ends[0], &attr).unwrap();
    let there = far.mr.remote().unwrap();
    let post = |id| {
        let mut batch = SendBatch::new();
        batch.write(id, there).inline(b"x");
        a.post(&batch).unwrap();
    };
    post(1);
    post(2);
    // The counters say when both are in the ring.
    while a.counters().unwrap().sends_completed < 2 {}
    cq.resize(64).unwrap();
    assert_eq!(cq.depth(), 64);
    (3..40).for_each(post);
    let ids: Vec<u64> = (1..40)
        .map(|_| cq.next(LONG).unwrap().unwrap().ok().unwrap().wr_id)
        .collect();
    assert_eq!(ids, (1..40).collect::<Vec<_>>());
    assert!(cq.resize(0).is_err());
}

#[test]
fn memory_of_the_heap_is_registered_where_it_lies() {
    let hosts = [Host::start(), Host::start()];
    let [near, far] = [0, 1].map(|n| hosts[n].end());
    let heap = Region::of_heap(vec![7; 100_000]).unwrap();
    let address = heap.address();
    let mr = far.pd.reg_mr_range(&heap, 1..90_000, ALL).unwrap();
    assert_eq!(mr.va().value(), address + 1);
    let [a, _b] = pair(&near, &far);
    let there = mr.remote().unwrap();
    near.mr.write(0, &[9; 50_000]).unwrap();
    let mut batch = SendBatch::new();
    let to = there.slice(10_000..60_000).unwrap();
    batch.write(1, to).sge(near.mr.slice(0..50_000).unwrap());
    batch
        .read(2, there)
        .sge(near.mr.slice(100_000..189_999).unwrap());
    a.post(&batch).unwrap();
    assert_eq!((done(&near).wr_id, done(&near).wr_id), (1, 2));
    let mut seen = vec![0; 100_000];
    heap.read_at(0, &mut seen).unwrap();
    assert!(seen[..10_001].iter().all(|&b| b == 7));
    assert!(seen[10_001..60_001].iter().all(|&b| b == 9));
    assert!(seen[60_001..].iter().all(|&b| b == 7));
    assert_eq!(bytes(&near, 100_000, 89_999), seen[1..90_000]);
}

#[test]
fn memory_that_cannot_be_shared_is_reached_across() {
    let hosts = [Host::start(), Host::start()];
    let [near, far] = [0, 1].map(|n| hosts[n].end());
    // Its file is not this region's to hand on.
    let (fixed, _file) = Region::with_file(50_000).unwrap();
    let refused = far.pd.reg_mr(&fixed, ALL).unwrap_err().to_string();
    assert!(refused.contains("no atomics"), "{refused}");
    let plain = ALL.difference(xroce_verbs::Access::REMOTE_ATOMIC);
    let mr = far.pd.reg_mr_range(&fixed, 5..40_005, plain).unwrap();
    assert_eq!(mr.va().value(), fixed.address() + 5);
    let [a, b] = pair(&near, &far);
    let mut receive = RecvBatch::new();
    receive.recv(1).sge(mr.slice(30_000..40_000).unwrap());
    b.post_recv(&receive).unwrap();
    near.mr.write(0, &[9; 20_000]).unwrap();
    let there = mr.remote().unwrap();
    let mut batch = SendBatch::new();
    let slice = |range| near.mr.slice(range).unwrap();
    batch.write(1, there).sge(slice(0..20_000));
    batch.send(2).sge(slice(0..5_000));
    batch.read(3, there).sge(slice(50_000..90_000));
    a.post(&batch).unwrap();
    let ids = [done(&near), done(&near), done(&near)].map(|wc| wc.wr_id);
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(done(&far).byte_len, 5_000);
    let mut seen = vec![0; 40_000];
    mr.read(0, &mut seen).unwrap();
    let expected = |n: usize| {
        if (0..20_000).contains(&n) || (30_000..35_000).contains(&n) {
            9
        } else {
            0
        }
    };
    assert!(seen.iter().enumerate().all(|(n, &b)| b == expected(n)));
    assert_eq!(bytes(&near, 50_000, 40_000), seen);
}

#[test]
fn memory_is_registered_while_others_write_to_it() {
    const THREADS: u64 = 3;
    let hosts = [Host::start(), Host::start()];
    let [near, far] = [0, 1].map(|n| hosts[n].end());
    let [a, _b] = pair(&near, &far);
    let heap = Region::of_heap(vec![0; 8 << 20]).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let words = (heap.len() / 8) as u64 - 8;
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (heap, stop) = (&heap, &stop);
                scope.spawn(move || {
                    let first = (8 - heap.address() % 8) % 8;
                    let mut count = 0u64;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        // All over the memory, each its own words.
                        let word = (count * 4099 * THREADS + thread) % (words / THREADS * THREADS);
                        let word = word / THREADS * THREADS + thread;
                        heap.fetch_add_at(first + word * 8, 1).unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        // Registered anew and given back while they write.
        for _ in 0..4 {
            let mr = far.pd.reg_mr(&heap, ALL).unwrap();
            let mut batch = SendBatch::new();
            let there = mr.remote().unwrap();
            batch
                .read(1, there.slice(0..4096).unwrap())
                .sge(near.mr.slice(0..4096).unwrap());
            a.post(&batch).unwrap();
            assert_eq!(done(&near).wr_id, 1);
            mr.dereg().unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect()
    });
    let mut all = vec![0; heap.len()];
    heap.read_at(0, &mut all).unwrap();
    let first = usize::try_from((8 - heap.address() % 8) % 8).unwrap();
    let sum: u64 = all[first..]
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .sum();
    assert_eq!(sum, counts.iter().sum::<u64>(), "no write was lost");
    // What a peer sees is what is there.
    let mr = far.pd.reg_mr(&heap, ALL).unwrap();
    let mut batch = SendBatch::new();
    let there = mr.remote().unwrap().slice(0..1 << 19).unwrap();
    batch.read(2, there).sge(near.mr.slice(0..1 << 19).unwrap());
    a.post(&batch).unwrap();
    assert_eq!(done(&near).wr_id, 2);
    assert_eq!(bytes(&near, 0, 1 << 19), all[..1 << 19]);
}

#[test]
fn a_daemon_has_several_devices() {
    let dir = TempDir::new().unwrap();
    let device = |name: &str| DeviceConfig {
        name: name.to_owned(),
        ..DeviceConfig::new(Below::Udp {
            addr: address(),
            ifname: None,
        })
    };
    let socket = dir.path().join("s");
    let devices = vec![device("one"), device("two")];
    let daemon = Daemon::start(DaemonConfig::new(&socket, devices)).unwrap();
    assert_eq!(daemon.devices(), ["one", "two"]);
    let attach = |name| Context::attach(&socket, name);
    let ends = [Some("two"), None].map(|name| End::of(attach(name).unwrap()));
    let names = [0, 1].map(|n: usize| ends[n].context.name().to_owned());
    assert!(
        names[0].starts_with("two") && names[1].starts_with("one"),
        "{names:?}"
    );
    assert_ne!(ends[0].context.gid(0), ends[1].context.gid(0));
    ping_pong(&ends[0], &ends[1]);
    let refused = attach(Some("three")).unwrap_err().to_string();
    assert!(
        refused.contains("\"three\"") && refused.contains("one, two"),
        "{refused}"
    );
    // Two of one name are a mistake.
    let twice = DaemonConfig::new(dir.path().join("t"), vec![device("one"), device("one")]);
    let refused = Daemon::start(twice).unwrap_err().to_string();
    assert!(refused.contains("two devices are called"), "{refused}");
}

#[test]
fn the_end_of_the_daemon_flushes_what_is_posted() {
    let mut hosts = [Host::start(), Host::start()];
    let [near, far] = [0, 1].map(|n| hosts[n].end());
    let [a, b] = pair(&near, &far);
    for n in 0..5 {
        posted(&b, &far, n, 0..16);
    }
    let mut batch = SendBatch::new();
    batch.send(1).inline(b"first");
    a.post(&batch).unwrap();
    assert_eq!(done(&near).wr_id, 1);
    assert!(!near.cq.arm(xroce_verbs::Notify::Any).unwrap());
    let waiting = std::thread::spawn({
        let far = far;
        let b = b;
        move || {
            let first = far.cq.next(LONG).unwrap().unwrap();
            // Comes when the daemon ends.
            let flushed = far.cq.next(LONG).unwrap().unwrap();
            (far, b, first, flushed)
        }
    });
    while hosts[1].daemon.as_ref().unwrap().sessions().is_empty() {}
    hosts[1].stop("maintenance");
    let (far, b, first, flushed) = waiting.join().unwrap();
    assert_eq!((first.wr_id, first.status), (0, WcStatus::Success));
    assert_eq!((flushed.wr_id, flushed.status), (1, WcStatus::WrFlushErr));
    let rest: Vec<_> = (0..3)
        .map(|_| far.cq.poll_one().unwrap().unwrap())
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    assert_eq!(rest, [2, 3, 4].map(|n| (n, WcStatus::WrFlushErr)));
    let over = far.cq.next(LONG).unwrap_err().to_string();
    assert!(over.contains("maintenance"), "{over}");
    let event = far.context.wait_event(LONG).unwrap().unwrap();
    assert_eq!(event.event, Event::DeviceFatal);
    assert!(far.context.poll_event().is_err());
    let mut receive = RecvBatch::new();
    receive.recv(1);
    let refused = b.post_recv(&receive).unwrap_err().to_string();
    assert!(refused.contains("maintenance"), "{refused}");
    let refused = far.context.alloc_pd().unwrap_err();
    assert!(matches!(refused, VerbsError::Device { .. }), "{refused}");
    // The other daemon goes on, and so do its processes.
    drop((b, far));
    assert!(near.context.alloc_pd().is_ok());
}

#[test]
fn the_next_daemon_may_begin_while_the_last_one_drains() {
    let mut hosts = [Host::start(), Host::start()];
    let [near, far] = [0, 1].map(|n| hosts[n].end());
    let [a, _b] = pair(&near, &far);
    // Nobody answers any more: what is posted is not completed while it drains.
    drop(hosts[1].daemon.take());
    let mut batch = SendBatch::new();
    batch.send(1).inline(b"nobody is there");
    a.post(&batch).unwrap();
    a.query().unwrap();
    let socket = hosts[0].dir.path().join("xroced.sock");
    let old = hosts[0].daemon.take().unwrap();
    let stopping = std::thread::spawn(move || old.stop("restart"));
    let device = DeviceConfig::new(Below::Udp {
        addr: address(),
        ifname: None,
    });
    let config = DaemonConfig::new(&socket, vec![device]);
    // Until the last one does not listen any more.
    let next = loop {
        match Daemon::start(config.clone()) {
            Ok(next) => break next,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    stopping.join().unwrap();
    let flushed = near.cq.next(LONG).unwrap().unwrap();
    assert_eq!((flushed.wr_id, flushed.status), (1, WcStatus::WrFlushErr));
    // What the last one left behind is not the way to the next one.
    let context = Context::attach(&socket, None).unwrap();
    assert!(context.alloc_pd().is_ok());
    assert_eq!(next.sessions().len(), 1);
}

#[test]
fn a_daemon_that_dies_without_a_word_flushes_too() {
    let mut host = Host::start();
    let [near, far] = [(); 2].map(|()| host.end());
    let [_a, b] = pair(&near, &far);
    posted(&b, &far, 3, 0..16);
    // Dropped: nothing is drained.
    drop(host.daemon.take());
    let wc = far.cq.next(LONG).unwrap().unwrap();
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::WrFlushErr));
}

#[test]
fn a_process_has_what_it_was_given_and_no_more() {
    let dir = TempDir::new().unwrap();
    let device = DeviceConfig::new(Below::Udp {
        addr: address(),
        ifname: None,
    });
    let socket = dir.path().join("s");
    let mut config = DaemonConfig::new(&socket, vec![device]);
    config.limits.qps = 2;
    config.limits.mrs = 1;
    config.limits.bytes = 1 << 20;
    config.limits.queue_depth = 256;
    config.limits.cq_depth = 8192;
    config.sessions = 2;
    let daemon = Daemon::start(config).unwrap();
    let end = End::of(Context::attach(&socket, None).unwrap());
    let limits = end.context.query_device();
    assert_eq!(
        (limits.max_qp, limits.max_mr, limits.max_qp_wr),
        (2, 1, 256)
    );
    let refused = |error: VerbsError, words: &str| {
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
    };
    refused(
        end.pd.alloc_mr(4096, ALL).unwrap_err(),
        "1 memory regions, the limit",
    );
    let qp = || end.pd.qp::<xroce_verbs::Rc>(&end.cq, &end.cq);
    let _two = [qp().create().unwrap(), qp().create().unwrap()];
    refused(qp().create().unwrap_err(), "2 queue pairs, the limit");
    let deep = qp().max_send_wr(512).create().unwrap_err();
    refused(deep, "max_send_wr is 512, the daemon sets a limit of 256");
    refused(end.context.create_cq(10_000).unwrap_err(), "10000");
    let second = Context::attach(&socket, Some(&daemon.devices()[0])).unwrap();
    let third = Context::attach(&socket, None).unwrap_err();
    refused(third, "2 processes are attached, the limit");
    drop(second);
    let taken = Daemon::start(DaemonConfig::new(
        &socket,
        vec![DeviceConfig::new(Below::Udp {
            addr: address(),
            ifname: None,
        })],
    ));
    let taken = taken.unwrap_err().to_string();
    assert!(taken.contains("another daemon listens"), "{taken}");
    let none = Context::attach(&dir.path().join("nothing"), None).unwrap_err();
    refused(none, "is xroced running");
}

/// What each call is refused with, by plain calls.
fn refusals(context: &Context) -> Vec<(Reason, i32)> {
    let raw = RawDevice::of(context).unwrap();
    let pd = raw.alloc_pd().unwrap();
    let cq = raw.create_cq(16, None).unwrap();
    let init = QpInit::rc(pd, cq, cq);
    let qpn = raw.create_qp(&init).unwrap();
    let deep = QpInit {
        max_send_sge: 200,
        ..init
    };
    let refused = [
        raw.query_qp(Qpn::new(0x00ff_1234)).map(drop),
        raw.destroy_qp(Qpn::new(0x00ff_1234)),
        raw.destroy_cq(cq),
        raw.create_cq(0, None).map(drop),
        raw.create_qp(&deep).map(drop),
        raw.modify_qp(qpn, Box::new(QpAttr::state(QpState::Rts)), None),
        raw.dereg_mr(LKey::new(0x100)),
        raw.attach_mcast(qpn, context.gid(0).unwrap()),
    ];
    raw.destroy_qp(qpn).unwrap();
    let errors = refused.into_iter().map(Result::unwrap_err);
    errors
        .map(|error| (error.reason(), error.errno()))
        .collect()
}

#[test]
fn a_refusal_is_the_same_in_this_process_and_by_the_daemon() {
    let here = Context::open(&Device::udp(address()), Drive::default()).unwrap();
    let host = Host::start();
    let refused = refusals(&here);
    assert_eq!(refused, refusals(&host.attach()));
    let (invalid, none, busy) = (22, 2, 16);
    let errnos: Vec<i32> = refused.iter().map(|(_, errno)| *errno).collect();
    assert_eq!(
        errnos,
        [none, none, busy, invalid, invalid, invalid, none, invalid]
    );
}

/// A client of a later release asks something that this daemon does not know, and goes on.
#[test]
fn an_unknown_request_is_refused_and_the_session_goes_on() {
    use rustix::net::RecvFlags;
    use xroce_control::socket::{self, Answer, Kind};
    let host = Host::start();
    let socket = socket::connect_to(&host.dir.path().join("xroced.sock")).unwrap();
    let ask = |request: serde_json::Value| {
        socket::send(&socket, Kind::Request, &request, &[]).unwrap();
        let message = socket::receive(&socket, RecvFlags::empty()).unwrap();
        message.answer::<serde_json::Value>().unwrap()
    };
    let hello = ask(serde_json::json!({"hello": {"program": "later", "of_tomorrow": 1}}));
    assert!(matches!(hello, Answer::Reply(..)), "{hello:?}");
    for opened in [false, true] {
        if opened {
            let open = ask(serde_json::json!({"open": {"device": null}}));
            assert!(matches!(open, Answer::Reply(..)), "{open:?}");
        }
        let Answer::Refused(refusal) = ask(serde_json::json!({"of_tomorrow": {"qpn": 17}})) else {
            panic!("an unknown request was answered");
        };
        assert_eq!(refusal.reason, Reason::Unsupported);
        assert!(refusal.text.contains("of_tomorrow"), "{}", refusal.text);
    }
    let gids = ask(serde_json::json!("gids"));
    assert!(matches!(gids, Answer::Reply(..)), "{gids:?}");
}
