//! From RESET to RTS.

use xroce_api::message::Path;
use xroce_proto::memory::Access;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::recovery::{AdaptiveParams, Reliability};
use xroce_wire::newtypes::{PathMtu, QKey};
use xroce_wire::path::{AhAttr, Flow};
use xroce_wire::syndrome::RnrTimer;

use super::{Connected, Init, Qp, QpInner, Rc, Ready, Reset, Service, Uc, Ud};
use crate::endpoint::{Endpoint, EndpointError};
use crate::error::{Refused, VerbsError};

/// How a queue pair is connected; the defaults suit one switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectAttr {
    /// Which of the own addresses packets come from.
    pub sgid_index: u32,
    /// Service level, 0 ..= 15.
    pub sl: u8,
    /// DSCP(6) ECN(2). 2: packets may be marked when a queue fills.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// TTL or hop limit; 0: 64.
    pub hop_limit: u8,
    /// Path MTU; `None`: the largest both sides can.
    pub path_mtu: Option<PathMtu>,
    /// ACK timeout code, 0 ..= 31: 4.096 µs · 2^code, 0 waits for ever. RC only, as all below.
    pub timeout: u8,
    /// Retries after a timeout or sequence error, 0 ..= 7.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 0 ..= 6, 7: for ever.
    pub rnr_retry: u8,
    /// What the peer is told to wait when no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// READs, atomics and FLUSHes of this side at once, 0 ..= 128; the peer accepts 16 unless told
    /// otherwise.
    pub max_rd_atomic: u8,
    /// The same of the peer.
    pub max_dest_rd_atomic: u8,
}

impl Default for ConnectAttr {
    /// GID index 0, ECN capable, path MTU by agreement, timeout 14 (67 ms), 7 retries of each
    /// kind (RNR: for ever), RNR timer 0.64 ms, 16 READs.
    fn default() -> Self {
        Self {
            sgid_index: 0,
            sl: 0,
            traffic_class: 2,
            flow_label: 0,
            hop_limit: 0,
            path_mtu: None,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::at_least(640_000),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
        }
    }
}

impl<S: Connected> Qp<S, Reset> {
    /// To INIT (`ibv_modify_qp`), with what the peer may do here.
    ///
    /// # Errors
    /// The device is broken.
    pub fn init(self, access: Access) -> Result<Qp<S, Init>, Refused<Self>> {
        self.step(&QpAttr::init(access))
    }
}

impl Qp<Ud, Reset> {
    /// To INIT (`ibv_modify_qp`), with the key that datagrams for it must carry.
    ///
    /// # Errors
    /// The device is broken.
    pub fn init(self, qkey: QKey) -> Result<Qp<Ud, Init>, Refused<Self>> {
        self.step(&QpAttr::init_ud(qkey))
    }
}

impl<S: Service> Qp<S, Init> {
    /// What the peer needs to know, with the first address of the port.
    ///
    /// # Errors
    /// The port has no address.
    pub fn endpoint(&self) -> Result<Endpoint, VerbsError> {
        self.endpoint_at(0)
    }

    /// The same, with another address of the port.
    ///
    /// # Errors
    /// There is none at this index.
    pub fn endpoint_at(&self, sgid_index: u32) -> Result<Endpoint, VerbsError> {
        self.inner.endpoint(sgid_index)
    }
}

impl QpInner {
    fn endpoint(&self, sgid_index: u32) -> Result<Endpoint, VerbsError> {
        let backend = self.shared().backend();
        let gids = backend.gids()?;
        let entry = gids.iter().find(|(n, _)| *n == sgid_index);
        let (_, entry) = entry.ok_or(EndpointError::NoGid(sgid_index))?;
        let mut endpoint = Endpoint::new(entry.gid, self.qpn, self.psn);
        endpoint.path_mtu = backend.fixed().path_mtu;
        if let Reliability::Selective(params) = self.reliability {
            endpoint.selective = Some(params.range);
        }
        Ok(endpoint)
    }

