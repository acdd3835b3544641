//! RoCEv2 bytes and their types: parse once, then nothing fails; emit from a patched template.
#![forbid(unsafe_code)]

pub mod newtypes;
