//! Limits of an engine, for whoever has to tell them.

use crate::{mcast, mr_table, objects, qp_table};

/// Queue pairs.
pub const QPS_MAX: u32 = qp_table::QPS_MAX;
/// Completion queues, shared receive queues and address handles, each.
pub const HANDLES_MAX: u32 = crate::handles::HANDLES_MAX;
/// Entries of a completion queue.
pub const CQ_DEPTH_MAX: u32 = objects::CQ_DEPTH_MAX;
/// Memory regions and windows together. Index 0 is never used.
pub const REGIONS_MAX: u32 = (1 << 24) - 1;
/// Multicast groups.
pub const GROUPS_MAX: u32 = 8192;
/// Queue pairs in one group.
pub const MEMBERS_MAX: u32 = 256;

const _: () = assert!(REGIONS_MAX as usize == mr_table::REGIONS_MAX - 1);
const _: () = assert!(GROUPS_MAX as usize == mcast::GROUPS_MAX);
const _: () = assert!(MEMBERS_MAX as usize == mcast::MEMBERS_MAX);
