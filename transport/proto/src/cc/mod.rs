//! Congestion control: events in, an allowance out; chosen per QP, dispatched by enum.
//!
//! An algorithm sees bytes, times and marks, never PSNs or work requests; the pacer and the
//! requester combine its allowance with the window of loss recovery.
//!
//! * [`Fixed`]: a rate and a window that never change,
//! * [`Dcqcn`]: a rate, by congestion notifications,
//! * [`Swift`]: a window, by delay,
//! * [`Nscc`]: a window, by delay and marks,
//!
//! The other end, which turns marks into notifications, is the business of whoever receives for many
//! queue pairs: the engine.

mod dcqcn;
mod fixed;
mod nscc;
mod serial;
mod swift;
mod tune;

use alloc::boxed::Box;

pub use dcqcn::{Dcqcn, DcqcnParams};
pub use fixed::Fixed;
pub use nscc::{Nscc, NsccParams};
pub use swift::{Swift, SwiftParams};
#[doc(hidden)]
pub use tune::check;
pub use tune::{ParamInfo, TuneError};

use crate::params::WINDOW_PSNS_DEFAULT;
use crate::time::{Duration, Instant};

/// A sending rate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate {
    /// Bits per second on the wire, `u64::MAX` for no limit.
    bits_per_second: u64,
}

impl Default for Rate {
    /// No limit.
    fn default() -> Self {
        Self::UNLIMITED
    }
}

impl Rate {
    /// As fast as the link takes it.
    pub const UNLIMITED: Self = Self {
        bits_per_second: u64::MAX,
    };

    /// A rate in bits per second; 0 is [`Rate::UNLIMITED`].
    #[must_use]
    pub const fn bits_per_second(bits_per_second: u64) -> Self {
        if bits_per_second == 0 {
            return Self::UNLIMITED;
        }
        Self { bits_per_second }
    }

    /// In bits per second, 0 for no limit.
    #[must_use]
    pub const fn as_bits_per_second(self) -> u64 {
        if self.is_limited() {
            self.bits_per_second
        } else {
            0
        }
    }

    /// Whether there is a limit at all.
    #[inline]
    #[must_use]
    pub const fn is_limited(self) -> bool {
        self.bits_per_second != u64::MAX
    }
}

/// What an ACK taught us.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// When it arrived.
    pub now: Instant,
    /// Packets it newly acknowledged.
    pub acked_packets: u32,
    /// Round-trip time, if one of them was timed.
    pub rtt: Option<Duration>,
    /// Whether it, or the data it covers, was marked.
    pub ecn_marked: bool,
}

/// A sign of congestion or loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Congestion {
    /// A sequence NAK or an implied one.
    SequenceNak,
    /// An ACK timeout.
    Timeout,
}

/// What an algorithm has to answer.
pub trait CongestionController {
    /// A packet of `bytes` left.
    fn on_sent(&mut self, now: Instant, bytes: usize);
    /// Progress was acknowledged.
    fn on_ack(&mut self, ack: &AckSample);
    /// Congestion or loss was noticed.
    fn on_congestion(&mut self, now: Instant, what: Congestion);
    /// A congestion notification for this QP arrived; `false` if the algorithm does not react to
    /// them.
    fn on_cnp(&mut self, now: Instant) -> bool;
    /// Does what was due by `now`.
    fn on_timer(&mut self, now: Instant);
    /// When [`CongestionController::on_timer`] has to be called, [`Instant::NEVER`] for never.
    fn next_timer(&self) -> Instant;
    /// Rate at which the QP may send now.
    fn rate(&self) -> Rate;
    /// Packets that may be in flight now.
    fn window_psns(&self) -> u32;
    /// Whether data has to be sent as ECN-capable for it to work.
    fn wants_ecn(&self) -> bool;
}

/// The algorithms, as one value without vtable. What has much state is boxed, so that a QP without
/// control stays small.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CongestionControl {
    /// A fixed rate and window.
    Fixed(Fixed),
    /// DCQCN.
    Dcqcn(Box<Dcqcn>),
    /// Swift.
    Swift(Box<Swift>),
    /// NSCC.
    Nscc(Box<Nscc>),
}

/// Names [`CongestionControl::by_name`] takes.
const NAMES: &str = "fixed, dcqcn, dcqcn-strawman, dcqcn-mlx5, swift, nscc";

