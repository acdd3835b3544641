//! Queue pairs and side channel moved together: while this side waits for a word or a message of
//! the other, its engine goes on answering packets.

use anyhow::{Result, anyhow, bail};
use xroce_engine::clock;
use xroce_proto::time::{Duration, Instant};
use xroce_wire::newtypes::Gid;

use super::line::{LOOK, Line, LineError, Role};
use super::message::KEY_LEN;
use crate::perf::device::Device;
use crate::perf::measure::flow::{Done, Flow};
use crate::perf::peer::message::{QpData, check_gid};
use crate::stop;

/// A peer that has finished hangs up within this time; until then it may need acknowledgements.
const FAREWELL: Duration = Duration::from_millis(3_000);
/// A peer that hung up long ago may still miss an acknowledgement: four of its timeouts of 67 ms.
const LINGER: Duration = Duration::from_millis(270);

/// What a peer had acknowledged before it hung up shows up within this time: its last message may be
/// in memory, or its completion under way from a daemon, when the end of the side channel is seen.
const SETTLE: Duration = Duration::from_millis(200);

/// A conversation with its queue pairs.
pub(super) struct Session<'a, D: Device> {
    /// Queue pairs and memory.
    pub flow: Flow<'a, D>,
    /// Side channel.
    pub line: &'a mut Line,
    /// Which side this is.
    pub role: Role,
    /// Own queue pairs.
    pub own: Vec<QpData>,
    /// Whether the peer may hang up before the traffic is over.
    pub may_leave: bool,
    /// The answer to a key that comes during the traffic, if one may.
    pub late: Option<[u8; KEY_LEN]>,
    patience: Duration,
    looked: Instant,
    heard: Instant,
    /// When it was seen that the peer has hung up.
    left: Option<Instant>,
}

impl<'a, D: Device> Session<'a, D> {
    /// Joins the two.
    pub(super) fn new(
        flow: Flow<'a, D>,
        line: &'a mut Line,
        role: Role,
        own: Vec<QpData>,
        patience: Duration,
    ) -> Self {
        let now = clock::now();
        Self {
            flow,
            line,
            role,
            own,
            may_leave: false,
            late: None,
            patience,
            looked: now,
            heard: now,
            left: None,
        }
    }

    /// Both sides send a message of the same kind, the client first.
    ///
    /// # Errors
    /// As [`Line::swap`], or the port failed.
    pub(super) fn swap<const N: usize>(
        &mut self,
        what: &'static str,
        own: &[u8; N],
    ) -> Result<[u8; N]> {
        let flow = &mut self.flow;
        let mut pump = || alive(flow);
        self.line
            .swap(self.role, what, own, self.patience, &mut pump)
    }

    /// A message of the peer alone.
    ///
    /// # Errors
    /// As [`Line::receive`], or the port failed.
    pub(super) fn receive<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let flow = &mut self.flow;
        let mut pump = || alive(flow);
        self.line.receive(what, self.patience, &mut pump)
    }

    /// The traffic begins: silence is counted from here.
    pub(super) fn begin(&mut self) {
        self.heard = clock::now();
    }

    /// One round of the engine and, now and then, of the side channel.
    ///
    /// # Errors
    /// The port failed, the peer is gone, or the user interrupts.
    #[inline]
    fn turn(&mut self) -> Result<()> {
        let now = clock::now();
        self.flow.turn(now)?;
        if now.since(self.looked) >= LOOK {
            self.looked = now;
            self.look(now)?;
        }
        Ok(())
    }

    fn look(&mut self, now: Instant) -> Result<()> {
        stop::check()?;
        if self.flow.has_heard(now) {
            self.heard = now;
        }
        self.line.look()?;
        if let Some(answer) = &self.late
            && self.line.take::<KEY_LEN>().is_some()
        {
            self.line.send("key", answer)?;
        }
        if self.line.is_over() && !self.may_leave {
            let left = *self.left.get_or_insert(now);
            if now.since(left) >= SETTLE {
                return Err(LineError::Left.into());
            }
        }
        if now.since(self.heard) >= self.patience {
            return Err(LineError::Still(self.patience).into());
        }
        Ok(())
    }

    /// One turn; appends what has completed to `done`.
    ///
    /// # Errors
    /// As [`Session::turn`], or a work request failed.
    #[inline]
    pub(super) fn reap(&mut self, done: &mut Vec<Done>) -> Result<()> {
        self.turn()?;
        self.flow.reap(done)
    }

    /// Nothing more to say: goes on answering packets until the peer has hung up, too. A peer
    /// that stays is no concern of ours.
    ///
    /// # Errors
    /// The port failed, or the user interrupts.
    pub(super) fn farewell(&mut self) -> Result<()> {
        self.line.finish();
        self.keep_answering(FAREWELL, |line| line.is_over())
    }

    /// The same where the side channel says nothing about when the peer has finished.
    ///
    /// # Errors
    /// As [`Session::farewell`].
    pub(super) fn linger(&mut self) -> Result<()> {
        self.keep_answering(LINGER, |_| false)
    }

    fn keep_answering(&mut self, limit: Duration, over: impl Fn(&Line) -> bool) -> Result<()> {
        let start = clock::now();
        while clock::now().since(start) < limit {
            self.flow.turn(clock::now())?;
            stop::check()?;
            self.line.look()?;
            // "done", if anything.
            self.line.clear();
            if over(self.line) {
                break;
            }
        }
        Ok(())
    }

    /// Does the rest of a conversation. If the peer just went away or went silent, the queue pairs
    /// may know why.
    ///
    /// # Errors
    /// What `rest` returns, or the failure of a queue pair.
    pub(super) fn finish<T>(mut self, rest: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        rest(&mut self).map_err(|e| {
            if !e.is::<LineError>() {
                return e;
            }
            if let Some(failure) = self.flow.failure() {
                return failure.context(e);
            }
            let advice = if self.flow.device().is_blind() {
                "over IPv4 a UDP socket does not see the identification in the peer's headers, which its \
                 ICRC covers: use AF_XDP (--backend xdp) with a peer that is not xroce"
            } else {
                "something on the way corrupts packets or rewrites addresses or ports (NAT)"
            };
            match self.flow.counters().map(|c| c.icrc_errors) {
                Ok(0) | Err(_) => e,
                Ok(n) => anyhow!("{e}; {n} packets failed the ICRC check: {advice}"),
            }
        })
    }
}

/// One round of the engine; whether it accepted a packet since it was last asked.
fn alive<D: Device>(flow: &mut Flow<'_, D>) -> Result<bool> {
    let now = clock::now();
    flow.turn(now)?;
    Ok(flow.has_heard(now))
}

/// Checks the address of the peer.
///
/// # Errors
/// This side cannot send to it.
pub(super) fn peer_gid<D: Device>(theirs: Gid, device: &D, option: &str) -> Result<Gid> {
    let (ip, own) = (theirs.ip(), device.local());
    if theirs == Gid::default() {
        bail!(
            "the peer gave no GID: start it with {option} and the index of a RoCE v2 GID of {own}'s family"
        );
    }
    if ip.is_ipv4() != own.is_ipv4() {
        bail!(
            "the peer's GID {ip} is not of the family of this side's address {own}: use --local \
             here, or {option} with another index at the peer"
        );
    }
    Ok(check_gid(ip, own)?)
}
