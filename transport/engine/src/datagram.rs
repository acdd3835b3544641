//! Datagrams: address handles, sends with a destination, groups, and the way in.

use xroce_api::{Ah, EngineError, UdDest};
use xroce_net::datapath::{Datapath, Link, Rx};
use xroce_proto::memory::Pd;
use xroce_proto::qp::{AddressHandle, Cx, Destination, ModifyError, QpType};
use xroce_proto::time::Instant;
use xroce_proto::wr::SendWr;
use xroce_wire::frame::{Ecn, Frame};
use xroce_wire::newtypes::{Gid, Qpn, VlanTci};
use xroce_wire::opcode::Service;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::template::Lower;

use crate::engine::{Core, Engine};
use crate::late::{Late, LateReceives};
use crate::mcast::{Attached, GROUPS_MAX, MEMBERS_MAX, is_group};
use crate::rx::{again, arrival};

impl<D: Datapath> Engine<D> {
    /// What frames of the port start with.
    pub(crate) fn lower(&self) -> Lower {
        match self.port.caps().link {
            Link::Ethernet => Lower::Ethernet,
            Link::Udp => Lower::Udp,
        }
    }

    /// An address handle for a path, which the caller has resolved down to the MAC address.
    ///
    /// # Errors
    /// The PD does not exist, the path contradicts itself, or no number is left.
    pub fn create_ah(&mut self, pd: Pd, av: &AddressVector) -> Result<Ah, EngineError> {
        self.check_pd(pd)?;
        let handle = AddressHandle::new(self.lower(), av, pd).map_err(ModifyError::Path)?;
        let ah = self.core.ahs.insert(handle).map(Ah::new);
        ah.ok_or(EngineError::AhsExhausted)
    }

    /// Destroys an address handle. Datagrams posted with it before are sent all the same.
    ///
    /// # Errors
    /// It does not exist.
    pub fn destroy_ah(&mut self, ah: Ah) -> Result<(), EngineError> {
        let removed = self.core.ahs.remove(ah.value());
        removed.map(drop).map_err(|_| EngineError::NoAh(ah))
    }

    /// Posts a datagram on a UD queue pair; it leaves in the next poll.
    ///
    /// # Errors
    /// No such queue pair or address handle, or see [`xroce_proto::wr::PostError`]; nothing was
    /// posted then.
    #[inline]
    pub fn post_datagram(
        &mut self,
        qpn: Qpn,
        wr: &SendWr<'_>,
        to: &UdDest,
    ) -> Result<(), EngineError> {
        let core = &mut self.core;
        let ah = core
            .ahs
            .get(to.ah.value())
            .ok_or(EngineError::NoAh(to.ah))?;
        let found = core.qps.find_mut(qpn);
        let (index, entry) = found.ok_or(EngineError::NoQp(qpn))?;
        let to = Destination {
            ah,
            qpn: to.qpn,
            qkey: to.qkey,
        };
        entry.qp.post_datagram(wr, &to, &mut core.cqs)?;
        core.schedule.enlist(entry, index);
        Ok(())
    }

