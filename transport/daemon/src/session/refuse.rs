//! Errors as refusals: of what kind each is.

use xroce_api::EngineError;
use xroce_api::message::{Reason, Refusal};
use xroce_net::addressing::AddressError;
use xroce_shm::ImportError;

use crate::mailbox::Gone;

pub(super) fn by_engine(error: &EngineError) -> Refusal {
    Refusal::new(error.reason(), error)
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
