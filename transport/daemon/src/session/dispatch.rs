//! Which request is answered by what, and the end of everything a process had.

use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use xroce_api::message::{Reason, Refusal};
#[allow(clippy::wildcard_imports, reason = "what the table of verbs names")]
use xroce_api::types::*;
use xroce_api::{EngineError, Request};
use xroce_net::datapath::Datapath;

use super::{Answer, Attached, Carried};
use crate::report;

/// One arm for each row of the table of verbs: its request, carried out by the method of
/// [`Attached`] that has its name. Descriptors that nobody asked for are closed.
macro_rules! dispatch {
    (
        calls { $(
            $(#[$call_doc:meta])*
            $call:ident $Call:ident $(($($call_arg:ident: $call_type:ty),*))? -> $call_answer:ty;
        )* }
        ends { $(
            $(#[$end_doc:meta])*
            $end:ident $End:ident($($end_arg:ident: $end_type:ty),*) -> $end_answer:ty;
        )* }
        carries { $(
            $(#[$carry_doc:meta])*
            $carry:ident($($own_arg:ident: $own_type:ty),*) -> $own_answer:ty
                as $Carry:ident $(($($carry_arg:ident: $carry_type:ty),* $(,)?))? -> $carry_answer:ty;
        )* }
        daemon { $(
            $(#[$daemon_doc:meta])*
            $daemon:ident $Daemon:ident $(($($daemon_arg:ident: $daemon_type:ty),*))?
                -> $daemon_answer:ty;
        )* }
        session { $(
            $(#[$session_doc:meta])*
            $Session:ident $(($($session_arg:ident: $session_type:ty),*))? -> $session_answer:ty;
        )* }
    ) => {
        impl<D: Datapath + Send + 'static> Attached<D> {
            /// Answers a request.
            pub(super) fn answer(
                &mut self,
                request: Request,
                fds: Vec<OwnedFd>,
            ) -> Result<Answer, Refusal> {
                match request {
                    $(Request::$Call $({ $($call_arg),* })? => {
                        let answer: $call_answer = self.$call($($($call_arg),*)?)?;
                        Answer::of(&answer)
                    })*
                    $(Request::$End { $($end_arg),* } => Answer::of(&self.$end($($end_arg),*)?),)*
                    $(Request::$Carry $({ $($carry_arg),* })? => {
                        let carried: Carried<$carry_answer> =
                            self.$carry($($($carry_arg,)*)? fds)?;
                        Answer::with(&carried.answer, carried.fds)
                    })*
                    $(Request::$Daemon $({ $($daemon_arg),* })? => {
                        let carried: Carried<$daemon_answer> =
                            self.$daemon($($($daemon_arg),*)?)?.into();
                        Answer::with(&carried.answer, carried.fds)
                    })*
                    other => self.answer_session(&other),
                }
            }
        }
    };
}

xroce_api::verbs!(dispatch);

impl<D: Datapath + Send + 'static> Attached<D> {
    fn answer_session(&self, request: &Request) -> Result<Answer, Refusal> {
        report::answer(&self.common, &self.vitals, request).unwrap_or_else(|| {
            let text = "hello is said and a device opened once, at the beginning";
            Err(Refusal::new(Reason::Invalid, text))
        })
    }

    fn counters(&self, qpn: Qpn) -> Result<Counters, Refusal> {
        self.objects.check_qp(qpn)?;
        self.engine(move |engine| engine.qp_counters(qpn).ok_or(EngineError::NoQp(qpn)))
    }

    fn failure(&self, qpn: Qpn) -> Result<Option<Failure>, Refusal> {
        self.objects.check_qp(qpn)?;
        self.engine(move |engine| Ok(engine.failure(qpn)))
    }

    fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), Refusal> {
        self.objects.check_qp(qpn)?;
        self.engine(move |engine| engine.attach_mcast(qpn, group))
    }

    fn detach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), Refusal> {
        self.objects.check_qp(qpn)?;
        self.engine(move |engine| engine.detach_mcast(qpn, group))
    }

    fn is_up(&self) -> Result<bool, Refusal> {
        Ok(self.device.is_up())
    }

    fn pkey(&self, index: u16) -> Result<Option<PKey>, Refusal> {
        self.engine(move |engine| Ok(engine.pkey(index)))
    }

    fn set_pkey(&self, index: u16, pkey: PKey) -> Result<(), Refusal> {
        self.check_operator()?;
        self.engine(move |engine| engine.set_pkey(index, pkey))
    }

    fn stats(&self) -> Result<(EngineStats, PortStats), Refusal> {
        self.engine(|engine| Ok((engine.stats(), engine.port_stats())))
    }

    fn gids(&self) -> Result<Vec<(u32, GidEntry)>, Refusal> {
        let addressing = self.device.addressing.read();
        let addressing = addressing.unwrap_or_else(PoisonError::into_inner);
        let entries = addressing.gids().iter();
        Ok(entries.map(|(n, entry)| (n, entry.clone())).collect())
    }

    /// What concerns all processes is for root and the user of the daemon.
    pub(super) fn check_operator(&self) -> Result<(), Refusal> {
        if report::is_operator(self.vitals.uid) {
            return Ok(());
        }
        let text = format!(
            "user {} may not see or change what all processes share: only root and the user of the daemon",
            self.vitals.uid
        );
        Err(Refusal::new(Reason::Denied, text))
    }

    /// Destroys everything, in an order in which nothing is in use. One by one, so that the engine
    /// serves others in between.
    pub(super) fn destroy_all(&mut self) {
        // Nothing, if it does not capture.
        let _ = self.end_capture();
        let qpns: Vec<_> = self.objects.qps.keys().copied().collect();
        for qpn in qpns {
            let _ = self.destroy_qp(qpn);
        }
        let mws: Vec<_> = self.objects.mws.iter().copied().collect();
        for mw in mws {
            let _ = self.dealloc_mw(mw);
        }
        let lkeys: Vec<_> = self.objects.mrs.keys().copied().collect();
        for lkey in lkeys {
            let _ = self.dereg_mr(lkey);
        }
        let ahs: Vec<_> = self.objects.ahs.iter().copied().collect();
        for ah in ahs {
            let _ = self.destroy_ah(ah);
        }
        let srqs: Vec<_> = self.objects.srqs.keys().copied().collect();
        for srq in srqs {
            let _ = self.destroy_srq(srq);
        }
        let cqs: Vec<_> = self.objects.cqs.keys().copied().collect();
        for cq in cqs {
            let _ = self.destroy_cq(cq);
        }
        let counts = self.objects.counts();
        if counts != [0; 6] {
            tracing::error!(
                session = self.vitals.session,
                ?counts,
                "objects left behind"
            );
        }
        let id = self.id;
        let _ = self
            .device
            .mailbox
            .run(move |server| server.remove_client(id));
    }
}
