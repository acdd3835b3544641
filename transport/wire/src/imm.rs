//! The two 4-byte headers that are one value each.

use zerocopy::byteorder::network_endian::U32;

use crate::newtypes::RKey;

/// Immediate data: opaque bytes, handed through unchanged.
pub type Imm = [u8; 4];

/// Invalidate header: the R_Key a SEND with Invalidate takes away.
pub type Ieth = RKey;

/// [`Ieth`] as on the wire.
pub(crate) type IethWire = U32;
