//! UC reassembly against a slow model: whatever packets come, exactly those messages are received
//! whose packets came in a row, and each with its own bytes.

use proptest::prelude::*;

use super::*;
use xroce_wire::opcode::Position;

/// Small, so that lengths collide with it.
const PMTU: usize = 256;
/// Bytes of a receive: four packets and a bit.
const ROOM: usize = 4 * PMTU + 100;

#[derive(Clone, Debug)]
struct Piece {
    opcode: Opcode,
    psn: u32,
    payload: Vec<u8>,
}

/// A sender whose packets get lost, repeated, swapped and now and then are wrong.
fn stream() -> impl Strategy<Value = Vec<Piece>> {
    let message = (
        1usize..6,
        1usize..=PMTU,
        prop::bool::weighted(0.3),
        0u32..20,
    );
    let harm = (0usize..8, any::<prop::sample::Index>());
    let harms = prop::collection::vec(harm, 0..12);
    (prop::collection::vec(message, 1..12), harms).prop_map(|(messages, harms)| {
        let mut psn = 0xff_fff0u32;
        let mut all = Vec::new();
        for (n, (packets, last, imm, jump)) in messages.into_iter().enumerate() {
            psn += if jump == 0 { 5 } else { 0 };
            for i in 0..packets {
                let opcode = match (i == 0, i + 1 == packets, imm) {
                    (true, true, false) => Opcode::UcSendOnly,
                    (true, true, true) => Opcode::UcSendOnlyImm,
                    (true, false, _) => Opcode::UcSendFirst,
                    (false, true, false) => Opcode::UcSendLast,
                    (false, true, true) => Opcode::UcSendLastImm,
                    (false, false, _) => Opcode::UcSendMiddle,
                };
                let len = if i + 1 == packets { last } else { PMTU };
                let byte = (n * 16 + i) as u8;
                all.push(Piece {
                    opcode,
                    psn: psn & 0xff_ffff,
                    payload: vec![byte; len],
                });
                psn += 1;
            }
        }
        for (what, at) in harms {
            if all.is_empty() {
                break;
            }
            let i = at.index(all.len());
            match what {
                0..=2 => drop(all.remove(i)),
                3 => {
                    let again = all[i].clone();
                    all.insert(at.index(all.len() + 1), again);
                }
                4 if i > 0 => all.swap(i, i - 1),
                5 => {
                    let len = all[i].payload.len();
                    all[i].payload.truncate(len.saturating_sub(1));
                }
                6 => all[i].opcode = Opcode::UcWriteMiddle,
                _ => all[i].psn ^= 1,
            }
        }
        all
    })
}

/// The message that packet `end` completes, found by looking back from it.
fn message(all: &[Piece], end: usize) -> Option<Vec<u8>> {
    if !all[end].opcode.info().ends() {
        return None;
    }
    let mut start = end;
    while !all[start].opcode.info().starts() {
        let before = start.checked_sub(1)?;
        if Psn::new(all[before].psn).add(1) != Psn::new(all[start].psn) {
            return None;
        }
        let position = all[before].opcode.info().position;
        if !matches!(position, Position::First | Position::Middle) {
            return None;
        }
        start = before;
    }
    let mut bytes = Vec::new();
    for piece in &all[start..=end] {
        let info = piece.opcode.info();
        let len = piece.payload.len();
        let fits = match info.position {
            Position::First | Position::Middle => len == PMTU,
            Position::Last => (1..=PMTU).contains(&len),
            Position::Only => len <= PMTU,
        };
        if !fits || info.operation != xroce_wire::opcode::Operation::Send {
            return None;
        }
        bytes.extend_from_slice(&piece.payload);
    }
    (bytes.len() <= ROOM).then_some(bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

    #[test]
    fn messages_arrive_whole_or_not_at_all(all in stream()) {
        let mut b = Setup {
            init: QpInit::uc(PD, SEND_CQ, RECV_CQ),
            rtr: QpAttr::rtr_uc(path(), PathMtu::Mtu256, PEER, Psn::new(0xff_fff0)),
            rts: QpAttr::rts_unreliable(Psn::new(0)),
            ..Setup::default()
        }
        .build();
        b.recv(0, ROOM as u32);
        for (i, piece) in all.iter().enumerate() {
            let mut packet = p(piece.opcode, piece.psn);
            packet.payload.clone_from(&piece.payload);
            b.rx(packet);
            let got = b.log.recvs.pop().map(|wc| {
                assert_eq!(wc.status, WcStatus::Success);
                b.mem.bytes[..wc.byte_len as usize].to_vec()
            });
            prop_assert_eq!(&got, &message(&all, i), "packet {}", i);
            if got.is_some() {
                b.recv(i as u64, ROOM as u32);
            }
        }
        prop_assert_eq!(b.qp.state(), QpState::Rts);
        prop_assert_eq!(b.tx(), Vec::<String>::new());
    }
}
