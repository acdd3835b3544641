//! ATOMIC WRITE and FLUSH of IBTA 1.5, which rxe has since Linux 6.2.

use anyhow::{Result, ensure};

use super::pair::{self, Half, Setting};
use super::{Direction, Outcome, Scenario, Seen, Stage, in_order, lossy_rules, status};
use crate::ends::{End, FlushRange, Op, Piece, Send, access};
use crate::fabric::fault::Side;
use crate::fabric::look::Class;

/// Groups of WRITE, FLUSH and ATOMIC WRITE.
const GROUPS: u64 = 12;
/// Where the atomic writes go.
const WORDS: u64 = 32_768;

/// Of a request that must be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    /// The region lacks the right.
    Region,
    /// The queue pair lacks the right.
    Qp,
    /// No region has this key.
    Key,
    /// The address is not a multiple of 8.
    Misaligned,
    /// Beyond the region.
    Range,
}

/// Whether the kernel has them at all.
fn has(stage: &Stage) -> bool {
    !stage.vm.release().starts_with("6.1.")
}

fn none() -> Outcome {
    Outcome {
        figure: "not in Linux 6.1".to_owned(),
        ..Outcome::default()
    }
}

fn run(stage: &mut Stage, scenario: &Scenario, one_in: u32) -> Result<Outcome> {
    if !has(stage) {
        return Ok(none());
    }
    // What rxe sends again of these two has the remote address 0, which only a duplicate may have:
    // none of its requests gets lost, but answers do, which are READ responses.
    let mut rules = lossy_rules(scenario.direction, one_in);
    if scenario.direction == Direction::ToXroce {
        rules.retain(|rule| rule.from == Side::Xroce);
        rules.extend(rules.clone());
        if let Some(rule) = rules.last_mut() {
            rule.class = Some(Class::ReadResponse);
            // They are few.
            rule.one_in = one_in / 3;
        }
    }
    stage.start(&rules);
    let done = in_order(stage, scenario.direction, |a, b| {
        play(a, b, scenario, one_in > 0)
    });
    let record = stage.finish()?;
    done?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    seen.went_back_with_reason()?;
    ensure!(one_in == 0 || seen.harm.lost > 0, "no packet was lost");
    Ok(seen.outcome(format!("{} lost", seen.harm.lost)))
}

fn setting(scenario: &Scenario) -> Setting {
    let mut how = Setting::new(scenario.route, scenario.mtu);
    how.responder.access = access::ALL | access::FLUSH_GLOBAL;
    how.mr_access = access::ALL | access::FLUSH_GLOBAL;
    how
}

/// The eight bytes at `from` to `to`.
fn word(wr: u64, halves: &[Half; 2], from: u64, to: u64) -> Send {
    let base = pair::send(wr, Op::AtomicWrite, &halves[0], &halves[1], 8);
    Send {
        va: base.va + to,
        pieces: vec![Piece {
            mr: halves[0].mr.id,
            off: from,
            len: 8,
        }],
        ..base
    }
}

/// `len` bytes from `at`, or with 0 the whole region.
fn flush(wr: u64, halves: &[Half; 2], at: u64, len: u32) -> Send {
    let base = pair::send(wr, Op::Flush, &halves[0], &halves[1], 0);
    Send {
        va: base.va + at,
        pieces: Vec::new(),
        flush: FlushRange {
            len,
            persistent: false,
            whole: len == 0,
        },
        ..base
    }
}

