//! Two contexts that move by themselves, whatever moves them.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xroce_verbs::{
    Access, ConnectAttr, Context, Cq, Event, Mr, Notify, Pd, Qp, Rc, RecvBatch, SendBatch, WcStatus,
};

pub const LONG: Duration = Duration::from_secs(60);
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// An address of loopback that no other test has: RoCE has one port, and tests run side by side.
pub fn address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    // 127.64.0.0/10; nextest runs each test in a process of its own.
    IpAddr::V4(Ipv4Addr::new(127, 64 + n, high, low.clamp(1, 254)))
}

pub struct End {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
}

impl End {
    pub fn of(context: Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        Self {
            cq: context.create_cq(4096).unwrap(),
            mr: pd.alloc_mr(1 << 20, ALL).unwrap(),
            pd,
            context,
        }
    }
}

pub fn pair(near: &End, far: &End) -> [Qp<Rc>; 2] {
    let [a, b] = [near, far].map(|end| {
        let qp = end.pd.qp::<Rc>(&end.cq, &end.cq).max_send_wr(256);
        qp.create().unwrap().init(ALL).unwrap()
    });
    let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    // A loaded machine may answer late: 0.5 s, doubled.
    let attr = ConnectAttr {
        timeout: 17,
        ..ConnectAttr::default()
    };
    [
        a.connect(&ends[1], &attr).unwrap(),
        b.connect(&ends[0], &attr).unwrap(),
    ]
}

pub fn ping_pong(near: &End, far: &End) {
    let [a, b] = pair(near, far);
    let mut receive = RecvBatch::new();
    receive.recv(1).sge(far.mr.slice(0..4096).unwrap());
    let mut batch = SendBatch::new();
    batch.send(2).sge(near.mr.slice(0..3000).unwrap());
    for round in 0..20u8 {
        near.mr.write(0, &[round; 3000]).unwrap();
        b.post_recv(&receive).unwrap();
        a.post(&batch).unwrap();
        let wc = near.cq.next(LONG).unwrap().unwrap();
        assert_eq!(wc.ok().unwrap().wr_id, 2);
        let wc = far.cq.next(LONG).unwrap().unwrap();
        assert_eq!(wc.ok().unwrap().byte_len, 3000);
        let mut bytes = vec![0; 3000];
        far.mr.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [round; 3000]);
    }
}

/// Four threads, 100 atomics each, on one queue pair.
pub fn several_threads_post(near: &End, far: &End) {
    const THREADS: usize = 4;
    const EACH: u64 = 100;
    let [a, _b] = pair(near, far);
    let counter = far.mr.remote().unwrap().word(0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let a = &a;
            scope.spawn(move || {
                let mut batch = SendBatch::new();
                let old = near.mr.word(thread * 8).unwrap();
                batch.fetch_add(thread, counter, 1, old);
                let mut posted = 0;
                while posted < EACH {
                    match a.post(&batch) {
                        Ok(()) => posted += 1,
                        // Full: the reaper makes room.
                        Err(_) => std::thread::yield_now(),
                    }
                }
            });
        }
        let mut counts = [0; THREADS];
        while counts.iter().sum::<u64>() < THREADS as u64 * EACH {
            let wc = near.cq.next(LONG).unwrap().expect("a completion");
            counts[usize::try_from(wc.ok().unwrap().wr_id).unwrap()] += 1;
        }
        assert_eq!(counts, [EACH; THREADS]);
        done.store(true, Ordering::Relaxed);
    });
    assert!(done.into_inner());
    assert_eq!(far.mr.fetch_add(0, 0).unwrap(), THREADS as u64 * EACH);
}

pub fn readable(fd: impl AsFd, timeout: Duration) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

pub fn channels_and_events_have_descriptors(near: &End, far: &End) {
    let channel = near.context.create_channel().unwrap();
    let cq = near.context.create_cq_on(16, &channel).unwrap();
    let with_channel = near.pd.qp::<Rc>(&cq, &cq).create().unwrap();
    let a = with_channel.init(ALL).unwrap();
    let b = far.pd.qp::<Rc>(&far.cq, &far.cq).create().unwrap();
    let b = b.init(ALL).unwrap();
    let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    let attr = ConnectAttr::default();
    let (a, _b) = (
        a.connect(&ends[1], &attr).unwrap(),
        b.connect(&ends[0], &attr).unwrap(),
    );
    assert!(!readable(&channel, Duration::ZERO));
    assert!(!cq.arm(Notify::Any).unwrap());
    let mut batch = SendBatch::new();
    batch.write(1, far.mr.remote().unwrap()).inline(b"x");
    a.post(&batch).unwrap();
    assert!(readable(&channel, LONG));
    assert_eq!(channel.wait(&[&cq], LONG).unwrap(), Some(0));
    assert!(!readable(&channel, Duration::ZERO));
    assert!(cq.poll_one().unwrap().unwrap().ok().is_ok());
    assert!(!cq.wait(Duration::ZERO).unwrap(), "it is the channel's");
    // The far end is refused: an event there, an error here.
    assert!(!readable(far.context.async_fd(), Duration::ZERO));
    batch.clear();
    let wrong = xroce_verbs::RemoteMr::new(far.mr.va(), 8, xroce_verbs::RKey::new(1)).unwrap();
    batch.write(2, wrong).inline(b"x");
    a.post(&batch).unwrap();
    assert!(readable(far.context.async_fd(), LONG));
    let events = std::iter::from_fn(|| far.context.wait_event(Duration::ZERO).unwrap());
    let found: Vec<_> = events.map(|e| e.event).collect();
    assert!(found.contains(&Event::QpAccessErr), "{found:?}");
    let wc = cq.next(LONG).unwrap();
    // A queue on a channel does not wait by itself: poll it.
    let wc = wc.or_else(|| {
        channel.wait(&[&cq], LONG).unwrap();
        cq.poll_one().unwrap()
    });
    assert_eq!(wc.unwrap().status, WcStatus::RemAccessErr);
}
