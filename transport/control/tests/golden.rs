//! The messages as they stand on the socket, held against samples of each version.
//!
//! `XROCE_WRITE_DOCS=1` adds samples of new messages. What is there already must not change: a side
//! of another release reads it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use xroce_api::message::{
    Across, Capacity, CaptureMade, CaptureSpec, CaptureStats, CqMade, Farewell, Limits, Memory,
    Opened, Page, Path, PieceOf, QpMade, Reason, Refusal, SessionReport, SrqMade, Welcome,
};
use xroce_api::{Ah, Mr, Mw, MwId, MwType, Request};
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Cq, Srq};
use xroce_wire::newtypes::{Gid, LKey, PKey, PathMtu, Psn, Qpn, RKey, Va};
use xroce_wire::path::{AhAttr, Flow};

const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);
const QPN: Qpn = Qpn::new(0x11);
const SRQ: Srq = Srq(3);
const CQ: Cq = Cq(5);
const PD: Pd = Pd(7);
const MW: MwId = MwId { index: 2, life: 9 };

fn gid() -> Gid {
    Gid::from(IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)))
}

fn memory() -> Memory {
    Memory {
        pieces: vec![PieceOf {
            offset: 4096,
            len: 8192,
        }],
        lead: 16,
        len: 8000,
        iova: Va::new(0x7000),
        across: None,
    }
}

fn across() -> Memory {
    Memory {
        pieces: Vec::new(),
        lead: 0,
        across: Some(Across {
            address: Va::new(0x9000),
            why: "a mapping of a file".to_owned(),
        }),
        ..memory()
    }
}

/// A sample of each request. The compiler does not tell of one that is missing; the test below
/// does.
fn requests() -> Vec<Request> {
    let attr = QpAttr::rtr(
        xroce_wire::path::AddressVector {
            src: gid(),
            dst: gid(),
            src_mac: xroce_wire::newtypes::MacAddr::new([2, 0, 0, 0, 0, 1]),
            dst_mac: xroce_wire::newtypes::MacAddr::new([2, 0, 0, 0, 0, 2]),
            vlan: None,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            src_port: 0xc000,
        },
        PathMtu::Mtu1024,
        Qpn::new(0x12),
        Psn::new(100),
    );
    let path = Path {
        attr: AhAttr::to(gid()),
        flow: Flow::Connected {
            local: QPN,
            peer: Qpn::new(0x12),
        },
    };
    let bind = Bind {
        lkey: LKey::new(0x100),
        va: Va::new(0x7000),
        len: 64,
        access: RIGHTS,
    };
    vec![
        Request::Hello {
            program: "pingpong".to_owned(),
        },
        Request::Open { device: None },
        Request::Open {
            device: Some("xroce0".to_owned()),
        },
        Request::Gids,
        Request::Up,
        Request::PKey { index: 0 },
        Request::SetPKey {
            index: 0,
            pkey: PKey::new(0x8001),
        },
        Request::Stats,
        Request::AllocPd,
        Request::RegMr {
            pd: PD,
            access: RIGHTS,
            memory: memory(),
        },
        Request::RegMr {
            pd: PD,
            access: RIGHTS,
            memory: across(),
        },
        Request::ReregMr {
            lkey: LKey::new(0x100),
            pd: Some(PD),
            access: None,
            memory: Some(memory()),
        },
        Request::DeregMr {
            lkey: LKey::new(0x100),
        },
        Request::AbandonMr {
            lkey: LKey::new(0x100),
        },
        Request::AllocMw {
            pd: PD,
            mw_type: MwType::Type2,
        },
        Request::DeallocMw { mw: MW },
        Request::BindMw { mw: MW, bind },
        Request::CreateChannel,
        Request::DestroyChannel { channel: 4 },
        Request::CreateCq {
            depth: 128,
            channel: 4,
        },
        Request::ResizeCq { cq: CQ, depth: 256 },
        Request::DestroyCq { cq: CQ },
        Request::CreateSrq {
            pd: PD,
            attr: srq_attr(),
        },
        Request::ModifySrq {
            srq: SRQ,
            max_wr: Some(32),
            limit: None,
        },
        Request::QuerySrq { srq: SRQ },
        Request::DestroySrq { srq: SRQ },
        Request::CreateQp {
            init: QpInit::rc(PD, CQ, CQ),
        },
        Request::ModifyQp {
            qpn: QPN,
            attr: Box::new(attr),
            path: Some(path),
        },
        Request::QueryQp { qpn: QPN },
        Request::Counters { qpn: QPN },
        Request::Failure { qpn: QPN },
        Request::DestroyQp { qpn: QPN },
        Request::AttachMcast {
            qpn: QPN,
            group: gid(),
        },
        Request::DetachMcast {
            qpn: QPN,
            group: gid(),
        },
        Request::CreateAh {
            pd: PD,
            attr: AhAttr::to(gid()),
        },
        Request::DestroyAh { ah: Ah::new(6) },
        Request::Capture {
            spec: CaptureSpec::default(),
        },
        Request::CaptureStats,
        Request::EndCapture,
        Request::Report,
        Request::Sessions { after: Some(3) },
        Request::Qps {
            after: Some((3, QPN)),
        },
    ]
}

fn srq_attr() -> SrqAttr {
    SrqAttr {
        max_wr: 16,
        max_sge: 2,
        limit: 4,
    }
}

