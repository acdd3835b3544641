//! Errors as refusals: of what kind each is.

use xroce_control::reply::{Reason, Refusal};
use xroce_engine::{EngineError, ObjectError};
use xroce_net::addressing::AddressError;
use xroce_shm::ImportError;

use crate::mailbox::Gone;

pub(super) fn by_engine(error: &EngineError) -> Refusal {
    let reason = match error {
        EngineError::NoQp(_)
        | EngineError::NoCq(_)
        | EngineError::NoPd(_)
        | EngineError::NoMr(_)
        | EngineError::NoAh(_)
        | EngineError::NotAttached { .. }
        | EngineError::Object(ObjectError::NoSrq(_)) => Reason::NotFound,
        EngineError::Object(ObjectError::Busy { .. } | ObjectError::Dereg(_)) => Reason::Busy,
        EngineError::QpsExhausted
        | EngineError::AhsExhausted
        | EngineError::GroupFull { .. }
        | EngineError::Object(ObjectError::Exhausted) => Reason::Limit,
        _ => Reason::Invalid,
    };
    Refusal::new(reason, error)
}

pub(super) fn by_address(error: &AddressError) -> Refusal {
    let reason = match error {
        AddressError::Neigh(_) | AddressError::NoNeighbour(_) => Reason::Unreachable,
        _ => Reason::Invalid,
    };
    Refusal::new(reason, error)
}

pub(super) fn by_import(error: &ImportError) -> Refusal {
    let reason = match error {
        ImportError::System(_) => Reason::Limit,
        _ => Reason::Invalid,
    };
    Refusal::new(reason, error)
}

pub(super) fn by_system(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(Reason::Limit, error)
}

pub(super) fn by_end(_: Gone) -> Refusal {
    super::gone()
}
