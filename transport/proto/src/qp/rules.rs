//! What may be posted to a queue pair, for who posts to one that is elsewhere.
//!
//! A process whose queue pairs live in another one hears of a bad work request at once all the
//! same: it keeps these rules, which are those of [`Qp::post_send`](super::Qp::post_send) and the
//! like without the queue pair. That they are the same is a property test.

use xroce_wire::newtypes::PathMtu;

use super::sq::{message_len_max, total};
use super::{QpAttr, QpInit, QpState, QpType, atomic};
use crate::wr::{Data, PostError, RecvWr, SendOp, SendWr};

/// What a queue pair takes, by what it was made with and the changes that succeeded.
#[derive(Clone, Debug)]
pub struct PostRules {
    init: QpInit,
    state: QpState,
    max_rd_atomic: u8,
    mtu: PathMtu,
    /// Of datagrams.
    port_mtu: PathMtu,
}

impl PostRules {
    /// Of a new queue pair on a port that carries datagrams of `port_mtu`.
    #[must_use]
    pub fn new(init: &QpInit, port_mtu: PathMtu) -> Self {
        Self {
            init: *init,
            state: QpState::Reset,
            max_rd_atomic: 0,
            mtu: PathMtu::Mtu256,
            port_mtu,
        }
    }

    /// After a modify that succeeded. States that a queue pair goes to by itself (ERR, SQE) take
    /// what RTS takes.
    pub fn note(&mut self, attr: &QpAttr) {
        if let Some(state) = attr.state {
            self.state = state;
            if state == QpState::Reset {
                (self.max_rd_atomic, self.mtu) = (0, PathMtu::Mtu256);
            }
        }
        if let Some(most) = attr.max_rd_atomic {
            self.max_rd_atomic = most;
        }
        if let Some(mtu) = attr.path_mtu {
            self.mtu = mtu;
        }
    }

    /// The state last asked for.
    #[must_use]
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// What it was made with.
    #[must_use]
    pub const fn init(&self) -> &QpInit {
        &self.init
    }

    /// Whether a send may be posted when `posted` are not completed; `datagram`: a destination is
    /// given with it.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn check_send(
        &self,
        wr: &SendWr<'_>,
        datagram: bool,
        posted: u32,
    ) -> Result<(), PostError> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State(self.state));
        }
        if datagram {
            self.check_datagram(wr)?;
            return self.check_room(wr, posted, self.port_mtu);
        }
        if self.init.qp_type != QpType::Rc {
            super::uc::check_operation(self.init.qp_type, &wr.op)?;
        }
        if self.max_rd_atomic == 0 && wr.op.takes_rd_atomic() {
            return Err(PostError::NoRdAtomic);
        }
        self.check_room(wr, posted, self.mtu)
    }

    fn check_datagram(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.init.qp_type != QpType::Ud {
            return Err(PostError::Connected(self.init.qp_type));
        }
        if !matches!(wr.op, SendOp::Send | SendOp::SendImm(_)) {
            return Err(PostError::Operation(QpType::Ud));
        }
        let (given, max) = (len_of(&wr.data), self.port_mtu.bytes());
        if given > max as u64 {
            return Err(PostError::DatagramTooLong { given, max });
        }
        Ok(())
    }

    /// What the queue itself checks, in its order.
    fn check_room(&self, wr: &SendWr<'_>, posted: u32, mtu: PathMtu) -> Result<(), PostError> {
        let full = PostError::QueueFull {
            depth: self.init.max_send_wr,
        };
        if posted >= self.init.max_send_wr {
            return Err(full);
        }
        let given = len_of(&wr.data);
        match wr.op {
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::Write { .. }
            | SendOp::WriteImm { .. }
            | SendOp::Read { .. } => {}
            SendOp::BindMw { .. } if given != 0 => return Err(PostError::NoData { given }),
            SendOp::BindMw { .. } => return Ok(()),
            ref rare => atomic::check_data(rare, &wr.data)?,
        }
        match wr.data {
            Data::Inline(_) if matches!(wr.op, SendOp::Read { .. }) => {
                return Err(PostError::InlineRead);
            }
            Data::Inline(_) if given > u64::from(self.init.max_inline) => {
                let max = self.init.max_inline;
                return Err(PostError::InlineTooLong { given, max });
            }
            // The queue stores a single SGE beside nothing: every queue pair takes one.
            Data::Sges(sges) if sges.len() > usize::from(self.init.max_send_sge) => {
                let (given, max) = (sges.len(), self.init.max_send_sge);
                return Err(PostError::TooManySges { given, max });
            }
            Data::Inline(_) | Data::Sges(_) => {}
        }
        let max = message_len_max(mtu);
        if given > max {
            return Err(PostError::MessageTooLong { given, max });
        }
        Ok(())
    }

    /// Whether a receive may be posted when `posted` are not completed.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn check_recv(&self, wr: &RecvWr<'_>, posted: u32) -> Result<(), PostError> {
        if self.state == QpState::Reset {
            return Err(PostError::State(QpState::Reset));
        }
        if self.init.srq.is_some() {
            return Err(PostError::HasSrq);
        }
        check_recv(wr, posted, self.init.max_recv_wr, self.init.max_recv_sge)
    }
}

/// Whether a receive queue of `depth` receives of `max_sge` SGEs, `posted` of them posted, takes
/// another.
///
/// # Errors
/// It is full, or the receive has too many SGEs.
pub fn check_recv(wr: &RecvWr<'_>, posted: u32, depth: u32, max_sge: u8) -> Result<(), PostError> {
    if posted >= depth {
        return Err(PostError::QueueFull { depth });
    }
    let given = wr.sges.len();
    if given > usize::from(max_sge) {
        let max = max_sge;
        return Err(PostError::TooManySges { given, max });
    }
    Ok(())
}

fn len_of(data: &Data<'_>) -> u64 {
    match data {
        Data::Sges(sges) => total(sges),
        Data::Inline(parts) => parts.iter().map(|part| part.len() as u64).sum(),
    }
}
