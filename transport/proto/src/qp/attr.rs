//! Attributes of a queue pair, how a modify is checked, and what is fixed at creation.

use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::{PKey, PathMtu, Psn, QKey, Qpn};
use xroce_wire::path::AddressVector;
use xroce_wire::syndrome::RnrTimer;

use super::attribute::Attribute;
use super::state::{AttrMask, QpState, QpType, rule_of};
use crate::cc::{CongestionControl, Rate};
use crate::memory::{Access, Pd};
use crate::params;
use crate::recovery::{Reliability, SelectiveParams};
use crate::wc::{Cq, Srq};

/// What is fixed when a QP is created.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct QpInit {
    /// Service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: Pd,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// Where receives come from, if not from a queue of its own. Then `max_recv_sge` must be that
    /// of the SRQ and `max_recv_wr` means nothing.
    pub srq: Option<Srq>,
    /// Send work requests that may be posted at once.
    pub max_send_wr: u32,
    /// Receive work requests that may be posted at once.
    pub max_recv_wr: u32,
    /// SGEs per send, 1 ..= 32.
    pub max_send_sge: u8,
    /// SGEs per receive, 1 ..= 32.
    pub max_recv_sge: u8,
    /// Inline bytes per send, 0 ..= 512.
    pub max_inline: u32,
}

impl QpInit {
    /// An RC QP with 128 sends and receives of one SGE and 64 inline bytes.
    #[must_use]
    pub const fn rc(pd: Pd, send_cq: Cq, recv_cq: Cq) -> Self {
        Self {
            qp_type: QpType::Rc,
            pd,
            send_cq,
            recv_cq,
            srq: None,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 64,
        }
    }

    /// The same of type UC.
    #[must_use]
    pub const fn uc(pd: Pd, send_cq: Cq, recv_cq: Cq) -> Self {
        Self {
            qp_type: QpType::Uc,
            ..Self::rc(pd, send_cq, recv_cq)
        }
    }

    /// The same of type UD.
    #[must_use]
    pub const fn ud(pd: Pd, send_cq: Cq, recv_cq: Cq) -> Self {
        Self {
            qp_type: QpType::Ud,
            ..Self::rc(pd, send_cq, recv_cq)
        }
    }

    /// # Errors
    /// The first capacity that is out of range.
    pub fn validate(&self) -> Result<(), CreateError> {
        let check = |what, given: u32, min: u32, max: u32| {
            if (min..=max).contains(&given) {
                Ok(())
            } else {
                Err(CreateError::Capacity {
                    what,
                    given,
                    min,
                    max,
                })
            }
        };
        check(
            Attribute::MaxSendWr,
            self.max_send_wr,
            1,
            params::QUEUE_DEPTH_MAX,
        )?;
        check(
            Attribute::MaxRecvWr,
            self.max_recv_wr,
            1,
            params::QUEUE_DEPTH_MAX,
        )?;
        check(
            Attribute::MaxSendSge,
            self.max_send_sge.into(),
            1,
            params::SGE_MAX.into(),
        )?;
        check(
            Attribute::MaxRecvSge,
            self.max_recv_sge.into(),
            1,
            params::SGE_MAX.into(),
        )?;
        check(Attribute::MaxInline, self.max_inline, 0, params::INLINE_MAX)
    }
}

/// Why a QP cannot be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CreateError {
    /// A capacity is out of range.
    #[error("{what} is {given}, it must be {min} to {max}")]
    Capacity {
        /// Which.
        what: Attribute,
        /// Value given.
        given: u32,
        /// Smallest allowed.
        min: u32,
        /// Largest allowed.
        max: u32,
    },
}

