//! Services and states, as types.

use std::fmt::Debug;

use xroce_proto::qp::QpType;

mod sealed {
    pub trait Sealed {}
}

/// A transport service.
pub trait Service: sealed::Sealed + Debug + 'static {
    /// As a value.
    const TYPE: QpType;
}

/// Services between two queue pairs.
pub trait Connected: Service {}

/// Reliable connection: every operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rc {}
/// Unreliable connection: SEND and RDMA WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uc {}
/// Unreliable datagrams: SEND of one packet, to anybody or to groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ud {}

/// How far a queue pair has been brought.
pub trait State: sealed::Sealed + Debug + 'static {}

/// States that take receives.
pub trait Posts: State {}

/// As created: takes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reset {}
/// Takes receives, and does not use them yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Init {}
/// Brought to RTS: sends and receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ready {}

macro_rules! services {
    ($($service:ident $value:ident)*) => {$(
        impl sealed::Sealed for $service {}
        impl Service for $service {
            const TYPE: QpType = QpType::$value;
        }
    )*};
}
services!(Rc Rc Uc Uc Ud Ud);
impl Connected for Rc {}
impl Connected for Uc {}

macro_rules! states {
    ($($state:ident)*) => {$(
        impl sealed::Sealed for $state {}
        impl State for $state {}
    )*};
}
states!(Reset Init Ready);
impl Posts for Init {}
impl Posts for Ready {}
