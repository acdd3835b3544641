//! Attributes modified at random moments, to the values they have and to others that the work can
//! bear.

use xroce_net::sim::Rng;
use xroce_proto::cc::{CongestionControl, Fixed, Rate};
use xroce_proto::memory::Access;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_wire::newtypes::Qpn;
use xroce_wire::syndrome::RnrTimer;

use crate::common::lane::Lane;
use crate::common::{ALL_ACCESS, World};
use crate::config::{Config, PairConfig, Strict, pick};
use crate::quiet::is_patient;

/// Modifies attributes in the course of a run.
pub(crate) struct Modifier {
    rng: Rng,
    /// Modifies that were not refused.
    pub(crate) accepted: u64,
    is_calm: bool,
}

impl Modifier {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed ^ 0x6d6f_6469_6679),
            accepted: 0,
            is_calm: false,
        }
    }

    /// Perhaps modifies one attribute; when the network is calm all are what they were. Returns when
    /// it wants to be asked again at the latest.
    pub(crate) fn turn(
        &mut self,
        world: &mut World,
        lanes: &[Lane],
        config: &Config,
        calm: bool,
    ) -> Option<u64> {
        if config.modify_ppm == 0 || self.is_calm {
            return None;
        }
        if calm {
            self.is_calm = true;
            for (lane, pair) in lanes.iter().zip(twice(config)) {
                restore(world, lane, pair);
            }
            return None;
        }
        if self.rng.chance_ppm(config.modify_ppm) {
            let n = self.rng.index(lanes.len());
            let pair = &config.pairs[n / 2];
            self.modify(world, &lanes[n], pair, config.strict != Strict::No);
        }
        // A queue pair that was made to wait for ever is asked again.
        Some(world.net.now() + 50_000)
    }

    fn modify(&mut self, world: &mut World, lane: &Lane, pair: &PairConfig, is_quiet: bool) {
        let (host, qpn) = (lane.from, lane.qpns[0]);
        let before = world.hosts[host].engine.qp_state(qpn);
        let mut attr = QpAttr::default();
        for _ in 0..=self.rng.below(2) {
            self.choose(&mut attr, world, host, pair, is_quiet);
        }
        let engine = &mut world.hosts[host].engine;
        // Most is for SQD, which may last no longer than this.
        let for_a_moment = before == Some(QpState::Rts) && self.rng.below(2) == 0;
        if for_a_moment {
            engine.modify_qp(qpn, &QpAttr::state(QpState::Sqd)).unwrap();
        }
        self.accepted += u64::from(engine.modify_qp(qpn, &attr).is_ok());
        if for_a_moment {
            engine.modify_qp(qpn, &QpAttr::state(QpState::Rts)).unwrap();
        }
        assert_eq!(engine.qp_state(qpn), before);
    }

    /// Sets one attribute: in one of two cases to what it is.
    fn choose(
        &mut self,
        attr: &mut QpAttr,
        world: &World,
        host: usize,
        pair: &PairConfig,
        is_quiet: bool,
    ) {
        let rng = &mut self.rng;
        let same = rng.below(2) == 0;
        let own = pair.max_rd_atomic[host];
        let peers = pair.max_rd_atomic[1 - host];
        match rng.below(10) {
            0 if same => attr.max_rd_atomic = Some(own),
            0 => attr.max_rd_atomic = Some(1 + u8::try_from(rng.below(own.into())).unwrap()),
            1 if same => attr.max_dest_rd_atomic = Some(peers),
            1 => attr.max_dest_rd_atomic = Some(pick(rng, &[peers, peers + 1, 16, 128])),
            2 if same => attr.timeout = Some(pair.timeout),
            2 => attr.timeout = Some(pick(rng, &[0, 14])),
            3 if same || !is_quiet => attr.retry_cnt = Some(7),
            3 => attr.retry_cnt = Some(u8::try_from(rng.below(8)).unwrap()),
            4 => attr.rnr_retry = Some(7),
            5 if same => attr.min_rnr_timer = RnrTimer::new(pair.rnr_timer),
            5 => attr.min_rnr_timer = RnrTimer::new(1 + u8::try_from(rng.below(8)).unwrap()),
            6 => attr.access = Some(access(rng, pair, host)),
            7 if same => attr.rate_limit = Some(pair.rate_limit),
            7 => {
                let bps = pick(rng, &[1_000, 50_000_000, 300_000_000, 5_000_000_000]);
                let rate = Rate::bits_per_second(bps);
                if !pair.limits[1 - host].reads || (!is_quiet && is_patient(pair, rate)) {
                    attr.rate_limit = Some(rate);
                }
            }
            8 if same => attr.congestion = Some(pair.congestion()),
            8 => attr.congestion = Some(other_control(rng, pair)),
            _ => {
                let [left, right] = &world.hosts;
                let [me, peer] = if host == 0 {
                    [left, right]
                } else {
                    [right, left]
                };
                let mut av = me.path_to(peer);
                let dscp = if same {
                    pair.dscp
                } else {
                    pick(rng, &[0, 8, 26])
                };
                av.traffic_class = dscp << 2 | 2;
                attr.av = Some(av);
            }
        }
    }
}

/// The pair of each lane.
fn twice(config: &Config) -> impl Iterator<Item = &PairConfig> {
    config.pairs.iter().flat_map(|pair| [pair, pair])
}

/// All rights that the peer needs, with or without those that it does not.
fn access(rng: &mut Rng, pair: &PairConfig, host: usize) -> Access {
    let mut access = ALL_ACCESS;
    let asks = pair.limits[1 - host];
    if rng.below(2) == 0 {
        access.set(Access::REMOTE_ATOMIC, asks.atomics);
        access.set(Access::FLUSH_GLOBAL, asks.flushes);
        access.set(Access::REMOTE_READ, asks.reads);
    }
    access
}

/// Another algorithm, or another window: never more in flight than the timeout is made for.
fn other_control(rng: &mut Rng, pair: &PairConfig) -> CongestionControl {
    if rng.below(2) == 0 {
        let window = 1 + u32::try_from(rng.below(pair.window.into())).unwrap();
        return CongestionControl::Fixed(Fixed::new(pair.rate, window));
    }
    let control = pick(rng, &["fixed", "dcqcn", "dcqcn-mlx5", "swift", "nscc"]);
    let mut other = pair.clone();
    other.control = control;
    other.congestion()
}

/// Everything as it was given first, through SQD, where most of it is allowed.
fn restore(world: &mut World, lane: &Lane, pair: &PairConfig) {
    let (host, qpn): (usize, Qpn) = (lane.from, lane.qpns[0]);
    let engine = &mut world.hosts[host].engine;
    let attr = QpAttr {
        timeout: Some(pair.timeout),
        retry_cnt: Some(pair.retry_cnt),
        max_rd_atomic: Some(pair.max_rd_atomic[host]),
        ..QpAttr::default()
    };
    engine.modify_qp(qpn, &QpAttr::state(QpState::Sqd)).unwrap();
    engine.modify_qp(qpn, &attr).unwrap();
    engine.modify_qp(qpn, &QpAttr::state(QpState::Rts)).unwrap();
    let attr = QpAttr {
        rate_limit: Some(pair.rate_limit),
        congestion: Some(pair.congestion()),
        ..QpAttr::default()
    };
    engine.modify_qp(qpn, &attr).unwrap();
}
