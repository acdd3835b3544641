//! Messages that are nearly right, or not at all.

use std::os::fd::{AsFd, OwnedFd};

use serde_json::{Value, json};
use xroce_api::Request;
use xroce_control::socket::Kind;
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Cq, Srq};
use xroce_wire::newtypes::{LKey, Qpn};
use xroce_wire::path::AhAttr;

use super::mock::{Mock, Settled};
use super::witness::Witness;
use super::{Host, Random, rounds};

/// One of each kind that takes something.
fn requests(settled: &Settled) -> Vec<Value> {
    let (pd, cq, qpn) = (settled.pd, settled.cq.0.cq, settled.qp.0.qpn);
    let access = Access::LOCAL_WRITE;
    let init = QpInit::rc(pd, cq, cq);
    let attr = SrqAttr {
        max_wr: 8,
        max_sge: 1,
        limit: 0,
    };
    let all = [
        Request::Hello {
            program: "again".to_owned(),
        },
        Request::Open { device: None },
        Request::Gids,
        Request::PKey { index: 0 },
        Request::AllocPd,
        Request::RegMr {
            pd,
            access,
            memory: xroce_api::message::Memory {
                pieces: vec![xroce_api::message::PieceOf {
                    offset: 0,
                    len: 8192,
                }],
                lead: 0,
                len: 8192,
                iova: xroce_wire::newtypes::Va::new(4096),
                across: None,
            },
        },
        Request::DeregMr {
            lkey: settled.mr.0.lkey,
        },
        Request::CreateChannel,
        Request::DestroyChannel { channel: 0 },
        Request::CreateCq {
            depth: 16,
            channel: 0,
        },
        Request::ResizeCq { cq, depth: 32 },
        Request::CreateSrq { pd, attr },
        Request::ModifySrq {
            srq: Srq(0),
            max_wr: Some(9),
            limit: None,
        },
        Request::CreateQp { init },
        Request::ModifyQp {
            qpn,
            attr: Box::new(QpAttr::init(access)),
            path: None,
        },
        Request::QueryQp { qpn },
        Request::DestroyQp { qpn },
        Request::DestroyCq { cq },
        Request::CreateAh {
            pd,
            attr: AhAttr::to(xroce_wire::newtypes::Gid::from_v4([127, 0, 0, 1])),
        },
        Request::Qps { after: None },
        Request::Sessions { after: Some(1) },
    ];
    all.iter()
        .map(|r| serde_json::to_value(r).unwrap())
        .collect()
}

/// Changes something somewhere in it.
fn mutate(value: &mut Value, random: &mut Random) {
    match value {
        Value::Object(fields) if !fields.is_empty() && random.below(8) != 0 => {
            let at = usize::try_from(random.below(fields.len() as u64)).unwrap();
            let (_, inner) = fields.iter_mut().nth(at).unwrap();
            mutate(inner, random);
        }
        Value::Array(items) if !items.is_empty() && random.below(4) != 0 => {
            let at = usize::try_from(random.below(items.len() as u64)).unwrap();
            mutate(&mut items[at], random);
        }
        // Mostly what can be read, so that it gets further.
        Value::Number(n) if random.below(16) != 0 => {
            *n = match random.below(4) {
                0 => random.below(70_000),
                1 => random.below(16),
                2 => n.as_u64().unwrap_or(0) ^ (1 << random.below(16)),
                _ => 1 << random.below(31),
            }
            .into();
        }
        other if random.below(8) == 0 => {
            *other = match random.below(9) {
                0 => Value::Null,
                1 => json!(0),
                2 => json!(u64::MAX),
                3 => json!(-1),
                4 => json!(1u64 << random.below(64)),
                5 => json!("x".repeat(usize::try_from(random.below(2000)).unwrap())),
                6 => json!([[[[]]]]),
                7 => json!({"a": 1}),
                _ => json!(random.below(70_000)),
            }
        }
        _ => {}
    }
}

/// A descriptor of some kind.
fn descriptor(random: &mut Random) -> OwnedFd {
    let open = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
    match random.below(4) {
        0 => open("/dev/zero"),
        1 => open("/proc/self/exe"),
        2 => {
            let (region, file) = xroce_shm::Region::with_file(8192).unwrap();
            drop(region);
            file
        }
        _ => {
            let (read, _write) = std::io::pipe().unwrap();
            read.into()
        }
    }
}

