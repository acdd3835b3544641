//! Names of capacities and attributes, as errors tell them.

use core::fmt;

use serde::{Deserialize, Serialize};

macro_rules! attributes {
    ($($Name:ident $text:literal,)+) => {
        /// A capacity or attribute of a queue pair or shared receive queue that is limited to a
        /// range.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Attribute {
            $(
                #[doc = concat!("`", $text, "`.")]
                #[serde(rename = $text)]
                $Name,
            )+
        }

        impl fmt::Display for Attribute {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$Name => $text,)+
                })
            }
        }
    };
}

attributes! {
    MaxSendWr "max_send_wr",
    MaxRecvWr "max_recv_wr",
    MaxSendSge "max_send_sge",
    MaxRecvSge "max_recv_sge",
    MaxInline "max_inline",
    SrqMaxWr "max_wr",
    SrqMaxSge "max_sge",
    PkeyIndex "pkey_index",
    Port "port",
    Timeout "timeout",
    RetryCnt "retry_cnt",
    RnrRetry "rnr_retry",
    MaxRdAtomic "max_rd_atomic",
    MaxDestRdAtomic "max_dest_rd_atomic",
    DestQpn "dest_qpn",
    ReliabilityRange "reliability range",
    ReliabilityWindow "reliability window",
    ReliabilityTolerance "reliability tolerance",
    ReliabilityStore "reliability store",
}