fn play(a: &mut dyn End, b: &mut dyn End, scenario: &Scenario, lossy: bool) -> Result<()> {
    const LEN: u32 = 2_700;
    let mut how = setting(scenario);
    if lossy {
        // Code 16 is 268 ms.
        how.requester.timeout = 16;
    }
    let halves = pair::connect(a, b, &how)?;
    let [ha, hb] = halves;
    for group in 0..GROUPS {
        let wr = group * 4;
        let at = group * 2_500;
        let mut write = pair::send(wr, Op::Write, &ha, &hb, LEN);
        write.va += at;
        for piece in &mut write.pieces {
            piece.off = group * 1_111;
        }
        a.send(ha.qp, &write)?;
        a.send(ha.qp, &flush(wr + 1, &halves, at, LEN))?;
        a.send(ha.qp, &word(wr + 2, &halves, group * 8, WORDS + group * 8))?;
        a.send(ha.qp, &flush(wr + 3, &halves, 0, 0))?;
        let wanted: Vec<_> = (wr..wr + 4).map(|wr| (wr, status::SUCCESS)).collect();
        let got = pair::expect(a, ha.send_cq, &wanted)?;
        let opcodes: Vec<u32> = got.iter().map(|wc| wc.opcode).collect();
        ensure!(opcodes == [1, 8, 9, 8], "they completed as {opcodes:?}");
        let sent = a.hashes(&[
            (ha.mr.id, group * 1_111, LEN.into()),
            (ha.mr.id, group * 8, 8),
        ])?;
        let there = b.hashes(&[(hb.mr.id, at, LEN.into()), (hb.mr.id, WORDS + group * 8, 8)])?;
        ensure!(
            sent == there,
            "what was written in group {group} is not there"
        );
    }
    Ok(())
}

fn refuse(stage: &mut Stage, scenario: &Scenario, op: Op, wrong: Wrong) -> Result<Outcome> {
    if !has(stage) {
        return Ok(none());
    }
    stage.start(&[]);
    let by_rxe = scenario.direction == Direction::ToRxe;
    let wanted = match wrong {
        Wrong::Qp | Wrong::Misaligned => status::REM_INV_REQ,
        Wrong::Region | Wrong::Key | Wrong::Range => status::REM_ACCESS,
    };
    let done = in_order(stage, scenario.direction, |a, b| {
        let mut how = setting(scenario);
        match wrong {
            Wrong::Region => how.mr_access = access::LOCAL_WRITE,
            Wrong::Qp => how.responder.access = access::LOCAL_WRITE,
            _ => {}
        }
        let halves = pair::connect(a, b, &how)?;
        let mut send = if op == Op::Flush {
            flush(1, &halves, 0, 64)
        } else {
            word(1, &halves, 0, WORDS)
        };
        match wrong {
            Wrong::Key => send.rkey ^= 0x0001_5500,
            Wrong::Misaligned => send.va += 4,
            Wrong::Range => send.va = halves[1].mr.va + pair::REGION,
            _ => {}
        }
        let before = b.hash(halves[1].mr.id, 0, pair::REGION)?;
        a.send(halves[0].qp, &send)?;
        pair::expect(a, halves[0].send_cq, &[(1, wanted)])?;
        ensure!(
            b.hash(halves[1].mr.id, 0, pair::REGION)? == before,
            "bytes were written although it was refused"
        );
        Ok(())
    });
    let record = stage.finish()?;
    done?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    let naks = if by_rxe {
        seen.rxe.fatal_naks
    } else {
        seen.xroce.fatal_naks
    };
    ensure!(naks == 1, "{naks} fatal NAKs on the cable, expected 1");
    Ok(seen.outcome(format!("status {wanted}")))
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for (name, one_in) in [
        ("FLUSH and ATOMIC WRITE", 0),
        ("FLUSH and ATOMIC WRITE, 2 % lost", 50),
        ("FLUSH and ATOMIC WRITE, 5 % lost", 20),
    ] {
        for direction in Direction::EACH {
            list.push(Scenario::plain(
                name,
                direction,
                one_in == 20,
                move |stage, scenario| run(stage, scenario, one_in),
            ));
        }
    }
    let cases = [
        (Wrong::Region, "no right of the region"),
        (Wrong::Qp, "no right of the queue pair"),
        (Wrong::Key, "wrong R_Key"),
        (Wrong::Range, "beyond the region"),
        (Wrong::Misaligned, "misaligned"),
    ];
    for op in [Op::AtomicWrite, Op::Flush] {
        for (wrong, name) in cases {
            for direction in Direction::EACH {
                // xroce does not take such a request, and a FLUSH may start anywhere.
                let ours = direction == Direction::ToRxe;
                if wrong == Wrong::Misaligned && (ours || op == Op::Flush) {
                    continue;
                }
                list.push(Scenario::plain(
                    format!("refused: {}, {name}", op.name()),
                    direction,
                    false,
                    move |stage, scenario| refuse(stage, scenario, op, wrong),
                ));
            }
        }
    }
    list
}
