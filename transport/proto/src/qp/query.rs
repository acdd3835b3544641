//! What a queue pair says about itself (`ibv_query_qp`), and its partition.

use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::{PKey, Psn, Qpn};
use xroce_wire::path::AddressVector;
use xroce_wire::template::TemplateError;

use super::report::FailureReport;
use super::{Arrival, Qp, QpAttr, QpInit, QpState};
use alloc::boxed::Box;

use crate::cc::CongestionController;
use crate::counters::Counters;
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
    /// peer counts as any packet that is not (`CASES.md` 94).
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
            window: self.cc.window_psns(),
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
        let given = &self.cold.given;
        let attr = QpAttr {
            state: Some(self.tx.state),
            cur_state: Some(self.tx.state),
            pkey: self.cold.pkey,
            rq_psn: given.rq_psn.map(|_| self.rx.expected_psn),
            sq_psn: given.sq_psn.map(|_| self.tx.max_psn),
            en_sqd_async_notify: Some(self.cold.notify_drained),
            ..given.clone()
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

/// Notes every attribute that `new` gives. Each is named, so that none can be forgotten.
pub(super) fn note(given: &mut QpAttr, new: &QpAttr) {
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
    given.access = access.or(given.access);
    given.pkey_index = pkey_index.or(given.pkey_index);
    given.port = port.or(given.port);
    given.qkey = qkey.or(given.qkey);
    given.av = av.or(given.av);
    given.path_mtu = path_mtu.or(given.path_mtu);
    given.timeout = timeout.or(given.timeout);
    given.retry_cnt = retry_cnt.or(given.retry_cnt);
    given.rnr_retry = rnr_retry.or(given.rnr_retry);
    given.rq_psn = rq_psn.or(given.rq_psn);
    given.max_rd_atomic = max_rd_atomic.or(given.max_rd_atomic);
    given.min_rnr_timer = min_rnr_timer.or(given.min_rnr_timer);
    given.sq_psn = sq_psn.or(given.sq_psn);
    given.max_dest_rd_atomic = max_dest_rd_atomic.or(given.max_dest_rd_atomic);
    given.dest_qpn = dest_qpn.or(given.dest_qpn);
    given.rate_limit = rate_limit.or(given.rate_limit);
    given.reliability = reliability.or(given.reliability);
    if congestion.is_some() {
        given.congestion.clone_from(congestion);
    }
}
