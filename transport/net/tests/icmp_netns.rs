//! ICMP errors as a real kernel makes them.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use xroce_api::IcmpReason as Reason;
use xroce_net::icmp::IcmpWatch;
use xroce_testnet::NetnsPair;

#[test]
fn netns_a_closed_port_is_reported_with_who_and_what() {
    let Some(pair) = NetnsPair::or_skip(1500, 1) else {
        return;
    };
    for v6 in [false, true] {
        let (here, there) = (pair.a.ip(v6), pair.b.ip(v6));
        pair.a.run(|| {
            let mut watch = IcmpWatch::open().unwrap();
            let socket = UdpSocket::bind((here, 0)).unwrap();
            let port = socket.local_addr().unwrap().port();
            // Nobody listens there; a datagram to another port is answered too, and is not ours.
            for to in [9, 4791] {
                socket
                    .send_to(&[0; 32], SocketAddr::new(there, to))
                    .unwrap();
            }
            let mut seen = Vec::new();
            for _ in 0..500 {
                watch.poll(&mut |error| seen.push(error)).unwrap();
                if !seen.is_empty() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(seen.len(), 1, "{seen:?}");
            let error = seen[0];
            assert_eq!(error.reason, Reason::PortUnreachable);
            assert_eq!((error.from, error.src, error.dst), (there, here, there));
            assert_eq!(error.src_port, port);
        });
    }
}
