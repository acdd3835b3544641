//! Limits of an engine, for whoever has to tell them. The engine asserts that they are its own.

/// Queue pairs: 18 bits of a number, without the first 17.
pub const QPS_MAX: u32 = (1 << 18) - 17;
/// Completion queues, shared receive queues and address handles, each.
pub const HANDLES_MAX: u32 = (1 << 20) - 1;
/// Entries of a completion queue (rxe: 32767; no reason to stay so low).
pub const CQ_DEPTH_MAX: u32 = 1 << 22;
/// Memory regions and windows together: their index has 24 bits of a key, and 0 is never used.
pub const REGIONS_MAX: u32 = (1 << 24) - 1;
/// Multicast groups.
pub const GROUPS_MAX: u32 = 8192;
/// Queue pairs in one group.
pub const MEMBERS_MAX: u32 = 256;