/// A modify: the wanted state and the attributes that are `Some`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct QpAttr {
    /// Wanted state; `None` changes attributes within the current one.
    pub state: Option<QpState>,
    /// State the caller believes the QP to be in.
    pub cur_state: Option<QpState>,
    /// Ask for [`crate::wc::Event::SqDrained`].
    pub en_sqd_async_notify: Option<bool>,
    /// What the peer may do on this QP.
    pub access: Option<Access>,
    /// Index into the P_Key table; RoCE has one entry, 0.
    pub pkey_index: Option<u16>,
    /// What the table holds at `pkey_index`, filled in by the driver that has the table; no
    /// attribute of its own.
    pub pkey: PKey,
    /// Port, 1.
    pub port: Option<u8>,
    /// Q_Key of a UD QP: what its datagrams must carry.
    pub qkey: Option<QKey>,
    /// Resolved path to the peer.
    pub av: Option<AddressVector>,
    /// Path MTU, the same at both ends.
    pub path_mtu: Option<PathMtu>,
    /// Local ACK timeout code, 0 ..= 31 (4.096 µs · 2^code, 0: none).
    pub timeout: Option<u8>,
    /// Retries after timeout or sequence error, 0 ..= 7.
    pub retry_cnt: Option<u8>,
    /// Retries after RNR NAK, 0 ..= 6, 7: for ever.
    pub rnr_retry: Option<u8>,
    /// First PSN expected from the peer.
    pub rq_psn: Option<Psn>,
    /// READs and atomics this side starts at once, 0 ..= 128.
    pub max_rd_atomic: Option<u8>,
    /// RNR timer this side asks the peer to wait.
    pub min_rnr_timer: Option<RnrTimer>,
    /// First PSN sent.
    pub sq_psn: Option<Psn>,
    /// READs and atomics this side accepts at once, 0 ..= 128.
    pub max_dest_rd_atomic: Option<u8>,
    /// QPN of the peer.
    pub dest_qpn: Option<Qpn>,
    /// Rate and window, or the algorithm that governs them. The same algorithm again changes its
    /// parameters and goes on from where it is.
    pub congestion: Option<CongestionControl>,
    /// Upper limit of the rate of data, whatever the algorithm says; [`Rate::UNLIMITED`]: none.
    pub rate_limit: Option<Rate>,
    /// How losses are repaired; go-back-N unless given. Both ends must be given the same.
    pub reliability: Option<Reliability>,
}

impl QpAttr {
    /// To INIT on port 1 with the default P_Key.
    #[must_use]
    pub fn init(access: Access) -> Self {
        Self {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(access),
            ..Self::default()
        }
    }

    /// To RTR, accepting 16 READs, RNR timer code 12 (0.64 ms).
    #[must_use]
    pub fn rtr(av: AddressVector, path_mtu: PathMtu, dest_qpn: Qpn, rq_psn: Psn) -> Self {
        Self {
            state: Some(QpState::Rtr),
            av: Some(av),
            path_mtu: Some(path_mtu),
            dest_qpn: Some(dest_qpn),
            rq_psn: Some(rq_psn),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: RnrTimer::new(12),
            ..Self::default()
        }
    }

    /// To RTS with timeout code 14 (67 ms), 7 retries, 6 RNR retries, 16 READs.
    #[must_use]
    pub fn rts(sq_psn: Psn) -> Self {
        Self {
            state: Some(QpState::Rts),
            sq_psn: Some(sq_psn),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(6),
            max_rd_atomic: Some(16),
            ..Self::default()
        }
    }

    /// A UD QP to INIT on port 1 with the default P_Key.
    #[must_use]
    pub fn init_ud(qkey: QKey) -> Self {
        Self {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(qkey),
            ..Self::default()
        }
    }

    /// A UC QP to RTR.
    #[must_use]
    pub fn rtr_uc(av: AddressVector, path_mtu: PathMtu, dest_qpn: Qpn, rq_psn: Psn) -> Self {
        Self {
            state: Some(QpState::Rtr),
            av: Some(av),
            path_mtu: Some(path_mtu),
            dest_qpn: Some(dest_qpn),
            rq_psn: Some(rq_psn),
            ..Self::default()
        }
    }

    /// A UC or UD QP to RTS.
    #[must_use]
    pub fn rts_unreliable(sq_psn: Psn) -> Self {
        Self {
            state: Some(QpState::Rts),
            sq_psn: Some(sq_psn),
            ..Self::default()
        }
    }

    /// To a state that needs nothing else.
    #[must_use]
    pub fn state(state: QpState) -> Self {
        Self {
            state: Some(state),
            ..Self::default()
        }
    }

    /// Which attributes are given.
    #[must_use]
    pub fn mask(&self) -> AttrMask {
        let mut mask = AttrMask::empty();
        mask.set(AttrMask::STATE, self.state.is_some());
        mask.set(AttrMask::CUR_STATE, self.cur_state.is_some());
        mask.set(
            AttrMask::EN_SQD_ASYNC_NOTIFY,
            self.en_sqd_async_notify.is_some(),
        );
        mask.set(AttrMask::ACCESS_FLAGS, self.access.is_some());
        mask.set(AttrMask::PKEY_INDEX, self.pkey_index.is_some());
        mask.set(AttrMask::PORT, self.port.is_some());
        mask.set(AttrMask::QKEY, self.qkey.is_some());
        mask.set(AttrMask::AV, self.av.is_some());
        mask.set(AttrMask::PATH_MTU, self.path_mtu.is_some());
        mask.set(AttrMask::TIMEOUT, self.timeout.is_some());
        mask.set(AttrMask::RETRY_CNT, self.retry_cnt.is_some());
        mask.set(AttrMask::RNR_RETRY, self.rnr_retry.is_some());
        mask.set(AttrMask::RQ_PSN, self.rq_psn.is_some());
        mask.set(AttrMask::MAX_QP_RD_ATOMIC, self.max_rd_atomic.is_some());
        mask.set(AttrMask::MIN_RNR_TIMER, self.min_rnr_timer.is_some());
        mask.set(AttrMask::SQ_PSN, self.sq_psn.is_some());
        mask.set(
            AttrMask::MAX_DEST_RD_ATOMIC,
            self.max_dest_rd_atomic.is_some(),
        );
        mask.set(AttrMask::DEST_QPN, self.dest_qpn.is_some());
        mask.set(
            AttrMask::RATE_LIMIT,
            self.congestion.is_some() || self.rate_limit.is_some(),
        );
        mask.set(AttrMask::RELIABILITY, self.reliability.is_some());
        mask
    }

