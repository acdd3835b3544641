//! Messages that take a receive, and their arrival.

use xroce_api::UdDest;
use xroce_proto::qp::QpType;
use xroce_proto::wc::{Completion, WcFlags, WcOpcode, WcStatus};
use xroce_proto::wr::{Data, SendFlags, SendOp, SendWr};
use xroce_wire::newtypes::{QKey, Qpn};

use super::life::{Op, Posted, SEND};
use super::{Churn, GRH, LEN_MAX, POOL, QKEY, pick};

/// How a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Send,
    WriteImm,
    Datagram,
    /// To all members of the group.
    Group,
    /// With a Q_Key nobody has.
    Foreign,
}

/// A message as sent; its number is its immediate data.
#[derive(Debug)]
pub(super) struct Message {
    life: usize,
    from: usize,
    way: Way,
    len: u32,
    solicited: bool,
    pub(super) arrived: u32,
}

/// Where in the constant bytes the data of a message is.
fn place(number: usize, len: u32) -> u64 {
    (number as u64 * 97) % (POOL - u64::from(len))
}

impl Churn {
    /// Posts a message of a connection.
    pub(super) fn send(&mut self, at: usize, from: usize) {
        let n = self.now[at];
        let kind = self.lives[n].kind;
        let way = match kind {
            QpType::Ud => pick(
                &mut self.rng,
                &[Way::Datagram, Way::Datagram, Way::Group, Way::Foreign],
            ),
            _ if self.rng.below(3) == 0 => Way::WriteImm,
            _ => Way::Send,
        };
        // Groups are joined at the second host.
        let way = if way == Way::Group && from == 1 {
            Way::Datagram
        } else {
            way
        };
        let most = if kind == QpType::Ud {
            self.mtu.bytes() as u64
        } else {
            LEN_MAX
        };
        let len = self.rng.below(most + 1) as u32;
        let target = self.lives[n].targets[1 - from];
        let (Some(key), true) = (target.rkey, way == Way::WriteImm) else {
            if way != Way::WriteImm {
                self.post_message(n, from, way, len, SendOp::SendImm);
            }
            return;
        };
        let va = target.va;
        self.post_message(n, from, way, len, |imm| SendOp::WriteImm {
            va,
            rkey: key,
            imm,
        });
    }

    fn post_message(
        &mut self,
        n: usize,
        from: usize,
        way: Way,
        len: u32,
        op: impl Fn([u8; 4]) -> SendOp,
    ) {
        let number = self.messages.len();
        let imm = (number as u32).to_be_bytes();
        let host = &mut self.world.hosts[from];
        let sge = host.sge(place(number, len), len);
        let flags = self.flags();
        let life = &mut self.lives[n];
        let posted = match way {
            Way::WriteImm => Op::Write {
                from: place(number, len),
                len,
            },
            _ => Op::Plain,
        };
        let wr_id = life.number(n, from);
        let wr = SendWr {
            wr_id,
            op: op(imm),
            flags,
            data: Data::Sges(&[sge]),
        };
        let engine = &mut self.world.hosts[from].engine;
        let qpn = life.qpns[from];
        let done = if life.kind == QpType::Ud {
            let key = if way == Way::Foreign { QKEY ^ 1 } else { QKEY };
            let to = UdDest {
                ah: self.sides[from].ah,
                qpn: life.qpns[1 - from],
                qkey: QKey::new(key),
            };
            let group = UdDest {
                ah: self.group_ah,
                ..to
            };
            engine.post_datagram(qpn, &wr, if way == Way::Group { &group } else { &to })
        } else {
            engine.post_send(qpn, &wr)
        };
        done.unwrap();
        let signaled = flags.contains(SendFlags::SIGNALED);
        life.sends[from].push_back(Posted {
            wr_id,
            signaled,
            op: posted,
        });
        life.queue[from].push_back(number);
        self.messages.push(Message {
            life: n,
            from,
            way,
            len,
            solicited: flags.contains(SendFlags::SOLICITED),
            arrived: 0,
        });
    }

    pub(super) fn flags(&mut self) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.rng.below(4) != 0);
        flags.set(SendFlags::FENCE, self.rng.below(5) == 0);
        flags.set(SendFlags::SOLICITED, self.rng.below(3) == 0);
        flags
    }

    /// Takes a completion: every work request at most once.
    pub(super) fn completed(&mut self, i: usize, wc: &Completion) {
        if wc.wr_id & SEND != 0 {
            return self.sent(i, wc);
        }
        let side = &mut self.sides[i];
        assert!(wc.wr_id < side.posted, "{wc:?} was never posted");
        assert!(side.received.insert(wc.wr_id), "{wc:?} came before");
        let life = self
            .lives
            .iter()
            .rposition(|l| l.qpns[i] == wc.qpn && !l.over);
        let life = life.unwrap_or_else(|| panic!("{wc:?} of a QP that is gone"));
        if wc.status != WcStatus::Success {
            assert!(self.lives[life].doomed, "{wc:?} of {:?}", self.lives[life]);
            return;
        }
        self.received(i, wc, life);
    }

    fn received(&mut self, i: usize, wc: &Completion, life: usize) {
        let number = u32::from_be_bytes(wc.imm) as usize;
        let message = &self.messages[number];
        let &Message { way, len, from, .. } = message;
        assert_eq!(from, 1 - i, "{wc:?} of {message:?}");
        let kind = self.lives[message.life].kind;
        assert_eq!(kind, self.lives[life].kind, "{wc:?} of {message:?}");
        let (grh, opcode) = match way {
            Way::Send => (0, WcOpcode::Recv),
            Way::WriteImm => (0, WcOpcode::RecvRdmaWithImm),
            Way::Datagram | Way::Group => (GRH, WcOpcode::Recv),
            Way::Foreign => panic!("{wc:?} has a wrong Q_Key"),
        };
        let to = self.lives[message.life].qpns[i];
        let member = way == Way::Group && self.lives[life].member;
        assert!(wc.qpn == to || member, "{wc:?} of {message:?} for {to:?}");
        if kind == QpType::Rc {
            assert_eq!(message.life, life, "{wc:?} of {message:?}, an old life");
        }
        assert_eq!(
            (wc.opcode, wc.byte_len as usize),
            (opcode, grh + len as usize)
        );
        assert_eq!(wc.flags.contains(WcFlags::SOLICITED), message.solicited);
        if way != Way::WriteImm {
            let at = self.sides[i].buffers[wc.wr_id as usize] + grh as u64;
            let data = self.world.hosts[i].bytes(at, len as usize);
            let sent = self.world.hosts[from].bytes(place(number, len), len as usize);
            assert!(data == sent, "{message:?} is mixed");
        }
        self.messages[number].arrived += 1;
        if way != Way::Group {
            self.in_its_turn(number, kind, from);
        }
    }

    /// RC: each, in order. Else in order at most, where the network keeps it.
    fn in_its_turn(&mut self, number: usize, kind: QpType, from: usize) {
        let queue = &mut self.lives[self.messages[number].life].queue[from];
        if kind == QpType::Rc {
            assert_eq!(queue.pop_front(), Some(number), "not the next message");
        } else if self.in_order {
            while queue
                .pop_front()
                .expect("a message came twice or out of order")
                != number
            {}
        }
    }

    pub(super) fn qpn_of(&self, at: usize, i: usize) -> Qpn {
        self.life(at).qpns[i]
    }
}
