//! What a queue pair says about itself (`ibv_query_qp`), and its partition.

use alloc::boxed::Box;

use bitflags::bitflags;
use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::{PKey, Psn, Qpn};
use xroce_wire::path::AddressVector;
use xroce_wire::template::TemplateError;

use super::report::FailureReport;
use super::{Arrival, Qp, QpAttr, QpInit, QpState};
use crate::cc::{CongestionControl, CongestionController};
use crate::counters::Counters;
use crate::recovery::Reliability;
use crate::reject::Why;
use crate::rtt::Histogram;
use crate::time::{Duration, Instant};

/// All of a queue pair that can be asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpInfo {
    /// State and attributes. An attribute is `None` until a modify since RESET has given it.
    /// `rq_psn` is the PSN expected next and `sq_psn` the one the next new packet gets.
    pub attr: QpAttr,
    /// What is fixed since creation.
    pub init: QpInit,
    /// In SQD with requests still running.
    pub sq_draining: bool,
}

/// What is true of a QP at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Gauges {
    /// Packets that may be in flight.
    pub window: u32,
    /// Sending rate, bits per second on the wire; 0: no limit.
    pub rate: u64,
    /// Packets in flight.
    pub in_flight: u32,
    /// Sends posted and not completed.
    pub sends_posted: u32,
    /// READs and atomics in progress.
    pub reads: u32,
    /// Smoothed round-trip time; `None` before the first.
    pub srtt: Option<Duration>,
    /// Mean deviation of round-trip times from it.
    pub rttvar: Duration,
    /// Packets received ahead of the expected PSN, of a selective QP.
    pub ahead: u32,
}

impl Qp {
    /// The path of a connected QP, from RTR on.
    #[must_use]
    pub fn path(&self) -> Option<&AddressVector> {
        self.template.as_ref().map(|_| &self.cold.av)
    }

    /// VLAN id of the packets it takes, 0: none. Behind a UDP socket always 0.
    #[must_use]
    pub fn vid(&self) -> u16 {
        self.cold.vid
    }

    /// Number of the peer, 0 before RTR.
    #[must_use]
    pub fn dest_qpn(&self) -> Qpn {
        self.cold.dest_qpn
    }

    /// Notes where a packet came from that was refused with [`Why::Peer`], for the report of a
    /// failure.
    pub fn note_stray(&mut self, from: &Arrival) {
        self.cold.stray = Some(Box::new(*from));
    }

    /// A congestion notification (CNP) for this QP. Nothing is answered; one that is not from the
    /// peer counts as any packet that is not (case 94).
    pub fn handle_cnp(&mut self, now: Instant, from: &Arrival) {
        if self.tx.state.sends() && self.is_on_path(from) {
            self.counters.rare().cnps_in += 1;
            if self.cc.on_cnp(now) {
                self.counters.rare().cnps_handled += 1;
            } else {
                self.counters.rare().cnps_ignored += 1;
            }
        } else {
            let why = if self.tx.state.sends() {
                Why::Peer
            } else {
                Why::State
            };
            self.discard(why);
        }
    }

    /// Round-trip times.
    #[must_use]
    pub fn rtt(&self) -> &Histogram {
        static NONE: Histogram = Histogram::EMPTY;
        self.cold.rtt.as_deref().unwrap_or(&NONE)
    }