    /// RTR attributes that both connected services take, and the way to the peer.
    fn rtr(&self, peer: &Endpoint, attr: &ConnectAttr) -> (QpAttr, Path) {
        let backend = self.shared().backend();
        let ah = AhAttr {
            dgid: peer.gid,
            sgid_index: attr.sgid_index,
            sl: attr.sl,
            traffic_class: attr.traffic_class,
            flow_label: attr.flow_label,
            hop_limit: attr.hop_limit,
        };
        let flow = Flow::Connected {
            local: self.qpn,
            peer: peer.qpn,
        };
        let agreed = peer.path_mtu.min(backend.fixed().path_mtu);
        let path_mtu = attr.path_mtu.unwrap_or(agreed);
        let rtr = QpAttr {
            path_mtu: Some(path_mtu),
            dest_qpn: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            ..QpAttr::state(QpState::Rtr)
        };
        (rtr, Path { attr: ah, flow })
    }

    /// How losses are repaired towards this peer.
    fn agreed(&self, peer: &Endpoint) -> Reliability {
        match (self.reliability, peer.selective) {
            (Reliability::Selective(params), Some(range)) => {
                Reliability::Selective(params.within(range))
            }
            (Reliability::Selective(_), None) => Reliability::Adaptive(AdaptiveParams::default()),
            (own, _) => own,
        }
    }

    /// Both steps, or none.
    fn bring_up(&self, rtr: &QpAttr, path: Option<Path>, rts: &QpAttr) -> Result<(), VerbsError> {
        let backend = self.shared().backend();
        let again = backend.query_qp(self.qpn)?.attr;
        backend.modify_qp(self.qpn, Box::new(rtr.clone()), path)?;
        self.modify(rts).inspect_err(|_| {
            // Values of the second step were bad: as if nothing had been tried. Receives that
            // were posted are gone.
            let init = QpAttr {
                state: Some(QpState::Init),
                pkey_index: again.pkey_index,
                port: again.port,
                access: again.access,
                qkey: again.qkey,
                ..QpAttr::default()
            };
            let back = self.modify(&QpAttr::state(QpState::Reset));
            if let Err(error) = back.and_then(|()| self.modify(&init)) {
                tracing::warn!(%error, "a queue pair did not go back to INIT");
            }
        })
    }
}

impl Qp<Rc, Init> {
    /// To RTS (`ibv_modify_qp`, twice): resolves the peer's address, agrees on the path MTU.
    ///
    /// The peer has to connect as well before it answers; until then requests are repeated.
    ///
    /// # Errors
    /// The peer's address is not known, or a value is out of range; if it is one of sending, the
    /// receives that were posted are gone.
    pub fn connect(
        self,
        peer: &Endpoint,
        attr: &ConnectAttr,
    ) -> Result<Qp<Rc, Ready>, Refused<Self>> {
        let (rtr, path) = self.inner.rtr(peer, attr);
        let rtr = QpAttr {
            max_dest_rd_atomic: Some(attr.max_dest_rd_atomic),
            min_rnr_timer: Some(attr.min_rnr_timer),
            reliability: Some(self.inner.agreed(peer)),
            ..rtr
        };
        let rts = QpAttr {
            timeout: Some(attr.timeout),
            retry_cnt: Some(attr.retry_cnt),
            rnr_retry: Some(attr.rnr_retry),
            max_rd_atomic: Some(attr.max_rd_atomic),
            ..QpAttr::rts(self.inner.psn)
        };
        match self.inner.bring_up(&rtr, Some(path), &rts) {
            Ok(()) => Ok(self.into_state()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }
}

impl Qp<Uc, Init> {
    /// To RTS (`ibv_modify_qp`, twice): resolves the peer's address, agrees on the path MTU.
    ///
    /// What is sent before the peer has connected is lost.
    ///
    /// # Errors
    /// The peer's address is not known, or a value is out of range.
    pub fn connect(
        self,
        peer: &Endpoint,
        attr: &ConnectAttr,
    ) -> Result<Qp<Uc, Ready>, Refused<Self>> {
        let (rtr, path) = self.inner.rtr(peer, attr);
        let rts = QpAttr::rts_unreliable(self.inner.psn);
        match self.inner.bring_up(&rtr, Some(path), &rts) {
            Ok(()) => Ok(self.into_state()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }
}

impl Qp<Ud, Init> {
    /// To RTS (`ibv_modify_qp`, twice).
    ///
    /// # Errors
    /// The device is broken.
    pub fn activate(self) -> Result<Qp<Ud, Ready>, Refused<Self>> {
        let rts = QpAttr::rts_unreliable(self.inner.psn);
        match self
            .inner
            .bring_up(&QpAttr::state(QpState::Rtr), None, &rts)
        {
            Ok(()) => Ok(self.into_state()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }
}