    /// Checks the transition and every value; changes nothing (Q2).
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self, qp_type: QpType, current: QpState) -> Result<QpState, ModifyError> {
        if let Some(believed) = self.cur_state
            && believed != current
        {
            return Err(ModifyError::NotInState { believed, current });
        }
        let to = self.state.unwrap_or(current);
        let rule = rule_of(qp_type, current, to).ok_or(ModifyError::Transition {
            qp_type,
            from: current,
            to,
        })?;
        let given = self.mask() - AttrMask::STATE;
        let missing = rule.required - given;
        if !missing.is_empty() {
            return Err(ModifyError::Missing {
                from: current,
                to,
                missing,
            });
        }
        let excess = given - rule.required - rule.optional;
        if !excess.is_empty() {
            return Err(ModifyError::Superfluous {
                from: current,
                to,
                excess,
            });
        }
        self.check_values()?;
        Ok(to)
    }

    fn check_values(&self) -> Result<(), ModifyError> {
        let check = |what, given: Option<u32>, min: u32, max: u32| match given {
            Some(given) if !(min..=max).contains(&given) => Err(ModifyError::Value {
                what,
                given,
                min,
                max,
            }),
            _ => Ok(()),
        };
        let rd_max = params::RD_ATOMIC_MAX.into();
        check(Attribute::PkeyIndex, self.pkey_index.map(Into::into), 0, 0)?;
        check(Attribute::Port, self.port.map(Into::into), 1, 1)?;
        check(Attribute::Timeout, self.timeout.map(Into::into), 0, 31)?;
        check(Attribute::RetryCnt, self.retry_cnt.map(Into::into), 0, 7)?;
        check(Attribute::RnrRetry, self.rnr_retry.map(Into::into), 0, 7)?;
        check(
            Attribute::MaxRdAtomic,
            self.max_rd_atomic.map(Into::into),
            0,
            rd_max,
        )?;
        check(
            Attribute::MaxDestRdAtomic,
            self.max_dest_rd_atomic.map(Into::into),
            0,
            rd_max,
        )?;
        check(
            Attribute::DestQpn,
            self.dest_qpn.map(Qpn::value),
            2,
            0x00ff_fffe,
        )?;
        if let Some(Reliability::Selective(params)) = &self.reliability {
            let (least, most) = SelectiveParams::RANGE;
            check(Attribute::ReliabilityRange, Some(params.range), least, most)?;
            let even = params.range.next_power_of_two();
            check(Attribute::ReliabilityRange, Some(params.range), even, even)?;
            check(
                Attribute::ReliabilityWindow,
                Some(params.window),
                1,
                params.range,
            )?;
            check(
                Attribute::ReliabilityTolerance,
                Some(params.tolerance),
                1,
                params.range,
            )?;
            check(
                Attribute::ReliabilityStore,
                Some(params.store),
                1,
                params.range,
            )?;
        }
        Ok(())
    }
}

/// Why a modify was refused; the QP is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModifyError {
    /// `cur_state` was wrong.
    #[error("the queue pair is in {current:?}, not in {believed:?}")]
    NotInState {
        /// What the caller said.
        believed: QpState,
        /// What it is.
        current: QpState,
    },
    /// No such transition.
    #[error("a {qp_type:?} queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// Service of the QP.
        qp_type: QpType,
        /// Current state.
        from: QpState,
        /// Wanted state.
        to: QpState,
    },
    /// A required attribute is missing.
    #[error("{from:?} to {to:?} also needs {missing:?}")]
    Missing {
        /// Current state.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// What is missing.
        missing: AttrMask,
    },
    /// An attribute is given that this transition does not take.
    #[error("{from:?} to {to:?} does not take {excess:?}")]
    Superfluous {
        /// Current state.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// What is too much.
        excess: AttrMask,
    },
    /// A value is out of range.
    #[error("{what} is {given}, it must be {min} to {max}")]
    Value {
        /// Which.
        what: Attribute,
        /// Value given.
        given: u32,
        /// Smallest allowed.
        min: u32,
        /// Largest allowed.
        max: u32,
    },
    /// The address vector cannot be used.
    #[error("address vector: {0}")]
    Path(#[from] xroce_wire::template::TemplateError),
}