    /// What the requester may do and does at this moment.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            window: self.window_psns(),
            rate: self.rate().as_bits_per_second(),
            in_flight: match &self.selective {
                Some(selective) => selective.in_flight(),
                None => self.tx.una_psn.distance_to(self.tx.next_psn).unsigned_abs(),
            },
            sends_posted: self.sq.len(),
            reads: self.tx.reads.into(),
            srtt: self.cold.rtt_estimator.srtt(),
            rttvar: self.cold.rtt_estimator.rttvar(),
            ahead: self.selective.as_ref().map_or(0, |s| s.ahead()),
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters.all()
    }

    /// Why the QP went to ERR by itself, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&FailureReport> {
        self.cold.failure.as_deref()
    }

    /// Sends posted and not completed.
    #[must_use]
    pub fn sends_posted(&self) -> u32 {
        self.sq.len()
    }

    /// State, attributes and capacities as they are now.
    #[must_use]
    pub fn query(&self) -> QpInfo {
        let (cold, given) = (&*self.cold, &self.cold.given);
        let has = |flag| given.has.contains(flag).then_some(());
        let attr = QpAttr {
            state: Some(self.tx.state),
            cur_state: Some(self.tx.state),
            en_sqd_async_notify: Some(cold.notify_drained),
            access: has(Has::ACCESS).map(|()| cold.access),
            pkey_index: given.pkey_index,
            pkey: cold.pkey,
            port: given.port,
            qkey: has(Has::QKEY).and_then(|()| Some(cold.datagrams.as_ref()?.qkey)),
            av: has(Has::AV).map(|()| cold.av),
            path_mtu: has(Has::PATH_MTU).map(|()| self.tx.mtu),
            timeout: given.timeout,
            retry_cnt: has(Has::RETRY_CNT).map(|()| cold.retry_cnt),
            rnr_retry: has(Has::RNR_RETRY).map(|()| cold.rnr_retry),
            rq_psn: has(Has::RQ_PSN).map(|()| self.rx.expected_psn),
            max_rd_atomic: has(Has::MAX_RD_ATOMIC).map(|()| self.tx.max_reads),
            min_rnr_timer: has(Has::MIN_RNR_TIMER).map(|()| cold.min_rnr_timer),
            sq_psn: has(Has::SQ_PSN).map(|()| self.tx.max_psn),
            max_dest_rd_atomic: has(Has::MAX_DEST_RD_ATOMIC).map(|()| self.replay.limit()),
            dest_qpn: has(Has::DEST_QPN).map(|()| cold.dest_qpn),
            congestion: given.congestion.clone(),
            rate_limit: has(Has::RATE_LIMIT).map(|()| self.rate_limit),
            reliability: given.reliability,
        };
        QpInfo {
            attr,
            init: self.cold.init,
            sq_draining: self.tx.state == QpState::Sqd && self.sq.head != self.sq.started,
        }
    }

    /// PSN the responder expects next.
    #[must_use]
    pub fn expected_psn(&self) -> Psn {
        self.rx.expected_psn
    }

    /// PSN the next new request packet gets, behind it the oldest unacknowledged one.
    #[must_use]
    pub fn send_psns(&self) -> (Psn, Psn) {
        (self.tx.max_psn, self.tx.una_psn)
    }

    /// The P_Key that a modify with these attributes leaves.
    pub(super) fn pkey_after(&self, attr: &QpAttr) -> PKey {
        match attr.pkey_index {
            Some(_) => attr.pkey,
            None => self.cold.pkey,
        }
    }

    /// The entry of the P_Key table this QP uses has changed.
    ///
    /// # Errors
    /// The path of this QP cannot be used any more; nothing changed.
    pub fn set_pkey(&mut self, pkey: PKey) -> Result<(), TemplateError> {
        let cold = &*self.cold;
        if self.template.is_some() {
            let (av, class, dest) = (cold.av, cold.traffic_class, cold.dest_qpn);
            self.make_templates(&av, class, dest, pkey)?;
        }
        self.cold.pkey = pkey;
        Ok(())
    }
}

bitflags! {
    /// Attributes that were given, whose values are where they are used.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    struct Has: u16 {
        const ACCESS = 1;
        const QKEY = 1 << 1;
        const AV = 1 << 2;
        const PATH_MTU = 1 << 3;
        const RETRY_CNT = 1 << 4;
        const RNR_RETRY = 1 << 5;
        const RQ_PSN = 1 << 6;
        const MAX_RD_ATOMIC = 1 << 7;
        const MIN_RNR_TIMER = 1 << 8;
        const SQ_PSN = 1 << 9;
        const MAX_DEST_RD_ATOMIC = 1 << 10;
        const DEST_QPN = 1 << 11;
        const RATE_LIMIT = 1 << 12;
    }
}

/// What was given since RESET, for `query`.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    has: Has,
    // Whose values are nowhere else.
    pkey_index: Option<u16>,
    port: Option<u8>,
    timeout: Option<u8>,
    congestion: Option<CongestionControl>,
    reliability: Option<Reliability>,
}

impl Given {
    /// The code of the ACK timeout.
    pub(super) fn timeout(&self) -> Option<u8> {
        self.timeout
    }

    /// How losses are repaired.
    pub(super) fn reliability(&self) -> Option<Reliability> {
        self.reliability
    }

    /// Notes every attribute that `new` gives. Each is named, so that none can be forgotten.
    pub(super) fn note(&mut self, new: &QpAttr) {
        let QpAttr {
            state: _,
            cur_state: _,
            en_sqd_async_notify: _,
            access,
            pkey_index,
            pkey: _,
            port,
            qkey,
            av,
            path_mtu,
            timeout,
            retry_cnt,
            rnr_retry,
            rq_psn,
            max_rd_atomic,
            min_rnr_timer,
            sq_psn,
            max_dest_rd_atomic,
            dest_qpn,
            congestion,
            rate_limit,
            reliability,
        } = new;
        for (flag, is_given) in [
            (Has::ACCESS, access.is_some()),
            (Has::QKEY, qkey.is_some()),
            (Has::AV, av.is_some()),
            (Has::PATH_MTU, path_mtu.is_some()),
            (Has::RETRY_CNT, retry_cnt.is_some()),
            (Has::RNR_RETRY, rnr_retry.is_some()),
            (Has::RQ_PSN, rq_psn.is_some()),
            (Has::MAX_RD_ATOMIC, max_rd_atomic.is_some()),
            (Has::MIN_RNR_TIMER, min_rnr_timer.is_some()),
            (Has::SQ_PSN, sq_psn.is_some()),
            (Has::MAX_DEST_RD_ATOMIC, max_dest_rd_atomic.is_some()),
            (Has::DEST_QPN, dest_qpn.is_some()),
            (Has::RATE_LIMIT, rate_limit.is_some()),
        ] {
            if is_given {
                self.has |= flag;
            }
        }
        self.pkey_index = pkey_index.or(self.pkey_index);
        self.port = port.or(self.port);
        self.timeout = timeout.or(self.timeout);
        self.reliability = reliability.or(self.reliability);
        if congestion.is_some() {
            self.congestion.clone_from(congestion);
        }
    }
}
