//! Differences that are known, each with its reason. What is not listed here fails the run.

use super::play::receives_into;
use super::program::{Fault, Program, SLOTS};

/// Which ends ran the program, requester of the faulty work first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ends {
    /// xroce and rxe.
    XroceRxe,
    /// rxe and xroce.
    RxeXroce,
    /// xroce twice.
    XroceXroce,
}

impl Ends {
    pub(super) const ALL: [Self; 3] = [Self::XroceRxe, Self::RxeXroce, Self::XroceXroce];

    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::XroceRxe => "xroce → rxe",
            Self::RxeXroce => "rxe → xroce",
            Self::XroceXroce => "xroce → xroce",
        }
    }

    /// Which end is rxe.
    pub(super) fn rxe(self) -> Option<usize> {
        match self {
            Self::XroceRxe => Some(1),
            Self::RxeXroce => Some(0),
            Self::XroceXroce => None,
        }
    }

    /// Whether xroce answers the faulty work.
    fn we_answer(self) -> bool {
        self != Self::XroceRxe
    }

    /// Whether xroce posts it.
    fn we_ask(self) -> bool {
        self != Self::RxeXroce
    }
}

/// What differs from the same program between two rxe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// Completion of a send: statuses of both, `None` where there is none.
    Send(Option<u32>, Option<u32>),
    /// Completion of a receive, likewise.
    Recv(Option<u32>, Option<u32>),
    /// Something else in a completion.
    Field,
    /// Contents of a slot.
    Memory,
    /// State of the queue pair.
    State,
}

/// One difference.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    /// What kind.
    pub what: What,
    /// At which end.
    pub end: usize,
    /// Work request or slot.
    pub at: u64,
    /// For people.
    pub text: String,
}

/// A reason for differences.
pub(super) struct Rule {
    /// What it is about.
    pub name: &'static str,
    /// Why they differ.
    pub reason: &'static str,
    /// Who does as the specification says.
    pub follows: &'static str,
    /// Whether it explains a difference.
    explains: fn(&Program, Ends, &Difference) -> bool,
}

/// Number of the work request that must fail.
fn bad(program: &Program) -> Option<u64> {
    let at = program.work().position(|w| w.bad)?;
    u64::try_from(at).ok()
}

fn is_bad(program: &Program, d: &Difference) -> bool {
    bad(program) == Some(d.at)
}

/// All of them.
pub(super) const RULES: [Rule; 6] = [
    Rule {
        name: "a SEND longer than its receive",
        reason: "rxe answers NAK 0x63 (statuses 11 and 2), xroce 0x61 (9 and 1)",
        follows: "xroce",
        explains: |p, ends, d| {
            p.fault == Some(Fault::TooLong)
                && ends.we_answer()
                && is_bad(p, d)
                && matches!(
                    d.what,
                    What::Send(Some(11), Some(9)) | What::Recv(Some(2), Some(1))
                )
        },
    },
    Rule {
        name: "a receive whose buffer is wrong",
        reason: "the receive completes with LOC_QP_OP_ERR at rxe, with LOC_PROT_ERR at xroce",
        follows: "xroce",
        explains: |p, ends, d| {
            p.fault == Some(Fault::Buffer)
                && ends.we_answer()
                && is_bad(p, d)
                && d.what == What::Recv(Some(2), Some(4))
        },
    },
    Rule {
        name: "the receive of a refused WRITE with immediate data",
        reason: "rxe completes it with REM_ACCESS_ERR, xroce with LOC_ACCESS_ERR",
        follows: "xroce",
        explains: |p, ends, d| {
            matches!(
                p.fault,
                Some(Fault::Key | Fault::Range | Fault::RegionRight)
            ) && ends.we_answer()
                && is_bad(p, d)
                && d.what == What::Recv(Some(10), Some(8))
        },
    },
    Rule {
        name: "a send of memory that is not its own",
        reason: "rxe of 6.12 flushes (5) the request that caused it as well, xroce says 4",
        follows: "xroce",
        explains: |p, ends, d| {
            p.fault == Some(Fault::OwnData)
                && ends.we_ask()
                && is_bad(p, d)
                && d.what == What::Send(Some(5), Some(4))
        },
    },
    Rule {
        name: "a key that cannot be taken back",
        reason: "rxe acknowledges the SEND and fails behind its back, with status 9 for the \
                 receive; xroce refuses it with NAK 0x62, and the requester fails as well",
        follows: "xroce",
        explains: |p, ends, d| {
            p.fault == Some(Fault::Invalidate)
                && ends.we_answer()
                && match d.what {
                    What::Send(Some(0), Some(10)) => is_bad(p, d),
                    What::State => d.end == 0,
                    _ => false,
                }
        },
    },
    Rule {
        name: "contents of a receive that failed",
        reason: "how much of a message is in place when it fails is open",
        follows: "both",
        explains: |p, _, d| {
            d.what == What::Memory
                && d.end == 1
                && d.at < SLOTS
                && p.work().any(|w| w.bad && receives_into(w, d.at))
        },
    },
];

/// The rule that explains a difference.
pub(super) fn explain(program: &Program, ends: Ends, d: &Difference) -> Option<&'static Rule> {
    RULES.iter().find(|rule| (rule.explains)(program, ends, d))
}
