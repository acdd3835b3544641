//! The block structure of pcapng.

use std::io::Read;

use super::capture::{CaptureError, Endian, Fields, Item, MAX_CAPTURED, Record, Source};

/// Type of a section header block: the same in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const OPTION_END: u16 = 0;
const OPTION_TS_RESOLUTION: u16 = 9;
const OPTION_TS_OFFSET: u16 = 14;

/// Longest block read: a packet at the limit, with room for options and other blocks.
const MAX_BLOCK: u32 = 16 << 20;
/// Type, length, and length again.
const FRAMING: u32 = 12;

/// An interface of the current section.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: u16,
    /// Bytes kept of each packet; 0 is unlimited.
    snap_len: u32,
    /// Ticks per second.
    ticks: u128,
    /// Seconds to add.
    offset: i64,
}

impl Interface {
    fn nanos(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * 1_000_000_000 / self.ticks;
        let offset = u64::try_from(self.offset)
            .unwrap_or(0)
            .saturating_mul(1_000_000_000);
        u64::try_from(ns).unwrap_or(u64::MAX).saturating_add(offset)
    }
}

/// State of a pcapng file being read.
#[derive(Debug)]
pub(super) struct PcapNg {
    endian: Endian,
    interfaces: Vec<Interface>,
}

/// What a packet block says before its data is cut out.
struct PacketBlock<'a> {
    interface: u32,
    ticks: u64,
    captured: u32,
    wire_len: u32,
    rest: &'a [u8],
}

impl PcapNg {
    /// After the type of the first section header.
    pub(super) fn open<R: Read>(source: &mut Source<R>) -> Result<Self, CaptureError> {
        let mut ng = Self {
            endian: Endian::Little,
            interfaces: Vec::new(),
        };
        ng.section(source)?;
        Ok(ng)
    }

