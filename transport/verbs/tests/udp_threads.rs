//! Contexts over UDP sockets on loopback, driven by threads of theirs or by whoever waits.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xroce_verbs::{
    Access, ConnectAttr, Context, Cq, Device, Drive, Event, Mr, Notify, Pd, PollMode, Qp, Rc,
    RecvBatch, SendBatch, VerbsError, WcStatus,
};

const LONG: Duration = Duration::from_secs(60);
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// An address of loopback that no other test has: RoCE has one port, and tests run side by side.
fn address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    // 127.64.0.0/10; nextest runs each test in a process of its own.
    IpAddr::V4(Ipv4Addr::new(127, 64 + n, high, low.clamp(1, 254)))
}

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl End {
    fn new(drive: Drive) -> Self {
        let context = Context::open(&Device::udp(address()), drive).unwrap();
        let pd = context.alloc_pd().unwrap();
        Self {
            cq: context.create_cq(4096).unwrap(),
            mr: pd.alloc_mr(1 << 20, ALL).unwrap(),
            pd,
            context,
        }
    }
}

fn pair(near: &End, far: &End) -> [Qp<Rc>; 2] {
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

fn ping_pong(near: &End, far: &End) {
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

#[test]
fn threads_of_both_contexts_carry_messages() {
    for mode in [PollMode::Adaptive, PollMode::Busy] {
        ping_pong(&End::new(Drive::Thread(mode)), &End::new(Drive::default()));
    }
}

#[test]
fn a_context_moves_while_its_caller_waits() {
    let [near, far] = [Drive::Caller, Drive::default()].map(End::new);
    ping_pong(&near, &far);
}

#[test]
fn several_threads_post_to_one_queue_pair() {
    const THREADS: usize = 4;
    const EACH: u64 = 100;
    let [near, far] = [(); 2].map(|()| End::new(Drive::default()));
    let [a, _b] = pair(&near, &far);
    let counter = far.mr.remote().unwrap().word(0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (a, near) = (&a, &near);
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

fn readable(fd: impl AsFd, timeout: Duration) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

#[test]
fn channels_and_events_have_descriptors_to_poll() {
    let [near, far] = [(); 2].map(|()| End::new(Drive::default()));
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

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let end = End::new(Drive::default());
    assert!(end.cq.next(Duration::from_millis(5)).unwrap().is_none());
    assert!(
        end.context
            .wait_event(Duration::from_millis(5))
            .unwrap()
            .is_none()
    );
    let end = End::new(Drive::Caller);
    assert!(end.cq.next(Duration::from_millis(5)).unwrap().is_none());
    assert!(end.context.poll().unwrap().is_idle());
}

#[test]
fn the_last_object_ends_the_thread_and_frees_the_port() {
    let addr = address();
    for _ in 0..3 {
        let context = Context::open(&Device::udp(addr), Drive::default()).unwrap();
        let cq = Arc::new(context.create_cq(4).unwrap());
        let taken = Context::open(&Device::udp(addr), Drive::Caller).unwrap_err();
        assert!(matches!(taken, VerbsError::Udp(_)), "{taken}");
        drop(context);
        assert!(cq.poll_one().unwrap().is_none(), "it keeps the context");
    }
}

#[test]
fn devices_are_listed_and_wrong_ones_refused() {
    let all = Device::list().unwrap();
    let loopback = Device::Udp {
        addr: Ipv4Addr::LOCALHOST.into(),
        ifname: Some("lo".to_owned()),
    };
    assert!(all.contains(&loopback), "{all:?}");
    for (device, words) in [
        (Device::udp("192.0.2.1".parse().unwrap()), "192.0.2.1"),
        (Device::udp("0.0.0.0".parse().unwrap()), "0.0.0.0"),
        (
            Device::Udp {
                addr: Ipv4Addr::LOCALHOST.into(),
                ifname: Some("nosuch0".to_owned()),
            },
            "nosuch0",
        ),
        #[cfg(feature = "xdp")]
        (Device::xdp("nosuch0"), "nosuch0"),
        #[cfg(not(feature = "xdp"))]
        (Device::xdp("lo"), "without AF_XDP"),
    ] {
        let refused = Context::open(&device, Drive::Caller)
            .unwrap_err()
            .to_string();
        assert!(refused.contains(words), "{refused}");
    }
}
