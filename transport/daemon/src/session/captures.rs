//! The capture of a process.

use std::sync::PoisonError;

use xroce_api::message::{CaptureMade, CaptureSpec, CaptureStats, Reason, Refusal};
use xroce_control::capture;
use xroce_net::datapath::Datapath;
use xroce_proto::qp::QpState;
use xroce_shm::Region;
use xroce_wire::newtypes::Qpn;

use super::refuse::{by_end, by_system};
use super::{Attached, Carried};
use crate::bell::Bell;
use crate::serve::Server;
use crate::tap::{Capture, Connection, Own, Who};

impl<D: Datapath + Send + 'static> Attached<D> {
    pub(super) fn capture(&mut self, spec: CaptureSpec) -> Result<Carried<CaptureMade>, Refusal> {
        self.check_operator()?;
        let ring = capture::ring_for(&spec).map_err(|e| Refusal::new(Reason::Invalid, e))?;
        let bytes = capture::ring(ring).map_err(by_system)?.bytes();
        let bytes = usize::try_from(bytes).map_err(by_system)?;
        let (memory, file) = Region::with_file(bytes).map_err(by_system)?;
        let (bell, theirs) = Bell::new().map_err(by_system)?;
        let who = Who {
            session: self.vitals.session,
            pid: self.vitals.pid,
        };
        let max_frame = self.device.max_frame;
        let made = Capture::new(who, &spec, (&memory, ring), bell, self.own(), max_frame);
        let made = Box::new(made.map_err(by_system)?);
        let qp = spec.qp;
        let begun = self.device.mailbox.run(move |server| {
            server.engine.port_mut().begin(made)?;
            if qp.is_some() {
                server.trace_all();
            }
            // What could not begin is dropped by this thread, not by the engine's.
            Ok(())
        });
        match begun.map_err(by_end)? {
            Ok(()) => {
                tracing::info!(
                    session = who.session,
                    device = self.device.name,
                    ?spec,
                    "capture begins"
                );
                let ethernet = self.device.ethernet;
                Ok(Carried::with(
                    CaptureMade { ring, ethernet },
                    vec![file, theirs],
                ))
            }
            Err((there, _)) => Err(self.captured_already(there)),
        }
    }

    fn captured_already(&self, there: Who) -> Refusal {
        let device = &self.device.name;
        let text = if there.session == self.vitals.session {
            format!("this session captures on {device} already: end that capture first")
        } else {
            let Who { session, pid } = there;
            format!(
                "session {session} (process {pid}) captures on {device}, and one at a time can: wait \
                 for its end, or stop that process"
            )
        };
        Refusal::new(Reason::Busy, text)
    }

    /// What a UDP socket sends from; with Ethernet it stands in the frames.
    fn own(&self) -> Option<Own> {
        let addressing = self.device.addressing.read();
        let addressing = addressing.unwrap_or_else(PoisonError::into_inner);
        let (_, entry) = addressing.gids().iter().next()?;
        let src_port = addressing.src_port()?;
        let gid = entry.gid;
        Some(Own { gid, src_port })
    }

    pub(super) fn capture_stats(&self) -> Result<CaptureStats, Refusal> {
        let session = self.vitals.session;
        let stats = self.device.mailbox.run(move |server| {
            let capture = server.engine.port_mut().of(session);
            capture.map(|capture| capture.stats())
        });
        stats.map_err(by_end)?.ok_or_else(no_capture)
    }

    pub(super) fn end_capture(&mut self) -> Result<CaptureStats, Refusal> {
        let session = self.vitals.session;
        let ended = self
            .device
            .mailbox
            .run(move |server| server.engine.port_mut().end(session));
        let stats = ended.map_err(by_end)?.ok_or_else(no_capture)?.stats();
        tracing::info!(session, device = self.device.name, ?stats, "capture ends");
        Ok(stats)
    }
}

fn no_capture() -> Refusal {
    let text = "this session does not capture: begin a capture first";
    Refusal::new(Reason::NotFound, text)
}

impl<D: Datapath> Server<D> {
    /// Tells a capture what every queue pair is connected to.
    fn trace_all(&mut self) {
        for qpn in self.qpns() {
            self.tell_connection(qpn);
        }
    }

    /// Tells a capture of a queue pair that was asked to change to a state, if that is one with
    /// another connection.
    pub(super) fn reconnected(&mut self, qpn: Qpn, state: Option<QpState>) {
        if matches!(state, Some(QpState::Rtr | QpState::Reset)) && self.engine.port_mut().follows()
        {
            self.tell_connection(qpn);
        }
    }

    fn tell_connection(&mut self, qpn: Qpn) {
        let info = self.engine.query_qp(qpn);
        let to = info.and_then(|info| {
            let (qpn, av) = info.attr.dest_qpn.zip(info.attr.av)?;
            let peer = av.dst;
            Some(Connection { peer, qpn })
        });
        self.engine.port_mut().connected(qpn, to);
    }
}
