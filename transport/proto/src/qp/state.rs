//! QP states and the modify table: which attributes a transition needs and which it allows.
//!
//! Source: the table of Linux `ib_core`, which `man ibv_modify_qp` repeats (Q5). Any state goes to
//! RESET, and any but RESET to ERR, with no attribute but the state.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};
use xroce_wire::opcode::Service;

/// State of a queue pair, with the values of `ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum QpState {
    /// Created; nothing may be posted.
    Reset = 0,
    /// Receives may be posted, nothing is processed.
    Init = 1,
    /// Ready to receive: the responder works.
    Rtr = 2,
    /// Ready to send: requester and responder work.
    Rts = 3,
    /// Send queue drained: no new send starts, running ones finish.
    Sqd = 4,
    /// Send queue error (UC and UD only).
    Sqe = 5,
    /// Error: everything posted completes as flushed.
    Err = 6,
}

impl QpState {
    /// All states in numerical order.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// Whether requests of the peer are processed.
    #[must_use]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether own requests and responses to them are processed.
    #[must_use]
    pub const fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

/// Service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    /// The service its packets name in their opcodes.
    #[must_use]
    pub const fn service(self) -> Service {
        match self {
            Self::Rc => Service::Rc,
            Self::Uc => Service::Uc,
            Self::Ud => Service::Ud,
        }
    }
}

bitflags! {
    /// Attributes of a modify, with the bits of `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AttrMask: u32 {
        /// The state itself, implied in every transition.
        const STATE = 1;
        /// The state the caller believes the QP to be in.
        const CUR_STATE = 1 << 1;
        /// Ask for an event when SQD has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// What the peer may do.
        const ACCESS_FLAGS = 1 << 3;
        /// Partition.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Retries after timeout or sequence NAK.
        const RETRY_CNT = 1 << 10;
        /// Retries after RNR NAK.
        const RNR_RETRY = 1 << 11;
        /// First PSN expected.
        const RQ_PSN = 1 << 12;
        /// READs and atomics started at once.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// RNR NAK timer asked of the peer.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN sent.
        const SQ_PSN = 1 << 16;
        /// READs and atomics accepted at once.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Capacities.
        const CAP = 1 << 19;
        /// QPN of the peer.
        const DEST_QPN = 1 << 20;
        /// Rate limit.
        const RATE_LIMIT = 1 << 25;
        /// How losses are repaired. A bit of our own.
        const RELIABILITY = 1 << 30;
    }
}

crate::memory::serialize_bits!(AttrMask, "attribute mask");

/// Attributes one transition requires and allows, the state itself aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Must be given.
    pub required: AttrMask,
    /// May be given.
    pub optional: AttrMask,
}

const fn mask(list: &[AttrMask]) -> AttrMask {
    let mut all = AttrMask::empty();
    let mut i = 0;
    while i < list.len() {
        all = all.union(list[i]);
        i += 1;
    }
    all
}

const fn rule(required: &[AttrMask], optional: &[AttrMask]) -> Rule {
    Rule {
        required: mask(required),
        optional: mask(optional),
    }
}

/// One row of the table, a rule per service.
struct Transition {
    from: QpState,
    to: QpState,
    rc: Option<Rule>,
    uc: Option<Rule>,
    ud: Option<Rule>,
}

use AttrMask as A;
use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

/// The same rule for all three services.
const fn all(from: QpState, to: QpState, rule: Rule) -> Transition {
    Transition {
        from,
        to,
        rc: Some(rule),
        uc: Some(rule),
        ud: Some(rule),
    }
}

const NOTHING: Rule = rule(&[], &[]);