/// Samples of answers whose shape is that of a structure of their own.
fn answers() -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut add = |name: &str, value: Value| {
        all.insert(name.to_owned(), value);
    };
    fn of<T: Serialize + DeserializeOwned>(value: &T) -> Value {
        let text = serde_json::to_string(value).unwrap();
        let again: T = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
        serde_json::from_str(&text).unwrap()
    }
    add(
        "welcome",
        of(&Welcome {
            release: "0.1.0".to_owned(),
            session: 3,
            devices: vec!["xroce0".to_owned()],
        }),
    );
    add(
        "opened",
        of(&Opened {
            device: "xroce0".to_owned(),
            port: "AF_XDP eth0 queue 0".to_owned(),
            ethernet: true,
            link_mtu: 1500,
            path_mtu: PathMtu::Mtu1024,
            limits: Limits::default(),
        }),
    );
    add(
        "mr",
        of(&Mr {
            lkey: LKey::new(0x100),
            rkey: RKey::new(0x100),
            va: Va::new(0x7000),
            len: 8000,
        }),
    );
    add(
        "mw",
        of(&Mw {
            id: MW,
            rkey: RKey::new(0x200),
        }),
    );
    add(
        "cq_made",
        of(&CqMade {
            cq: CQ,
            ring: Capacity(128),
        }),
    );
    add(
        "srq_made",
        of(&SrqMade {
            srq: SRQ,
            number: 1,
            ring: Capacity(16),
        }),
    );
    add(
        "qp_made",
        of(&QpMade {
            qpn: QPN,
            number: 2,
            send: Capacity(64),
            recv: Some(Capacity(64)),
        }),
    );
    add(
        "capture_made",
        of(&CaptureMade {
            ring: Capacity(1024),
            ethernet: true,
        }),
    );
    add("capture_stats", of(&CaptureStats::default()));
    add(
        "session_page",
        of(&Page {
            items: vec![SessionReport {
                session: 3,
                pid: 100,
                uid: 1000,
                program: "pingpong".to_owned(),
                device: Some("xroce0".to_owned()),
                objects: [1, 1, 0, 1, 0, 0],
                bytes: 8000,
                posted: 10,
                completed: 10,
                stalled: 0,
            }],
            more: false,
        }),
    );
    add(
        "refusal",
        of(&Refusal::new(Reason::NotFound, "no queue pair 0x11")),
    );
    add(
        "farewell",
        of(&Farewell {
            text: "the daemon ends".to_owned(),
        }),
    );
    all
}

fn file() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
    folder.join(format!("v{}.json", xroce_control::VERSION))
}

#[test]
fn messages_are_those_of_the_version() {
    let mut golden: BTreeMap<String, BTreeMap<String, Value>> = match std::fs::read(file()) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap(),
        Err(_) => BTreeMap::new(),
    };
    let mut now = BTreeMap::new();
    for request in requests() {
        let value = serde_json::to_value(&request).unwrap();
        // A name for each: the request's, and a number where there are several.
        let name = match &value {
            Value::String(name) => name.clone(),
            Value::Object(object) => object.keys().next().unwrap().clone(),
            other => panic!("a request is {other}"),
        };
        let name = (1..)
            .map(|n| {
                if n == 1 {
                    name.clone()
                } else {
                    format!("{name} {n}")
                }
            })
            .find(|name| !now.contains_key(name))
            .unwrap();
        now.insert(name, value);
    }
    for (kind, samples) in [("requests", now), ("answers", answers())] {
        let kept = golden.entry(kind.to_owned()).or_default();
        for (name, value) in samples {
            if std::env::var_os("XROCE_WRITE_DOCS").is_some() {
                kept.entry(name.clone()).or_insert_with(|| value.clone());
            }
            assert_eq!(kept.get(&name), Some(&value), "{kind}: {name}");
        }
    }
    if std::env::var_os("XROCE_WRITE_DOCS").is_some() {
        let text = serde_json::to_string_pretty(&golden).unwrap();
        std::fs::write(file(), text + "\n").unwrap();
    }
}

#[test]
fn every_request_has_a_sample() {
    let unknown = serde_json::from_value::<Request>(json!("nonsense")).unwrap_err();
    let text = unknown.to_string();
    let known: Vec<&str> = text.split('`').skip(3).step_by(2).collect();
    assert!(known.len() > 30, "{text}");
    let golden: BTreeMap<String, BTreeMap<String, Value>> =
        serde_json::from_slice(&std::fs::read(file()).unwrap()).unwrap();
    for name in known {
        assert!(golden["requests"].contains_key(name), "{name}");
    }
}

#[test]
fn samples_are_read_and_what_a_newer_side_adds_is_ignored() {
    let golden: BTreeMap<String, BTreeMap<String, Value>> =
        serde_json::from_slice(&std::fs::read(file()).unwrap()).unwrap();
    for (name, value) in &golden["requests"] {
        let read: Request = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(&serde_json::to_value(&read).unwrap(), value, "{name}");
        let Value::Object(object) = value else {
            continue;
        };
        let mut newer = object.clone();
        for fields in newer.values_mut() {
            fields
                .as_object_mut()
                .unwrap()
                .insert("of_tomorrow".to_owned(), json!([1, 2]));
        }
        let read: Request = serde_json::from_value(Value::Object(newer)).unwrap();
        assert_eq!(&serde_json::to_value(&read).unwrap(), value, "{name}");
    }
    let refusal = json!({"reason": "of_tomorrow", "text": "why", "code": 7});
    let refusal: Refusal = serde_json::from_value(refusal).unwrap();
    assert_eq!(refusal.reason, Reason::Other);
}
