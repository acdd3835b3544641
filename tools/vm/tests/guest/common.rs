//! What the tests have in common.

use std::path::Path;
use std::time::Duration;

use xroce_vm::{Agent, Answer, Cache, Image, Kernel, Net, Refused, Vlan, VmConfig};

pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) fn kernel() -> Option<Kernel> {
    match std::env::var("XROCE_VM").ok()?.as_str() {
        "6.1" => Some(Kernel::V6_1),
        "6.12" => Some(Kernel::V6_12),
        other => panic!("XROCE_VM={other}: 6.1 or 6.12"),
    }
}

pub(crate) fn image() -> Option<Image> {
    let kernel = kernel()?;
    let cache = Cache::from_env().unwrap();
    Some(xroce_vm::prepare(&cache, kernel, &[], &mut |line| eprintln!("{line}")).unwrap())
}

/// Machine `n` of two that are connected to each other.
pub(crate) fn config(image: &Image, dir: &Path, n: u8) -> VmConfig {
    let net = Net::Dgram {
        local: dir.join(format!("net{n}")),
        remote: dir.join(format!("net{}", 3 - n)),
    };
    let mut config = VmConfig::new(image.clone(), net, dir.join(format!("vm{n}")));
    config.name = format!("rxe{n}");
    config.mac[5] = n;
    config.v4 = Some((format!("10.0.0.{n}").parse().unwrap(), 24));
    config.v6 = Some((format!("fd00::{n}").parse().unwrap(), 64));
    config.vlan = Some(Vlan {
        id: 5,
        v4: (format!("10.5.0.{n}").parse().unwrap(), 24),
        v6: (format!("fd05::{n}").parse().unwrap(), 64),
    });
    config
}

pub(crate) fn ask(agent: &mut Agent, line: &str) -> Answer {
    let (verb, args) = line.split_once(' ').unwrap_or((line, ""));
    agent.call(verb, args, None, SOON).unwrap()
}

pub(crate) fn refused(agent: &mut Agent, line: &str) -> String {
    let (verb, args) = line.split_once(' ').unwrap_or((line, ""));
    match agent.call(verb, args, None, SOON) {
        Ok(answer) => panic!("{line}: {answer:?}"),
        Err(error) => error.downcast::<Refused>().unwrap().text,
    }
}

/// The GID table's entry for an address.
pub(crate) fn gid(agent: &mut Agent, addr: &str) -> (u32, String) {
    let gids = agent.gids().unwrap();
    let gid = gids.iter().find(|gid| gid.addr.to_string() == addr);
    let gid = gid.unwrap_or_else(|| panic!("{addr} is not among {gids:?}"));
    assert!(gid.v2);
    (gid.index, gid.hex())
}

/// Brings an RC or UC queue pair up.
pub(crate) fn connect(agent: &mut Agent, qp: u32, kind: &str, peer: (u32, &str), index: u32) {
    let (qpn, dgid) = peer;
    ask(agent, &format!("modify qp={qp} state=init access=0xf"));
    let reliable = if kind == "rc" {
        " rd_in=4 rnr_timer=12"
    } else {
        ""
    };
    ask(
        agent,
        &format!(
            "modify qp={qp} state=rtr mtu=5 dqpn=0x{qpn:x} rq_psn=0x100{reliable} dgid={dgid} \
             gid_index={index}"
        ),
    );
    let reliable = if kind == "rc" {
        " timeout=14 retry=6 rnr=7 rd_out=4"
    } else {
        ""
    };
    ask(
        agent,
        &format!("modify qp={qp} state=rts sq_psn=0x100{reliable}"),
    );
}

/// Statuses of the next `n` completions.
pub(crate) fn statuses(agent: &mut Agent, cq: u32, n: usize) -> Vec<u32> {
    let completions = agent.poll(cq, n, SOON).unwrap();
    assert_eq!(completions.len(), n, "{completions:?}");
    completions.iter().map(|wc| wc.status).collect()
}

/// The guest's bytes, by the same formula.
pub(crate) fn fill(len: u64, seed: u64) -> Vec<u8> {
    (0..len)
        .map(|p| {
            (p + 1)
                .wrapping_mul(seed | 1)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        })
        .map(|x| x.to_be_bytes()[0])
        .collect()
}

pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
