//! Contexts over UDP sockets on loopback, driven by threads of theirs or by whoever waits.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

mod threads;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use xroce_verbs::{Context, Device, Drive, PollMode, VerbsError};

use threads::{End, address, ping_pong};

fn end(drive: Drive) -> End {
    End::of(Context::open(&Device::udp(address()), drive).unwrap())
}

#[test]
fn threads_of_both_contexts_carry_messages() {
    for mode in [PollMode::Adaptive, PollMode::Busy] {
        ping_pong(&end(Drive::Thread(mode)), &end(Drive::default()));
    }
}

#[test]
fn a_context_moves_while_its_caller_waits() {
    let [near, far] = [Drive::Caller, Drive::default()].map(end);
    ping_pong(&near, &far);
}

#[test]
fn several_threads_post_to_one_queue_pair() {
    let [near, far] = [(); 2].map(|()| end(Drive::default()));
    threads::several_threads_post(&near, &far);
}

#[test]
fn channels_and_events_have_descriptors_to_poll() {
    let [near, far] = [(); 2].map(|()| end(Drive::default()));
    threads::channels_and_events_have_descriptors(&near, &far);
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let still = end(Drive::default());
    assert!(still.cq.next(Duration::from_millis(5)).unwrap().is_none());
    assert!(
        still
            .context
            .wait_event(Duration::from_millis(5))
            .unwrap()
            .is_none()
    );
    let end = end(Drive::Caller);
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
