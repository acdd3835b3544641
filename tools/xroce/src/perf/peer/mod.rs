//! The other side: the side channel, what is said on it, and the languages of other programs.

pub(crate) mod channel;
pub(crate) mod compat;
pub(crate) mod conversation;
pub(crate) mod message;
