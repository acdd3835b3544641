//! Protection domains, memory regions and windows of a process.

use std::os::fd::OwnedFd;

use xroce_api::message::{Across, Memory};
use xroce_api::message::{Reason, Refusal};
use xroce_api::{EngineError, Mr, Mw, MwId, MwType, Range, Rereg};
use xroce_engine::Engine;
use xroce_net::datapath::Datapath;
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_shm::{Piece, Region};
use xroce_wire::newtypes::{LKey, RKey};

use super::objects::Registered;
use super::refuse::{by_end, by_engine, by_import};
use super::{Attached, Carried, Vitals};
use crate::report;
use crate::tap::Tap;

/// Memory of a process, mapped.
struct Mapped {
    region: Region,
    memory: Memory,
}

impl Mapped {
    /// Maps what came, if it is what the request says and cannot be taken away again.
    fn new(memory: Memory, fds: Vec<OwnedFd>, who: &Vitals) -> Result<Self, Refusal> {
        if let Some(across) = &memory.across {
            let region = reach(across, memory.len, who)?;
            return Ok(Self {
                region,
                memory: Memory { lead: 0, ..memory },
            });
        }
        if memory.pieces.len() != fds.len() {
            let text = format!(
                "{} pieces of memory with {} descriptors: one is needed for each",
                memory.pieces.len(),
                fds.len()
            );
            return Err(Refusal::new(Reason::Invalid, text));
        }
        let pieces = memory.pieces.iter().zip(fds);
        let pieces = pieces.map(|(piece, fd)| Piece {
            fd,
            offset: piece.offset,
            len: piece.len,
        });
        let region = Region::from_pieces(pieces.collect()).map_err(|e| by_import(&e))?;
        Ok(Self { region, memory })
    }

    fn range(&self) -> Range<'_> {
        Range {
            region: &self.region,
            offset: self.memory.lead,
            len: self.memory.len,
            iova: Some(self.memory.iova),
        }
    }
}

/// Memory that stays in the process, of one that is trusted.
fn reach(across: &Across, len: u64, who: &Vitals) -> Result<Region, Refusal> {
    let Across { address, why } = across;
    if !report::is_operator(who.uid) {
        let text = format!(
            "{why}; it could only be read and written across processes, which the daemon does for root \
             and its own user, not for user {}: a process can make that take for ever",
            who.uid
        );
        return Err(Refusal::new(Reason::Denied, text));
    }
    Region::across(who.pid, address.value(), len).map_err(|error| {
        let text = format!(
            "{why}; and the daemon cannot read and write it in process {}: {error} (it needs \
             CAP_SYS_PTRACE, or kernel.yama.ptrace_scope 0 and the same user)",
            who.pid
        );
        Refusal::new(Reason::Denied, text)
    })
}

/// Atomics need memory that is shared.
fn check_atomics(mapped: &Mapped, access: Access) -> Result<(), Refusal> {
    match &mapped.memory.across {
        Some(across) if access.contains(Access::REMOTE_ATOMIC) => {
            let text = format!("{}; and without that there are no atomics", across.why);
            Err(Refusal::new(Reason::Invalid, text))
        }
        _ => Ok(()),
    }
}

