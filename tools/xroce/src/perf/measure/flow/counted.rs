//! What the queue pairs of a conversation, their engine and its port have counted.

use anyhow::Result;
use xroce_proto::counters::Counters;
use xroce_proto::time::{Duration, Instant};
use xroce_wire::newtypes::Qpn;

use super::Flow;
use crate::perf::device::Device;
use crate::perf::peer::message::SideCounters;
use crate::perf::report::stats::Stats;

/// Between two looks whether a peer that says nothing still sends packets: over a daemon each is a
/// question to it.
const HEARD: Duration = Duration::from_millis(20);

/// What the peer complained about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub(crate) struct NaksReceived {
    /// It had no receive posted.
    pub rnr_naks_received: u64,
    /// It missed a packet.
    pub sequence_naks_received: u64,
}

impl<D: Device> Flow<'_, D> {
    /// What this side counted in this step. Engine and port of a daemon count for others too.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn counters(&mut self) -> Result<SideCounters> {
        let (engine, port) = self.device.stats()?;
        let (engine_before, port_before) = &self.at_start;
        let mut sum = SideCounters {
            icrc_errors: engine.icrc_errors.saturating_sub(engine_before.icrc_errors),
            frames_dropped: port.rx_dropped.saturating_sub(port_before.rx_dropped),
            ..SideCounters::default()
        };
        for c in self.each_counters() {
            sum.retransmissions += c.retransmits;
            sum.timeouts += c.timeouts;
            sum.rnr_naks += c.rnr_naks_out;
            sum.sequence_naks += c.seq_naks_out;
        }
        Ok(sum)
    }

    /// Every counter of this side, of the steps that are over.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn stats(&mut self) -> Result<Stats> {
        let now = self.device.stats()?;
        Ok(Stats::new(
            &self.past,
            &self.at_first,
            &now,
            self.rtt.as_ref(),
        ))
    }

    /// What each queue pair has counted.
    fn each_counters(&self) -> impl Iterator<Item = Counters> {
        let counters = |&qpn: &Qpn| self.device.counters(qpn);
        self.qps.iter().filter_map(counters)
    }

    /// Whether packets of any kind were accepted since this was last asked; it is looked at now
    /// and then.
    pub(crate) fn has_heard(&mut self, now: Instant) -> bool {
        let (before, looked) = self.accepted;
        if now.since(looked) < HEARD {
            return false;
        }
        let accepted = self.each_counters().map(|c| c.rx_packets).sum();
        self.accepted = (accepted, now);
        accepted != before
    }

    /// NAKs received in this step.
    pub(crate) fn naks_received(&self) -> NaksReceived {
        let mut sum = NaksReceived::default();
        for c in self.each_counters() {
            sum.rnr_naks_received += c.rnr_naks_in;
            sum.sequence_naks_received += c.seq_naks_in;
        }
        sum
    }
}
