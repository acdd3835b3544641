//! RoCEv2 bytes and their types: parse once, then nothing fails; emit from a patched template.
//!
//! | module | what |
//! |---|---|
//! | [`newtypes`] | PSN, QPN, keys, addresses: one type per quantity |
//! | [`opcode`] | every opcode and what follows its BTH, as one table |
//! | [`bth`], [`reth`], [`aeth`], [`atomic`], [`deth`], [`xrceth`], [`feth`], [`imm`] | one header per file |
//! | [`ext`] | headers of extension packets, for peers that agreed |
//! | [`syndrome`] | ACK credits, RNR timers, NAK codes |
//! | [`eth`], [`ip`], [`udp`] | the headers below BTH |
//! | [`frame`] | from Ethernet, IP or a UDP socket to the transport bytes, ICRC check |
//! | [`packet`] | the transport bytes, checked once; the buffer for emission |
//! | [`path`], [`template`] | emission: address vector, prebuilt headers |
//! | [`icrc`] | the invariant CRC |
//!
//! Layouts and numbers follow the IBTA specification as implemented by Linux and by adapters on
//! the market; comments name the rule where it is not obvious.
#![forbid(unsafe_code)]

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod deth;
pub mod eth;
pub mod ext;
pub mod feth;
pub mod frame;
pub mod icrc;
pub mod imm;
pub mod ip;
pub mod newtypes;
pub mod opcode;
pub mod packet;
pub mod path;
pub mod reth;
mod serial;
pub mod syndrome;
pub mod template;
pub mod udp;
pub mod xrceth;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