impl<D: Datapath + Send + 'static> Attached<D> {
    pub(super) fn alloc_pd(&mut self) -> Result<Pd, Refusal> {
        self.objects.room_for_pd()?;
        let pd = self.device.mailbox.run(|server| server.engine.alloc_pd());
        let pd = pd.map_err(by_end)?;
        self.objects.pds.insert(pd);
        Ok(pd)
    }

    pub(super) fn reg_mr(
        &mut self,
        pd: Pd,
        access: Access,
        memory: Memory,
        fds: Vec<OwnedFd>,
    ) -> Result<Carried<Mr>, Refusal> {
        self.objects.check_pd(pd)?;
        self.objects.room_for_mr(memory.len)?;
        let mapped = Mapped::new(memory, fds, &self.vitals)?;
        check_atomics(&mapped, access)?;
        let region = mapped.region.clone();
        let made = self.engine(move |engine| engine.reg_mr_at(pd, &mapped.range(), access))?;
        self.keep(made, region);
        Ok(made.into())
    }

    fn keep(&mut self, made: Mr, region: Region) {
        let len = made.len;
        self.objects.take_bytes(len);
        self.objects
            .mrs
            .insert(made.lkey, Registered { region, len });
    }

    pub(super) fn rereg_mr(
        &mut self,
        lkey: LKey,
        pd: Option<Pd>,
        access: Option<Access>,
        memory: Option<Memory>,
        fds: Vec<OwnedFd>,
    ) -> Result<Carried<Mr>, Refusal> {
        self.objects.check_mr(lkey)?;
        if let Some(pd) = pd {
            self.objects.check_pd(pd)?;
        }
        let mapped = match memory {
            Some(memory) => {
                self.objects.room_for_mr(memory.len)?;
                let mapped = Mapped::new(memory, fds, &self.vitals)?;
                check_atomics(&mapped, access.unwrap_or(Access::all()))?;
                Some(mapped)
            }
            None => None,
        };
        let region = mapped.as_ref().map(|mapped| mapped.region.clone());
        let made = self.engine(move |engine| {
            let range = mapped.as_ref().map(Mapped::range);
            engine.rereg_mr(lkey, &Rereg { pd, access, range })
        })?;
        if let Some(old) = self.objects.mrs.remove(&lkey) {
            self.objects.give_bytes(old.len);
            self.keep(made, region.unwrap_or(old.region));
        }
        Ok(made.into())
    }

    pub(super) fn dereg_mr(&mut self, lkey: LKey) -> Result<(), Refusal> {
        self.objects.check_mr(lkey)?;
        self.engine(move |engine| engine.dereg_mr(lkey))?;
        if let Some(old) = self.objects.mrs.remove(&lkey) {
            self.objects.give_bytes(old.len);
        }
        Ok(())
    }

    /// Deregisters it now, or when no window is bound to it any more.
    pub(super) fn abandon_mr(&mut self, lkey: LKey) -> Result<(), Refusal> {
        match self.dereg_mr(lkey) {
            Err(refusal) if refusal.reason == Reason::Busy => {
                if !self.objects.orphans.contains(&lkey) {
                    self.objects.orphans.push(lkey);
                }
                Ok(())
            }
            done => done,
        }
    }

    fn reap_orphans(&mut self) {
        for lkey in std::mem::take(&mut self.objects.orphans) {
            // Those with windows are put back on the list.
            let _ = self.abandon_mr(lkey);
        }
    }

    pub(super) fn alloc_mw(&mut self, pd: Pd, mw_type: MwType) -> Result<Mw, Refusal> {
        self.objects.check_pd(pd)?;
        self.objects.room_for_mw()?;
        let made = self.engine(move |engine| engine.alloc_mw(pd, mw_type))?;
        self.objects.mws.insert(made.id);
        Ok(made)
    }

    pub(super) fn dealloc_mw(&mut self, mw: MwId) -> Result<(), Refusal> {
        self.objects.check_mw(mw)?;
        self.engine(move |engine| engine.dealloc_mw(mw))?;
        self.objects.mws.remove(&mw);
        self.reap_orphans();
        Ok(())
    }

    pub(super) fn bind_mw(&mut self, mw: MwId, bind: Bind) -> Result<RKey, Refusal> {
        self.objects.check_mw(mw)?;
        let bound = self.engine(move |engine| engine.bind_mw(mw, &bind));
        self.reap_orphans();
        bound
    }

    /// Has the engine do something.
    pub(super) fn engine<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Engine<Tap<D>>) -> Result<R, EngineError> + Send + 'static,
    ) -> Result<R, Refusal> {
        let done = self.device.mailbox.run(|server| run(&mut server.engine));
        done.map_err(by_end)?.map_err(|e| by_engine(&e))
    }
}