impl CongestionControl {
    /// An algorithm by its name (`fixed`, `dcqcn` with the paper's parameters, `dcqcn-strawman`,
    /// `dcqcn-mlx5`, `swift`, `nscc`) for a link of rate `line`, with `params` changed.
    ///
    /// # Errors
    /// No such algorithm or parameter, a value out of its range, or `line` is needed and not
    /// limited.
    pub fn by_name(name: &str, line: Rate, params: &[(&str, u64)]) -> Result<Self, TuneError> {
        let needs_line = |algorithm| match line.is_limited() {
            true => Ok(()),
            false => Err(TuneError::LineRate { algorithm }),
        };
        let dcqcn = |of: DcqcnParams| {
            needs_line("dcqcn")?;
            Ok(Self::Dcqcn(Box::new(Dcqcn::new(of.with(params)?, line))))
        };
        match name {
            "fixed" => match params.first() {
                None => Ok(Self::Fixed(Fixed::default())),
                Some((name, _)) => Err(TuneError::Unknown {
                    algorithm: "fixed",
                    given: (*name).into(),
                    known: "none".into(),
                }),
            },
            "dcqcn" => dcqcn(DcqcnParams::PAPER),
            "dcqcn-strawman" => dcqcn(DcqcnParams::STRAWMAN),
            "dcqcn-mlx5" => dcqcn(DcqcnParams::MLX5),
            "swift" => {
                let of = SwiftParams::DEFAULT.with(params)?;
                Ok(Self::Swift(Box::new(Swift::new(of, WINDOW_PSNS_DEFAULT))))
            }
            "nscc" => {
                needs_line("nscc")?;
                let of = NsccParams::DEFAULT.with(params)?;
                Ok(Self::Nscc(Box::new(Nscc::new(of, line))))
            }
            _ => Err(TuneError::Algorithm {
                given: name.into(),
                known: NAMES,
            }),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fixed(_) => "fixed",
            Self::Dcqcn(_) => "dcqcn",
            Self::Swift(_) => "swift",
            Self::Nscc(_) => "nscc",
        }
    }

    /// Takes over the parameters of another. If that is the same algorithm, rate and window go on
    /// from where they are.
    pub fn adopt(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Dcqcn(own), Self::Dcqcn(new))
                if own.params() == new.params() && own.line() == new.line() => {}
            (Self::Dcqcn(own), Self::Dcqcn(new)) => own.retune(*new.params(), new.line()),
            (Self::Swift(own), Self::Swift(new)) => own.retune(*new.params()),
            (Self::Nscc(own), Self::Nscc(new)) => own.retune(*new.params()),
            _ => *self = other.clone(),
        }
    }

    /// As it was when it was made: nothing learned.
    #[must_use]
    pub fn fresh(&self) -> Self {
        match self {
            Self::Fixed(cc) => Self::Fixed(*cc),
            Self::Dcqcn(cc) => Self::Dcqcn(Box::new(Dcqcn::new(*cc.params(), cc.line()))),
            Self::Swift(cc) => Self::Swift(Box::new(Swift::new(*cc.params(), WINDOW_PSNS_DEFAULT))),
            Self::Nscc(cc) => Self::Nscc(Box::new(Nscc::new(*cc.params(), cc.line()))),
        }
    }
}

macro_rules! dispatch {
    ($self:expr, $cc:ident => $call:expr) => {
        match $self {
            Self::Fixed($cc) => $call,
            Self::Dcqcn($cc) => $call,
            Self::Swift($cc) => $call,
            Self::Nscc($cc) => $call,
        }
    };
}

impl CongestionController for CongestionControl {
    #[inline]
    fn on_sent(&mut self, now: Instant, bytes: usize) {
        dispatch!(self, cc => cc.on_sent(now, bytes));
    }

    #[inline]
    fn on_ack(&mut self, ack: &AckSample) {
        dispatch!(self, cc => cc.on_ack(ack));
    }

    fn on_congestion(&mut self, now: Instant, what: Congestion) {
        dispatch!(self, cc => cc.on_congestion(now, what));
    }

    fn on_cnp(&mut self, now: Instant) -> bool {
        dispatch!(self, cc => cc.on_cnp(now))
    }

    fn on_timer(&mut self, now: Instant) {
        dispatch!(self, cc => cc.on_timer(now));
    }

    #[inline]
    fn next_timer(&self) -> Instant {
        dispatch!(self, cc => cc.next_timer())
    }

    #[inline]
    fn rate(&self) -> Rate {
        dispatch!(self, cc => cc.rate())
    }

    #[inline]
    fn window_psns(&self) -> u32 {
        dispatch!(self, cc => cc.window_psns())
    }

    fn wants_ecn(&self) -> bool {
        dispatch!(self, cc => cc.wants_ecn())
    }
}