#[test]
fn requests_that_were_changed_are_answered_or_refused() {
    let host = Host::start(|config| {
        // So that nobody is let have much by chance.
        config.limits.queue_bytes = 64 << 20;
    });
    let witness = Witness::start(&host);
    let mut random = Random::new("fuzzed");
    let (mut answered, mut refused, mut closed) = (0u64, 0u64, 0u64);
    for _ in 0..rounds() {
        let settled = Settled::new(&host.socket());
        let all = requests(&settled);
        for _ in 0..60 {
            let at = usize::try_from(random.below(all.len() as u64)).unwrap();
            let mut request = all[at].clone();
            for _ in 0..random.below(3) {
                mutate(&mut request, &mut random);
            }
            let fds: Vec<OwnedFd> = (0..random.below(3))
                .map(|_| descriptor(&mut random))
                .collect();
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match settled.mock.send(&request, &fds) {
                Ok(message) if message.kind == Kind::Reply => answered += 1,
                Ok(_) => refused += 1,
                Err(_) => {
                    closed += 1;
                    break;
                }
            }
        }
    }
    println!("fuzzed: {answered} answered, {refused} refused, {closed} sessions closed");
    assert!(answered > 0 && refused > 0 && closed > 0);
    host.wait_for(2);
    witness.finish();
    host.wait_for(0);
}

#[test]
fn what_is_no_message_ends_the_session_with_the_reason() {
    let host = Host::start(|_| {});
    let mut random = Random::new("garbage");
    for round in 0..rounds() {
        let settled = (round % 2 == 0).then(|| Settled::new(&host.socket()));
        let mock = settled.map_or_else(|| Mock::connect(&host.socket()), |s| s.mock);
        let len = usize::try_from(random.below(200)).unwrap() + 1;
        let mut bytes = random.bytes(len);
        if round % 3 == 0 {
            // The beginning is right.
            let head = u32::from_be_bytes(*b"xrce").to_ne_bytes();
            bytes.iter_mut().zip(head).for_each(|(to, from)| *to = from);
        }
        mock.raw(&bytes).unwrap();
        let said = mock.hear().unwrap_err();
        assert!(
            said.0.contains("message") || said.0.contains("version"),
            "{said:?}"
        );
    }
    host.wait_for(0);
}

#[test]
fn what_belongs_to_others_is_not_there() {
    let host = Host::start(|_| {});
    let [theirs, ours] = [(); 2].map(|()| Settled::new(&host.socket()));
    let (pd, cq, qpn) = (theirs.pd, theirs.cq.0.cq, theirs.qp.0.qpn);
    let init = |pd, cq| QpInit::rc(pd, cq, cq);
    let (own_pd, own_cq) = (ours.pd, ours.cq.0.cq);
    for request in [
        Request::QueryQp { qpn },
        Request::DestroyQp { qpn },
        Request::Counters { qpn },
        Request::Failure { qpn },
        Request::ModifyQp {
            qpn,
            attr: Box::default(),
            path: None,
        },
        Request::DestroyCq { cq },
        Request::ResizeCq { cq, depth: 4 },
        Request::DeregMr {
            lkey: theirs.mr.0.lkey,
        },
        Request::AbandonMr {
            lkey: theirs.mr.0.lkey,
        },
        Request::CreateQp {
            init: init(pd, own_cq),
        },
        Request::CreateQp {
            init: init(own_pd, cq),
        },
        Request::DestroyQp {
            qpn: Qpn::new(0x00ff_fff0),
        },
        Request::DeregMr { lkey: LKey::new(0) },
        Request::DestroyCq { cq: Cq(u32::MAX) },
        Request::CreateCq {
            depth: 4,
            channel: 99,
        },
        Request::CreateSrq {
            pd: Pd(u32::MAX),
            attr: SrqAttr {
                max_wr: 4,
                max_sge: 1,
                limit: 0,
            },
        },
    ] {
        let message = ours.mock.send(&request, &[]).unwrap();
        assert_eq!(message.kind, Kind::Refusal, "{request:?}");
        let body: Value = message.body().unwrap();
        assert_eq!(body["reason"], "not_found", "{request:?}: {body}");
    }
    // Address vectors are not taken from a process.
    let av = json!({"modify_qp": {"qpn": ours.qp.0.qpn, "attr": null, "path": null}});
    assert!(
        ours.mock.send(&av, &[]).is_err(),
        "a request that cannot be read"
    );
    let _ = theirs.mock.send(&Request::Up, &[]).unwrap();
}