    /// Attaches a UD queue pair to a group: it receives what is sent there with its Q_Key. To be
    /// attached already is no error. Own datagrams do not come back to the own engine.
    ///
    /// # Errors
    /// No such queue pair, it is not of type UD, `group` is no group's address, a limit is
    /// reached, or the port cannot join the group.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), EngineError> {
        let index = self.ud_qp(qpn)?;
        if !is_group(group) {
            return Err(EngineError::NoGroup(group));
        }
        let is_new = self.core.groups.members(group).is_empty();
        match self.core.groups.attach(group, index) {
            Attached::Yes if is_new => {}
            Attached::Yes | Attached::Already => return Ok(()),
            Attached::Full => {
                return Err(EngineError::GroupFull {
                    groups: GROUPS_MAX,
                    members: MEMBERS_MAX,
                });
            }
        }
        if let Err(e) = self.port.join(group) {
            self.core.groups.detach(group, index);
            return Err(EngineError::Join {
                group,
                port: self.port.caps().name.clone(),
                reason: e.to_string(),
            });
        }
        Ok(())
    }

    /// Detaches a UD queue pair from a group.
    ///
    /// # Errors
    /// No such queue pair, or it is not attached.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), EngineError> {
        let index = self.ud_qp(qpn)?;
        if !self.core.groups.detach(group, index) {
            return Err(EngineError::NotAttached { qpn, group });
        }
        self.leave_if_empty(group);
        Ok(())
    }

    fn ud_qp(&self, qpn: Qpn) -> Result<u32, EngineError> {
        let index = self.core.qps.find(qpn).ok_or(EngineError::NoQp(qpn))?;
        let entry = self.core.qps.get(index).ok_or(EngineError::NoQp(qpn))?;
        match entry.qp.init().qp_type {
            QpType::Ud => Ok(index),
            other => Err(EngineError::NotUd(other)),
        }
    }

    /// Frames of a group nobody is in are dropped whether or not the port has left it.
    fn leave_if_empty(&mut self, group: Gid) {
        if self.core.groups.members(group).is_empty() {
            self.port.leave(group);
        }
    }

    /// A queue pair that is about to be destroyed leaves all its groups.
    pub(crate) fn leave_all(&mut self, index: u32) {
        for group in self.core.groups.groups_of(index) {
            self.core.groups.detach(group, index);
            self.leave_if_empty(group);
        }
    }
}

impl Core {
    fn receive_cnp(&mut self, now: Instant, frame: &Frame<'_>, to: Qpn) {
        if let Some((index, entry)) = self.qps.find_mut(to) {
            self.stats.delivered += 1;
            entry.qp.handle_cnp(now, &arrival(frame));
            // Its timers have moved.
            self.activate(index);
        } else {
            self.stats.unknown_qp += 1;
        }
    }

    /// A datagram, or a congestion notification, whose ICRC is right: to its queue pair, or to all members of its group.
    ///
    /// Parsed again, which is cheap: lending frame and packet would force them out of registers
    /// in the path of all other packets.
    #[inline(never)]
    pub(crate) fn receive_datagram(&mut self, now: Instant, rx: Rx<'_>, late: &mut Late<'_>) {
        let Some(frame) = again(rx) else { return };
        let Ok(pkt) = Packet::parse(frame.transport()) else {
            return;
        };
        if pkt.info().service == Service::Cnp {
            self.receive_cnp(now, &frame, pkt.dest_qp());
            return;
        }
        let vid = frame.vlan().map_or(0, VlanTci::vid);
        if !self.paths.admit(frame.dst(), vid) {
            self.stats.wrong_vlan += 1;
            return;
        }
        if let Some(late) = late {
            self.fetch_for_members(*late, &frame, &pkt);
        }
        let found;
        let to: &[u32] = if pkt.dest_qp() == Qpn::MULTICAST {
            self.groups.members(frame.dst())
        } else if let Some(index) = self.qps.find(pkt.dest_qp()) {
            found = [index];
            &found
        } else {
            &[]
        };
        if to.is_empty() {
            self.stats.unknown_qp += 1;
            return;
        }
        self.stats.delivered += 1;
        let grh = frame.grh();
        let ce = frame.ecn() == Ecn::Ce;
        let mut cx = Cx {
            now,
            mem: &mut self.mem,
            sink: &mut self.cqs,
        };
        for &index in to {
            // Nothing is owed for a datagram, so the QP need not be listed for transmission.
            if let Some(entry) = self.qps.get_mut(index) {
                entry.qp.handle_datagram(&mut cx, &grh, ce, &pkt);
            }
        }
    }

    /// See [`Core::fetch_receives`]; for every queue pair that a datagram goes to.
    fn fetch_for_members(
        &mut self,
        late: &mut dyn LateReceives,
        frame: &Frame<'_>,
        pkt: &Packet<'_>,
    ) {
        if pkt.dest_qp() != Qpn::MULTICAST {
            if let Some(index) = self.qps.find(pkt.dest_qp()) {
                self.fetch_receives(late, index, pkt);
            }
            return;
        }
        for n in 0..self.groups.members(frame.dst()).len() {
            if let Some(&index) = self.groups.members(frame.dst()).get(n) {
                self.fetch_receives(late, index, pkt);
            }
        }
    }
}
