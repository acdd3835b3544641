//! Everything survives the way through its bytes, and any bytes give a value or an error.
#![allow(clippy::unwrap_used, reason = "a test: what fails, fails it")]

use proptest::prelude::*;
use xroce_abi::send::{Destination, LEN_MAX};
use xroce_abi::{BadEntry, ENTRY, INLINE_MAX, SGES_MAX, completion, event, recv, send};
use xroce_proto::memory::{Access, Bind};
use xroce_proto::wc::{Completion, Cq, Event, Srq, WcFlags, WcOpcode, WcStatus};
use xroce_proto::wr::{Data, Placement, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::newtypes::{LKey, QKey, Qpn, RKey, Va};

fn op() -> impl Strategy<Value = SendOp> {
    let parts = (
        any::<u64>(),
        any::<u32>(),
        any::<[u8; 4]>(),
        any::<(u64, u64)>(),
        any::<(u32, u8, bool)>(),
    );
    (0..12u8, parts).prop_map(
        |(kind, (va, key, imm, (a, b), (len, bits, whole_region)))| {
            let (va, rkey) = (Va::new(va), RKey::new(key));
            match kind {
                0 => SendOp::Send,
                1 => SendOp::SendImm(imm),
                2 => SendOp::Write { va, rkey },
                3 => SendOp::WriteImm { va, rkey, imm },
                4 => SendOp::Read { va, rkey },
                5 => SendOp::SendInv { rkey },
                6 => SendOp::CompareSwap {
                    va,
                    rkey,
                    compare: a,
                    swap: b,
                },
                7 => SendOp::FetchAdd { va, rkey, add: a },
                8 => SendOp::AtomicWrite { va, rkey },
                9 => SendOp::Flush {
                    va,
                    rkey,
                    len,
                    placement: Placement::from_bits_truncate(bits),
                    whole_region,
                },
                10 => SendOp::BindMw {
                    rkey,
                    bind: Bind {
                        lkey: LKey::new(len),
                        va,
                        len: a,
                        access: Access::from_bits_truncate(len),
                    },
                },
                _ => SendOp::LocalInv { rkey },
            }
        },
    )
}

fn sges() -> impl Strategy<Value = Vec<Sge>> {
    let sge = (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(va, len, lkey)| Sge {
        va: Va::new(va),
        len,
        lkey: LKey::new(lkey),
    });
    prop::collection::vec(sge, 0..=SGES_MAX)
}

/// The entry of an ordinary SEND.
fn plain() -> [u8; ENTRY] {
    let wr = SendWr {
        wr_id: 7,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        data: Data::Sges(&[]),
    };
    let mut entry = [0; ENTRY];
    assert_eq!(send::encode(&wr, None, &mut entry), Ok(1));
    entry
}

proptest! {
    #[test]
    fn sends_survive(
        op in op(),
        wr_id: u64,
        flags in 0..8u32,
        sges in sges(),
        inline in prop::option::of(prop::collection::vec(any::<u8>(), 0..=INLINE_MAX)),
        datagram in prop::option::of((any::<u32>(), 0..1u32 << 24, any::<u32>())),
        cut in 0..=INLINE_MAX,
    ) {
        let flags = SendFlags::from_bits_truncate(flags);
        let halves = inline.as_deref().map(|b| b.split_at(cut.min(b.len())));
        let parts = halves.map(|(a, b)| [a, b]);
        let data = parts.as_ref().map_or(Data::Sges(&sges), |p| Data::Inline(p));
        let wr = SendWr { wr_id, op, flags, data };
        let to = datagram.map(|(ah, qpn, qkey)| Destination {
            ah,
            qpn: Qpn::new(qpn),
            qkey: QKey::new(qkey),
        });
        let mut bytes = [0xaa; LEN_MAX];
        let wrote = send::encode(&wr, to.as_ref(), &mut bytes);
        if to.is_some() && !matches!(op, SendOp::Send | SendOp::SendImm(_)) {
            let is_code = matches!(wrote, Err(BadEntry::Code { .. }));
            prop_assert!(is_code);
            return Ok(());
        }
        let entries = wrote.unwrap();
        prop_assert_eq!(send::announced(bytes.first_chunk().unwrap()), Ok(entries));
        let used = &bytes[..entries * ENTRY];
        prop_assert!(send::decode(&used[..used.len() - 1]).is_err());
        let back = send::decode(used).unwrap();
        let got = back.wr();
        prop_assert_eq!((got.wr_id, got.op, got.flags, back.to), (wr_id, op, flags, to));
        match (got.data, &inline) {
            (Data::Sges(s), None) => prop_assert_eq!(s, &sges[..]),
            (Data::Inline(parts), Some(b)) => prop_assert_eq!(parts.concat(), b.clone()),
            _ => prop_assert!(false, "the kind of data changed"),
        }
    }

    /// What is decoded is what the bytes say: encoded again, the same bytes come out.
    #[test]
    fn any_bytes_of_a_send_give_a_value_or_an_error(
        noise in prop::collection::vec(any::<u8>(), LEN_MAX),
        tame in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let mut bytes = noise;
        // Most bytes of a valid request are 0.
        for at in tame {
            let at = at.index(48);
            bytes[at] = 0;
        }
        if let Ok(n) = send::announced(bytes.first_chunk().unwrap()) {
            let used = &bytes[..n * ENTRY];
            if let Ok(posted) = send::decode(used) {
                let mut again = [0; LEN_MAX];
                prop_assert_eq!(send::encode(&posted.wr(), posted.to.as_ref(), &mut again), Ok(n));
                prop_assert_eq!(&again[..48], &used[..48]);
            }
        }
    }

    #[test]
    fn receives_survive(wr_id: u64, sges in sges()) {
        let wr = RecvWr { wr_id, sges: &sges };
        let mut bytes = [0xaa; recv::ENTRIES_MAX * ENTRY];
        let entries = recv::encode(&wr, &mut bytes).unwrap();
        prop_assert_eq!(entries, recv::entries(sges.len()));
        let back = recv::decode(&bytes[..entries * ENTRY]).unwrap();
        prop_assert_eq!((back.wr().wr_id, back.wr().sges), (wr_id, &sges[..]));
    }

    #[test]
    fn any_bytes_of_a_receive_give_a_value_or_an_error(
        noise in prop::collection::vec(any::<u8>(), recv::ENTRIES_MAX * ENTRY),
        head in prop::option::of((0..40u8, 0..12u8)),
    ) {
        let mut bytes = noise;
        if let Some((sges, entries)) = head {
            bytes[..8].copy_from_slice(&[sges, entries, 0, 0, 0, 0, 0, 0]);
        }
        if let Ok(n) = recv::announced(bytes.first_chunk().unwrap()) {
            let _ = recv::decode(&bytes[..n * ENTRY]);
        }
        let _ = recv::decode(&bytes[..3]);
    }

    #[test]
    fn any_bytes_of_completions_and_events_give_a_value_or_an_error(
        wc: [u8; completion::LEN],
        ev: [u8; event::LEN],
    ) {
        if let Ok(value) = completion::decode(&wc) {
            prop_assert_eq!(completion::encode(&value), wc);
        }
        if let Ok((source, value)) = event::decode(&ev) {
            prop_assert_eq!(event::encode(source, value), ev);
        }
    }
}

#[test]
fn completions_survive() {
    let statuses = [
        WcStatus::Success,
        WcStatus::LocProtErr,
        WcStatus::GeneralErr,
    ];
    for status in statuses {
        for opcode in [
            WcOpcode::Send,
            WcOpcode::AtomicWrite,
            WcOpcode::RecvRdmaWithImm,
        ] {
            let wc = Completion {
                wr_id: u64::MAX - 1,
                status,
                opcode,
                flags: WcFlags::all(),
                byte_len: 0x1234_5678,
                qpn: Qpn::new(0x00ff_fffe),
                imm: [1, 2, 3, 4],
                src_qp: Qpn::new(0x12),
            };
            assert_eq!(completion::decode(&completion::encode(&wc)), Ok(wc));
        }
    }
}

#[test]
fn events_survive() {
    for source in [
        event::Source::Port,
        event::Source::Qp(Qpn::new(0x00ff_ffff)),
        event::Source::Cq(Cq(u32::MAX)),
        event::Source::Srq(Srq(5)),
    ] {
        for what in [Event::CqErr, Event::QpFatal, Event::GidChange] {
            let bytes = event::encode(source, what);
            assert_eq!(event::decode(&bytes), Ok((source, what)));
        }
    }
}

#[test]
fn a_byte_that_is_wrong_is_named() {
    let says = |at: usize, value: u8, words: &str| {
        let mut entry = plain();
        entry[at] = value;
        let why = send::announced(&entry).and_then(|_| send::decode(&entry).map(|_| ()));
        let why = why.unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
    };
    says(0, 12, "operation 12");
    says(0, 0xff, "operation 255");
    says(1, 0x0a, "flags 10");
    says(2, 33, "SGEs 33, the limit is 32");
    says(2, 2, "1 entries whose contents take 2");
    says(3, 0, "0 entries whose contents take 1");
    says(4, 1, "not inline is 0x1");
    says(6, 1, "bytes 6 and 7");
    says(16, 1, "the address is 0x1");
    says(24, 1, "the key");
    says(28, 1, "the immediate");
    says(32, 1, "the first operand");
    says(40, 1, "the second operand");
    let mut datagram = plain();
    datagram[1] |= 0x40;
    datagram[0] = 2;
    let why = send::decode(&datagram).unwrap_err().to_string();
    assert!(why.contains("operation of a datagram 2"), "{why}");
    datagram[0] = 0;
    datagram[35] = 1;
    let why = send::decode(&datagram).unwrap_err().to_string();
    assert!(why.contains("24 bits of a QP"), "{why}");
}

#[test]
fn limits_are_said_to_whoever_posts() {
    let sge = Sge {
        va: Va::new(0),
        len: 0,
        lkey: LKey::new(0),
    };
    let sges = [sge; SGES_MAX + 1];
    let mut bytes = [0; LEN_MAX];
    let why = recv::encode(
        &RecvWr {
            wr_id: 0,
            sges: &sges,
        },
        &mut bytes,
    )
    .unwrap_err();
    assert_eq!(why.to_string(), "SGEs 33, the limit is 32");
    let long = [0; INLINE_MAX + 1];
    let wr = |data| SendWr {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        data,
    };
    let parts: [&[u8]; 1] = [&long];
    let why = send::encode(&wr(Data::Inline(&parts)), None, &mut bytes).unwrap_err();
    assert_eq!(why.to_string(), "inline bytes 513, the limit is 512");
    let parts = [&long[1..]];
    let why = send::encode(&wr(Data::Inline(&parts)), None, &mut bytes[..64]);
    let (given, needed) = (64, 576);
    assert_eq!(why, Err(BadEntry::Short { given, needed }));
    assert_eq!(send::entries_of(1, 16), 1);
    assert_eq!(send::entries_of(2, 16), 2);
    assert_eq!(send::entries_of(1, 64), 2);
}
