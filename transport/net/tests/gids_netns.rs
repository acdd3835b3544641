//! The GID table of a real interface, and what is told when its addresses change.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xroce_net::gids::{Change, GidTable, Watch};
use xroce_testnet::{IFNAME, NetnsPair};
use xroce_wire::newtypes::Gid;

/// Whether something changes within five seconds.
fn wait(watch: &Watch) -> bool {
    let limit = Timespec::try_from(Duration::from_secs(5)).unwrap();
    let ready = poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&limit)).unwrap();
    ready == 1 && watch.changed().unwrap()
}

#[test]
fn netns_addresses_come_and_go() {
    let Some(pair) = NetnsPair::or_skip(1500, 1) else {
        return;
    };
    let host = &pair.a;
    host.run(|| {
        let watch = Watch::open().unwrap();
        let mut table = GidTable::open(IFNAME).unwrap();
        let first: Vec<Gid> = table.iter().map(|(_, e)| e.gid).collect();
        assert_eq!(first[..2], [host.ip(false).into(), host.ip(true).into()]);
        assert!(table.iter().skip(2).all(|(_, e)| e.link_local));
        // What making the pair caused may still arrive.
        watch.changed().unwrap();

        let extra = Gid::from_v4([10, 77, 9, 9]);
        host.ip_cmd(&format!("addr add 10.77.9.9/24 dev {IFNAME}"))
            .unwrap();
        assert!(wait(&watch), "an address came");
        let changes = table.refresh().unwrap();
        let added = changes.iter().find_map(|c| match c {
            Change::Added(index, e) if e.gid == extra => Some(*index),
            _ => None,
        });
        assert_eq!(table.find(extra), added);

        host.ip_cmd(&format!("addr del 10.77.9.9/24 dev {IFNAME}"))
            .unwrap();
        assert!(wait(&watch), "an address went");
        let removed = table.refresh().unwrap().into_iter().any(|c| match c {
            Change::Removed(index, e) => e.gid == extra && Some(index) == added,
            Change::Added(..) => false,
        });
        assert!(removed);
        assert_eq!(table.find(extra), None);
        assert_eq!(
            table.find(first[0]),
            Some(0),
            "the others stay where they are"
        );
    });
    let error = host.run(|| GidTable::open("nothing0")).unwrap_err();
    assert!(error.to_string().contains(IFNAME), "{error}");
}