const TRANSITIONS: &[Transition] = &[
    all(Reset, Reset, NOTHING),
    all(Init, Reset, NOTHING),
    all(Rtr, Reset, NOTHING),
    all(Rts, Reset, NOTHING),
    all(Sqd, Reset, NOTHING),
    all(Sqe, Reset, NOTHING),
    all(Err, Reset, NOTHING),
    all(Init, Err, NOTHING),
    all(Rtr, Err, NOTHING),
    all(Rts, Err, NOTHING),
    all(Sqd, Err, NOTHING),
    all(Sqe, Err, NOTHING),
    all(Err, Err, NOTHING),
    Transition {
        from: Reset,
        to: Init,
        rc: Some(rule(&[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS], &[])),
        uc: Some(rule(&[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS], &[])),
        ud: Some(rule(&[A::PKEY_INDEX, A::PORT, A::QKEY], &[])),
    },
    Transition {
        from: Init,
        to: Init,
        rc: Some(rule(&[], &[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS])),
        uc: Some(rule(&[], &[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS])),
        ud: Some(rule(&[], &[A::PKEY_INDEX, A::PORT, A::QKEY])),
    },
    Transition {
        from: Init,
        to: Rtr,
        rc: Some(rule(
            &[
                A::AV,
                A::PATH_MTU,
                A::DEST_QPN,
                A::RQ_PSN,
                A::MAX_DEST_RD_ATOMIC,
                A::MIN_RNR_TIMER,
            ],
            &[A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX, A::RELIABILITY],
        )),
        uc: Some(rule(
            &[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN],
            &[A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX],
        )),
        ud: Some(rule(&[], &[A::PKEY_INDEX, A::QKEY])),
    },
    Transition {
        from: Rtr,
        to: Rts,
        rc: Some(rule(
            &[
                A::TIMEOUT,
                A::RETRY_CNT,
                A::RNR_RETRY,
                A::SQ_PSN,
                A::MAX_QP_RD_ATOMIC,
            ],
            &[
                A::CUR_STATE,
                A::ALT_PATH,
                A::ACCESS_FLAGS,
                A::MIN_RNR_TIMER,
                A::PATH_MIG_STATE,
                A::RATE_LIMIT,
            ],
        )),
        uc: Some(rule(
            &[A::SQ_PSN],
            &[
                A::CUR_STATE,
                A::ALT_PATH,
                A::ACCESS_FLAGS,
                A::PATH_MIG_STATE,
                A::RATE_LIMIT,
            ],
        )),
        ud: Some(rule(&[A::SQ_PSN], &[A::CUR_STATE, A::QKEY, A::RATE_LIMIT])),
    },
    Transition {
        from: Rts,
        to: Rts,
        rc: Some(rule(
            &[],
            &[
                A::CUR_STATE,
                A::ACCESS_FLAGS,
                A::ALT_PATH,
                A::PATH_MIG_STATE,
                A::MIN_RNR_TIMER,
                A::RATE_LIMIT,
            ],
        )),
        uc: Some(rule(
            &[],
            &[
                A::CUR_STATE,
                A::ACCESS_FLAGS,
                A::ALT_PATH,
                A::PATH_MIG_STATE,
                A::RATE_LIMIT,
            ],
        )),
        ud: Some(rule(&[], &[A::CUR_STATE, A::QKEY, A::RATE_LIMIT])),
    },
    all(Rts, Sqd, rule(&[], &[A::EN_SQD_ASYNC_NOTIFY])),
    Transition {
        from: Sqd,
        to: Sqd,
        rc: Some(rule(
            &[],
            &[
                A::PORT,
                A::AV,
                A::TIMEOUT,
                A::RETRY_CNT,
                A::RNR_RETRY,
                A::MAX_QP_RD_ATOMIC,
                A::MAX_DEST_RD_ATOMIC,
                A::ALT_PATH,
                A::ACCESS_FLAGS,
                A::PKEY_INDEX,
                A::MIN_RNR_TIMER,
                A::PATH_MIG_STATE,
            ],
        )),
        uc: Some(rule(
            &[],
            &[
                A::AV,
                A::ALT_PATH,
                A::ACCESS_FLAGS,
                A::PKEY_INDEX,
                A::PATH_MIG_STATE,
            ],
        )),
        ud: Some(rule(&[], &[A::PKEY_INDEX, A::QKEY])),
    },
    Transition {
        from: Sqd,
        to: Rts,
        rc: Some(rule(
            &[],
            &[
                A::CUR_STATE,
                A::ALT_PATH,
                A::ACCESS_FLAGS,
                A::MIN_RNR_TIMER,
                A::PATH_MIG_STATE,
            ],
        )),
        uc: Some(rule(
            &[],
            &[
                A::CUR_STATE,
                A::ALT_PATH,
                A::ACCESS_FLAGS,
                A::PATH_MIG_STATE,
            ],
        )),
        ud: Some(rule(&[], &[A::CUR_STATE, A::QKEY])),
    },
    Transition {
        from: Sqe,
        to: Rts,
        rc: None,
        uc: Some(rule(&[], &[A::CUR_STATE, A::ACCESS_FLAGS])),
        ud: Some(rule(&[], &[A::CUR_STATE, A::QKEY])),
    },
];

/// The rule of a transition, `None` if a QP of this type cannot make it.
#[must_use]
pub fn rule_of(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    let row = TRANSITIONS.iter().find(|t| t.from == from && t.to == to)?;
    match qp_type {
        QpType::Rc => row.rc,
        QpType::Uc => row.uc,
        QpType::Ud => row.ud,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::String};

    /// Rule Q5.
    #[test]
    fn the_whole_table() {
        let mut text = String::new();
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            for from in QpState::ALL {
                for to in QpState::ALL {
                    if let Some(r) = rule_of(qp_type, from, to) {
                        text += &format!(
                            "{qp_type:?} {from:?} -> {to:?}: {:?} ({:?})\n",
                            r.required.bits(),
                            r.optional.bits()
                        );
                    }
                }
            }
        }
        insta::assert_snapshot!(text);
    }

    /// Rule Q5.
    #[test]
    fn masks_seen_live() {
        // The masks that programs pass to Linux' verbs (Q5).
        let with_state = |r: Rule| (r.required | AttrMask::STATE).bits();
        let rc = |from, to| with_state(rule_of(QpType::Rc, from, to).unwrap());
        assert_eq!(rc(Init, Rtr), 0x12_9181);
        assert_eq!(rc(Rtr, Rts), 0x1_2e01);
        assert_eq!(rc(Reset, Init), 0x39);
        assert_eq!(with_state(rule_of(QpType::Ud, Reset, Init).unwrap()), 0x71);
    }
}
