//! What the daemon says about itself.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::PoisonError;

use rustix::time::{ClockId, clock_gettime};
use xroce_api::Request;
use xroce_api::clock;
use xroce_api::message::{DeviceReport, Page, QpReport, Refusal, Report, SessionReport};
use xroce_net::datapath::Datapath;
use xroce_wire::newtypes::Qpn;

use crate::device::Device;
use crate::listener::Common;
use crate::serve::Server;
use crate::session::{Answer, Vitals};

/// Queue pairs and processes of a page: as many as fit in a message for certain.
const QPS: usize = 16;
const SESSIONS: usize = 64;

/// Whether a user may see and change what belongs to others.
pub(crate) fn is_operator(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Answers requests that are about the daemon; `None`: it is another one.
pub(crate) fn answer(
    common: &Common,
    who: &Arc<Vitals>,
    request: &Request,
) -> Option<Result<Answer, Refusal>> {
    match request {
        Request::Report => {
            let sessions = visible(common, who).len();
            Some(Answer::of(&report(common, sessions)))
        }
        Request::Sessions { after } => {
            let mut sessions = visible(common, who);
            sessions.retain(|s| after.is_none_or(|after| s.session > after));
            Some(Answer::of(&Page::of(sessions, SESSIONS)))
        }
        Request::Qps { after } => {
            let sessions = visible(common, who);
            let numbers: Vec<u32> = sessions.iter().map(|s| s.session).collect();
            let devices = common.devices.iter();
            let each = devices.flat_map(|d| d.qps(&numbers, *after, QPS + 1));
            let mut qps: Vec<QpReport> = each.collect();
            qps.sort_by_key(|qp| (qp.session, qp.qpn.value()));
            Some(Answer::of(&Page::of(qps, QPS)))
        }
        _ => None,
    }
}

/// What the daemon has and does, to somebody who sees so many sessions.
pub(crate) fn report(common: &Common, sessions: usize) -> Report {
    Report {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        devices: common.devices.iter().filter_map(|d| d.report()).collect(),
        sessions: u32::try_from(sessions).unwrap_or(u32::MAX),
        expelled: common.devices.iter().map(|d| d.expelled()).sum(),
        rss: resident(),
    }
}

/// The processes that a user may see: all, or their own.
fn visible(common: &Common, who: &Vitals) -> Vec<SessionReport> {
    let all = is_operator(who.uid);
    let mut sessions = common.session_reports();
    sessions.retain(|session| all || session.uid == who.uid);
    sessions
}

/// Resident memory of this process, bytes; 0 if the system does not tell.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    pages.map_or(0, |pages: u64| pages * rustix::param::page_size() as u64)
}

pub(crate) fn device<D: Datapath + Send + 'static>(device: &Device<D>) -> Option<DeviceReport> {
    let addressing = device.addressing.read();
    let addressing = addressing.unwrap_or_else(PoisonError::into_inner);
    let gids = addressing.gids().iter().map(|(n, entry)| (n, entry.gid));
    let gids = gids.take(64).collect();
    drop(addressing);
    let up = device.is_up();
    let (name, port) = (device.name.clone(), device.port.clone());
    let made = device.mailbox.run(move |server| {
        server.show_clients();
        DeviceReport {
            device: name,
            port,
            up: up && server.broken.is_none(),
            gids,
            engine: server.engine.stats(),
            stats: server.engine.port_stats(),
            polls: server.turns.polls,
            busy_polls: server.turns.busy,
            asleep_ns: server.turns.asleep_ns,
            alive_ns: clock::now().since(server.began).as_nanos(),
            cpu_ns: cpu_time(),
        }
    });
    made.ok()
}

/// CPU time of this thread, ns.
fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

impl<D: Datapath> Server<D> {
    /// Queue pairs of some sessions, given in order, behind `after`, in order, up to `most`.
    pub(crate) fn qp_reports(
        &self,
        visible: &[u32],
        after: Option<(u32, Qpn)>,
        most: usize,
    ) -> Vec<QpReport> {
        let key = after.map(|(session, qpn)| (session, qpn.value()));
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = self.listing.range((from, Bound::Unbounded));
        let theirs = listed.filter(|((session, _), _)| visible.binary_search(session).is_ok());
        theirs
            .take(most)
            .filter_map(|(&(session, _), &qpn)| self.qp_report(session, qpn))
            .collect()
    }

    fn qp_report(&self, session: u32, qpn: Qpn) -> Option<QpReport> {
        let info = self.engine.query_qp(qpn)?;
        let rtt = self.engine.qp_rtt(qpn)?;
        let quantile = |per_mille| rtt.quantile(per_mille).map_or(0, |d| d.as_nanos());
        Some(QpReport {
            session,
            qpn,
            qp_type: info.init.qp_type,
            state: self.engine.qp_state(qpn)?,
            dest_qpn: info.attr.dest_qpn,
            peer: info.attr.av.map(|av| av.dst),
            counters: self.engine.qp_counters(qpn)?,
            gauges: self.engine.qp_gauges(qpn)?,
            rtt: (rtt.count() != 0).then(|| [500, 900, 990, 1000].map(quantile)),
        })
    }
}