    /// The next packet, passing over blocks of other kinds.
    pub(super) fn next<'s, R: Read>(
        &mut self,
        source: &'s mut Source<R>,
    ) -> Result<Option<Item<'s>>, CaptureError> {
        loop {
            let at = source.at;
            let kind: [u8; 4] = match source.take(4)? {
                [] => return Ok(None),
                bytes => match bytes.try_into() {
                    Ok(kind) => kind,
                    Err(_) => return Err(damaged(source, at, "the file ends inside a block")),
                },
            };
            if kind == SECTION_HEADER {
                self.section(source)?;
                continue;
            }
            self.block(source, at)?;
            match self.endian.u32(kind) {
                INTERFACE => self.interface(source, at)?,
                kind @ (ENHANCED_PACKET | OBSOLETE_PACKET | SIMPLE_PACKET) => {
                    source.n += 1;
                    return Ok(Some(self.packet(source.n, kind, body(source.taken()))));
                }
                _ => {}
            }
        }
    }

    /// Reads a section header behind its type: the byte order is inside it.
    fn section<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), CaptureError> {
        let at = source.at.saturating_sub(4);
        let head = source.exactly(8, "a section header")?;
        let (Some(len), Some(magic)) = (head.first_chunk(), head.last_chunk()) else {
            return Err(damaged(source, at, "section header too short"));
        };
        self.endian = match u32::from_be_bytes(*magic) {
            BYTE_ORDER_MAGIC => Endian::Big,
            m if m.swap_bytes() == BYTE_ORDER_MAGIC => Endian::Little,
            _ => {
                return Err(damaged(
                    source,
                    at,
                    "section header without byte order mark",
                ));
            }
        };
        let len = self.endian.u32(*len);
        let body = check_len(source, at, len)?.checked_sub(4);
        let Some(body) = body else {
            return Err(damaged(source, at, "section header too short"));
        };
        let body = source.exactly(body as usize + 4, "a section header")?;
        if body.first_chunk().map(|b| self.endian.u16(*b)) != Some(1) {
            return Err(damaged(source, at, "pcapng version other than 1"));
        }
        // Interfaces are numbered anew in each section.
        self.interfaces.clear();
        Ok(())
    }

    /// Reads a block behind its type: body and trailing length.
    fn block<R: Read>(&self, source: &mut Source<R>, at: u64) -> Result<(), CaptureError> {
        let len = source
            .exactly(4, "a block")?
            .first_chunk()
            .map(|b| self.endian.u32(*b));
        let len = len.unwrap_or_default();
        let body = check_len(source, at, len)?;
        let bytes = source.exactly(body as usize + 4, "a block")?;
        if bytes.last_chunk().map(|b| self.endian.u32(*b)) != Some(len) {
            return Err(damaged(source, at, "the two lengths of a block differ"));
        }
        Ok(())
    }

    fn interface<R: Read>(&mut self, source: &Source<R>, at: u64) -> Result<(), CaptureError> {
        let mut fields = Fields {
            rest: body(source.taken()),
            endian: self.endian,
        };
        let (Some(link), Some(_), Some(snap_len)) = (fields.u16(), fields.u16(), fields.u32())
        else {
            return Err(damaged(source, at, "interface description too short"));
        };
        let mut interface = Interface {
            link,
            snap_len,
            ticks: 1_000_000,
            offset: 0,
        };
        // Options may end without end marker; damaged ones only cost their own meaning.
        while let (Some(code), Some(len)) = (fields.u16(), fields.u16()) {
            let len = usize::from(len);
            let Some(value) = fields.bytes(len) else {
                break;
            };
            let _ = fields.bytes(len.wrapping_neg() & 3);
            match (code, value) {
                (OPTION_END, _) => break,
                (OPTION_TS_RESOLUTION, &[power]) => interface.ticks = ticks_per_second(power),
                (OPTION_TS_OFFSET, value) => {
                    let offset = value.try_into().map_or(0, |b| self.endian.u64(b));
                    interface.offset = offset.cast_signed();
                }
                _ => {}
            }
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn packet<'s>(&self, n: u64, kind: u32, body: &'s [u8]) -> Item<'s> {
        let bad = |why: &str| Item::Bad {
            n,
            why: why.to_owned(),
        };
        let Some(block) = self.packet_header(kind, body) else {
            return bad("its block is shorter than a packet block");
        };
        let Some(interface) = self.interfaces.get(block.interface as usize) else {
            return bad("its block names an interface that is not described");
        };
        let captured = match kind {
            // A simple packet block does not say how much it holds.
            SIMPLE_PACKET if interface.snap_len != 0 => block.captured.min(interface.snap_len),
            _ => block.captured,
        };
        let data = match block.rest.get(..captured as usize) {
            Some(data) if captured <= MAX_CAPTURED => data,
            _ => return bad("its block is shorter than the packet it claims to hold"),
        };
        Item::Packet(Record {
            n,
            ts_ns: interface.nanos(block.ticks),
            link: interface.link,
            wire_len: block.wire_len.max(captured),
            data,
        })
    }

    fn packet_header<'s>(&self, kind: u32, body: &'s [u8]) -> Option<PacketBlock<'s>> {
        let mut f = Fields {
            rest: body,
            endian: self.endian,
        };
        if kind == SIMPLE_PACKET {
            let wire_len = f.u32()?;
            return Some(PacketBlock {
                interface: 0,
                ticks: 0,
                captured: wire_len,
                wire_len,
                rest: f.rest,
            });
        }
        let interface = if kind == OBSOLETE_PACKET {
            // Interface(16) and drop count(16).
            let interface = f.u16()?;
            f.u16()?;
            u32::from(interface)
        } else {
            f.u32()?
        };
        let (high, low) = (f.u32()?, f.u32()?);
        let (captured, wire_len) = (f.u32()?, f.u32()?);
        let ticks = u64::from(high) << 32 | u64::from(low);
        Some(PacketBlock {
            interface,
            ticks,
            captured,
            wire_len,
            rest: f.rest,
        })
    }
}

/// Body of a block whose trailing length is still behind it.
fn body(taken: &[u8]) -> &[u8] {
    taken
        .get(..taken.len().saturating_sub(4))
        .unwrap_or_default()
}

/// Bytes between the framing of a block of total length `len`.
fn check_len<R: Read>(source: &Source<R>, at: u64, len: u32) -> Result<u32, CaptureError> {
    if !(FRAMING..=MAX_BLOCK).contains(&len) || !len.is_multiple_of(4) {
        let why = format!("a block claims a length of {len}: the file is damaged here");
        return Err(damaged(source, at, &why));
    }
    Ok(len - FRAMING)
}

/// Damage in front of the packet that would come next.
fn damaged<R>(source: &Source<R>, at: u64, why: &str) -> CaptureError {
    CaptureError::Damaged {
        n: source.n + 1,
        at,
        why: why.to_owned(),
    }
}

/// Ticks per second of `if_tsresol`: a power of ten, or of two if the top bit is set.
fn ticks_per_second(power: u8) -> u128 {
    let (base, exponent) = if power & 0x80 == 0 {
        (10_u128, power)
    } else {
        (2, power & 0x7f)
    };
    // What overflows is finer than any clock: the time is 0 then.
    base.checked_pow(u32::from(exponent)).unwrap_or(u128::MAX)
}
