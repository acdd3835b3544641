//! Which request is answered by what, and the end of everything a process had.

use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use xroce_control::Request;
use xroce_control::reply::{Reason, Refusal};
use xroce_engine::EngineError;
use xroce_net::datapath::Datapath;
use xroce_net::gids::GidEntry;

use super::refuse::by_end;
use super::{Answer, Attached};
use crate::report;

impl<D: Datapath + Send + 'static> Attached<D> {
    /// Answers a request.
    pub(super) fn answer(
        &mut self,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        match request {
            Request::RegMr { pd, access, memory } => {
                Answer::of(&self.reg_mr(pd, access, memory, fds)?)
            }
            Request::ReregMr {
                lkey,
                pd,
                access,
                memory,
            } => Answer::of(&self.rereg_mr(lkey, pd, access, memory, fds)?),
            // Descriptors that nobody asked for are closed.
            other => self.answer_plain(other),
        }
    }

    fn answer_plain(&mut self, request: Request) -> Result<Answer, Refusal> {
        match request {
            Request::AllocPd => Answer::of(&self.alloc_pd()?),
            Request::DeregMr { lkey } => Answer::of(&self.dereg_mr(lkey)?),
            Request::AbandonMr { lkey } => Answer::of(&self.abandon_mr(lkey)?),
            Request::AllocMw { pd, mw_type } => Answer::of(&self.alloc_mw(pd, mw_type)?),
            Request::DeallocMw { mw } => Answer::of(&self.dealloc_mw(mw)?),
            Request::BindMw { mw, bind } => Answer::of(&self.bind_mw(mw, bind)?),
            Request::CreateChannel => self.create_channel(),
            Request::DestroyChannel { channel } => Answer::of(&self.destroy_channel(channel)?),
            Request::CreateCq { depth, channel } => self.create_cq(depth, channel),
            Request::ResizeCq { cq, depth } => self.resize_cq(cq, depth),
            Request::DestroyCq { cq } => Answer::of(&self.destroy_cq(cq)?),
            Request::CreateSrq { pd, attr } => self.create_srq(pd, attr),
            Request::ModifySrq { srq, max_wr, limit } => {
                Answer::of(&self.modify_srq(srq, max_wr, limit)?)
            }
            Request::QuerySrq { srq } => Answer::of(&self.query_srq(srq)?),
            Request::DestroySrq { srq } => Answer::of(&self.destroy_srq(srq)?),
            Request::CreateQp { init } => self.create_qp(init),
            Request::ModifyQp { qpn, attr, path } => Answer::of(&self.modify_qp(qpn, *attr, path)?),
            Request::DestroyQp { qpn } => Answer::of(&self.destroy_qp(qpn)?),
            Request::CreateAh { pd, attr } => Answer::of(&self.create_ah(pd, &attr)?),
            Request::DestroyAh { ah } => Answer::of(&self.destroy_ah(ah)?),
            Request::Capture { spec } => self.begin_capture(&spec),
            Request::CaptureStats => Answer::of(&self.capture_stats()?),
            Request::EndCapture => Answer::of(&self.end_capture()?),
            other => self.answer_query(other),
        }
    }

    /// Requests about queue pairs and the port.
    fn answer_query(&mut self, request: Request) -> Result<Answer, Refusal> {
        match request {
            Request::QueryQp { qpn } => {
                self.objects.check_qp(qpn)?;
                Answer::of(&self.query_qp(qpn)?)
            }
            Request::Counters { qpn } => {
                self.objects.check_qp(qpn)?;
                let counters = self
                    .engine(move |engine| engine.qp_counters(qpn).ok_or(EngineError::NoQp(qpn)));
                Answer::of(&counters?)
            }
            Request::Failure { qpn } => {
                self.objects.check_qp(qpn)?;
                let failure = self.engine(move |engine| Ok(engine.failure(qpn)));
                Answer::of(&failure?)
            }
            Request::AttachMcast { qpn, group } => {
                self.objects.check_qp(qpn)?;
                Answer::of(&self.engine(move |engine| engine.attach_mcast(qpn, group))?)
            }
            Request::DetachMcast { qpn, group } => {
                self.objects.check_qp(qpn)?;
                Answer::of(&self.engine(move |engine| engine.detach_mcast(qpn, group))?)
            }
            Request::Gids => Answer::of(&self.gids()),
            Request::Up => Answer::of(&self.device.is_up()),
            Request::PKey { index } => {
                Answer::of(&self.engine(move |engine| Ok(engine.pkey(index)))?)
            }
            Request::SetPKey { index, pkey } => {
                self.check_operator()?;
                Answer::of(&self.engine(move |engine| engine.set_pkey(index, pkey))?)
            }
            Request::Stats => {
                let stats = self.device.mailbox.run(|server| {
                    let engine = server.engine.stats();
                    (engine, server.engine.port_stats())
                });
                Answer::of(&stats.map_err(by_end)?)
            }
            other => report::answer(&self.common, &self.vitals, &other).unwrap_or_else(|| {
                let text = "hello is said and a device opened once, at the beginning";
                Err(Refusal::new(Reason::Invalid, text))
            }),
        }
    }

    fn gids(&self) -> Vec<(u32, GidEntry)> {
        let addressing = self.device.addressing.read();
        let addressing = addressing.unwrap_or_else(PoisonError::into_inner);
        let entries = addressing.gids().iter();
        entries.map(|(n, entry)| (n, entry.clone())).collect()
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
