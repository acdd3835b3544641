//! The limits that the API tells are those of the tables.

use xroce_api::limits::{CQ_DEPTH_MAX, GROUPS_MAX, HANDLES_MAX, MEMBERS_MAX, QPS_MAX, REGIONS_MAX};

use crate::{handles, mcast, objects, qp_table};

const _: () = assert!(QPS_MAX == qp_table::QPS_MAX);
const _: () = assert!(HANDLES_MAX == handles::HANDLES_MAX);
const _: () = assert!(CQ_DEPTH_MAX == objects::CQ_DEPTH_MAX);
const _: () = assert!(REGIONS_MAX as usize == xroce_api::REGIONS_MAX - 1);
const _: () = assert!(GROUPS_MAX as usize == mcast::GROUPS_MAX);
const _: () = assert!(MEMBERS_MAX as usize == mcast::MEMBERS_MAX);
