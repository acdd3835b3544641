//! The opcode table against the specification's, as text.

use std::fmt::Write;

use xroce_wire::opcode::{Headers, Opcode, Operation, Position, Service};

/// BTH byte 0, what follows, whether a message begins or ends, whether payload may follow.
const TABLE: &str = "\
00 sp  01 -p  02 ep  03 ep imm  04 sep  05 sep imm
06 sp reth  07 -p  08 ep  09 ep imm  0a sep reth  0b sep reth imm
0c se reth  0d sp aeth  0e -p  0f ep aeth  10 sep aeth  11 se aeth
12 se aeth atomic_ack  13 se atomic_eth  14 se atomic_eth  16 ep ieth  17 sep ieth
1c se feth reth  1d sep reth
20 sp  21 -p  22 ep  23 ep imm  24 sep  25 sep imm
26 sp reth  27 -p  28 ep  29 ep imm  2a sep reth  2b sep reth imm
64 sep deth  65 sep deth imm
81 sep
a0 sp xrceth  a1 -p xrceth  a2 ep xrceth  a3 ep xrceth imm  a4 sep xrceth  a5 sep xrceth imm
a6 sp xrceth reth  a7 -p xrceth  a8 ep xrceth  a9 ep xrceth imm  aa sep xrceth reth  ab sep xrceth reth imm
ac se xrceth reth  ad sp aeth  ae -p  af ep aeth  b0 sep aeth  b1 se aeth
b2 se aeth atomic_ack  b3 se xrceth atomic_eth  b4 se xrceth atomic_eth  b6 ep xrceth ieth  b7 sep xrceth ieth
c6 sp meth reth  c7 -p meth reth  c8 ep meth reth  c9 ep meth reth imm
ca sep meth reth  cb sep meth reth imm
dc se seth  de se peth";

/// Rule W7.
#[test]
fn table() {
    let mut got = Vec::new();
    for byte in 0..=u8::MAX {
        let Some(info) = Opcode::from_u8(byte) else {
            continue;
        };
        assert_eq!(info.opcode as u8, byte);
        assert_eq!(info.opcode.info(), info);
        let mut row = format!("{byte:02x} ");
        let marks = [
            (info.starts(), 's'),
            (info.ends(), 'e'),
            (info.has_payload(), 'p'),
        ];
        let mut text: String = marks.iter().filter(|m| m.0).map(|m| m.1).collect();
        if text == "p" {
            text = "-p".into();
        }
        row += &text;
        for (name, _) in info.headers.iter_names() {
            write!(row, " {}", name.to_lowercase()).unwrap();
        }
        got.push(row);
    }
    let want: Vec<&str> = TABLE
        .lines()
        .flat_map(|l| l.split("  "))
        .map(str::trim)
        .collect();
    assert_eq!(got, want);
    assert_eq!(got.len(), Opcode::ALL.len());
}

/// Rule W8.
#[test]
fn header_lengths() {
    let len = |o: Opcode| o.info().header_len;
    assert_eq!(len(Opcode::RcSendOnly), 0);
    assert_eq!(len(Opcode::RcWriteOnlyImm), 20);
    assert_eq!(len(Opcode::RcAtomicAcknowledge), 12);
    assert_eq!(len(Opcode::RcFlush), 20);
    assert_eq!(len(Opcode::UdSendOnlyImm), 12);
    assert_eq!(len(Opcode::XrcFetchAdd), 32);
    assert_eq!(len(Opcode::ExtWriteOnlyImm), 24);
    assert_eq!((len(Opcode::ExtSack), len(Opcode::ExtProbe)), (28, 16));
    assert_eq!(Opcode::RcWriteOnly.info().reth_offset(), Some(0));
    assert_eq!(Opcode::RcFlush.info().reth_offset(), Some(4));
    assert_eq!(Opcode::RcReadResponseMiddle.info().aeth_offset(), None);
}

#[test]
fn requests_and_responses() {
    for o in Opcode::ALL {
        let info = o.info();
        let answers = matches!(
            info.operation,
            Operation::ReadResponse
                | Operation::Acknowledge
                | Operation::AtomicAcknowledge
                | Operation::Sack
        );
        let extension = matches!(*o as u8, 0xc6..=0xcb | 0xdc | 0xde);
        assert_eq!(info.is_extension(), extension);
        assert_eq!(info.is_response(), answers);
        assert_eq!(info.is_request, !answers && *o != Opcode::Cnp);
        assert_eq!(
            info.headers.contains(Headers::XRCETH),
            info.service == Service::Xrc && !answers
        );
    }
}

/// Choosing an opcode by its properties finds it again.
#[test]
fn choice_is_the_inverse_of_the_table() {
    for o in Opcode::ALL {
        let i = o.info();
        let (imm, inv) = (i.has_imm(), i.has_invalidate());
        assert_eq!(
            Opcode::for_request(i.service, i.operation, i.position, imm, inv),
            Some(*o)
        );
    }
    let rc = |pos, imm, inv| Opcode::for_request(Service::Rc, Operation::Send, pos, imm, inv);
    assert_eq!(rc(Position::First, true, false), Some(Opcode::RcSendFirst));
    assert_eq!(
        rc(Position::Middle, false, true),
        Some(Opcode::RcSendMiddle)
    );
    assert_eq!(rc(Position::Last, true, false), Some(Opcode::RcSendLastImm));
    assert_eq!(
        rc(Position::Only, false, true),
        Some(Opcode::RcSendOnlyInvalidate)
    );
    assert_eq!(rc(Position::Only, true, true), None);
    let uc = |op| Opcode::for_request(Service::Uc, op, Position::Only, false, false);
    assert_eq!(uc(Operation::ReadRequest), None);
    assert_eq!(uc(Operation::CmpSwap), None);
    assert_eq!(Opcode::read_response(Service::Uc, Position::Only), None);
    let middle = Opcode::read_response(Service::Xrc, Position::Middle);
    assert_eq!(middle, Some(Opcode::XrcReadResponseMiddle));
    assert_eq!(
        Opcode::acknowledge(Service::Rc),
        Some(Opcode::RcAcknowledge)
    );
    assert_eq!(Opcode::acknowledge(Service::Ud), None);
    assert_eq!(
        Opcode::atomic_acknowledge(Service::Xrc),
        Some(Opcode::XrcAtomicAcknowledge)
    );
}

#[test]
fn names_are_distinct() {
    let mut names: Vec<_> = Opcode::ALL.iter().map(|o| o.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Opcode::ALL.len());
}
