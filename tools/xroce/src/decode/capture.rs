//! Capture files: pcap and pcapng, read record by record from a stream.
//!
//! Our own reader, since a diagnostic tool must go on where a strict one refuses: captures cut by
//! a snap length, options without end marker, time stamps of any resolution; and every complaint
//! must name the packet. Formats: libpcap's `pcap-savefile(5)` and the IETF opsawg pcapng draft.

use std::io::{self, Read};

use thiserror::Error;

use super::pcapng::{self, PcapNg};

/// Most bytes a record may claim to hold: libpcap's own limit.
pub(super) const MAX_CAPTURED: u32 = 262_144;
/// What is said wherever a file is none of ours.
const EXPECTED: &str = "expected a pcap or pcapng capture";

/// Why a file cannot be read, or not to its end.
#[derive(Debug, Error)]
pub(super) enum CaptureError {
    /// Nothing in it.
    #[error("the file is empty, {EXPECTED}")]
    Empty,
    /// It begins with something else.
    #[error("the file begins with {} and is no capture, {EXPECTED}", hex(.0))]
    NotACapture(Vec<u8>),
    /// A compressed capture.
    #[error("the file is compressed with gzip: decompress it first, {EXPECTED}")]
    Gzip,
    /// Packet `n` or what stands in its place is damaged, and what follows cannot be found.
    #[error("packet {n}, at byte {at}: {why}")]
    Damaged {
        /// Number of the packet, from 1.
        n: u64,
        /// Where its record begins.
        at: u64,
        /// What is wrong.
        why: String,
    },
    /// A directory, or the device failed.
    #[error("cannot be read, {EXPECTED}")]
    Io(#[from] io::Error),
}

fn hex(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    bytes.join(" ")
}

/// A packet as captured.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// Number in the file, from 1; counts packets of every kind.
    pub(super) n: u64,
    /// Nanoseconds since the epoch; 0 where the format has no time.
    pub(super) ts_ns: u64,
    /// Link type (LINKTYPE_ numbers).
    pub(super) link: u16,
    /// Bytes on the wire.
    pub(super) wire_len: u32,
    /// Bytes in the file, at most `wire_len`.
    pub(super) data: &'a [u8],
}

/// One step through a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// A packet.
    Packet(Record<'a>),
    /// Packet `n` cannot be read, but what follows can.
    Bad {
        /// Number in the file.
        n: u64,
        /// What is wrong.
        why: String,
    },
}

/// Byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endian {
    Big,
    Little,
}

impl Endian {
    pub(super) const fn u16(self, b: [u8; 2]) -> u16 {
        match self {
            Self::Big => u16::from_be_bytes(b),
            Self::Little => u16::from_le_bytes(b),
        }
    }

    pub(super) const fn u32(self, b: [u8; 4]) -> u32 {
        match self {
            Self::Big => u32::from_be_bytes(b),
            Self::Little => u32::from_le_bytes(b),
        }
    }

    pub(super) const fn u64(self, b: [u8; 8]) -> u64 {
        match self {
            Self::Big => u64::from_be_bytes(b),
            Self::Little => u64::from_le_bytes(b),
        }
    }
}

/// Header fields read from the front of a slice; `None` when it is too short.
pub(super) struct Fields<'a> {
    pub(super) rest: &'a [u8],
    pub(super) endian: Endian,
}

impl<'a> Fields<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(|b| self.endian.u16(b))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(|b| self.endian.u32(b))
    }

    pub(super) fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(head)
    }
}

/// The stream, how far it has been read, and the record read last.
#[derive(Debug)]
pub(super) struct Source<R> {
    input: R,
    /// Bytes consumed.
    pub(super) at: u64,
    /// Packets met so far.
    pub(super) n: u64,
    buf: Vec<u8>,
}

impl<R: Read> Source<R> {
    /// The next `len` bytes, or fewer at the end of the file. Grows with what is there, not with
    /// what a damaged length claims.
    pub(super) fn take(&mut self, len: usize) -> Result<&[u8], CaptureError> {
        self.buf.clear();
        let got = (&mut self.input)
            .take(len as u64)
            .read_to_end(&mut self.buf)?;
        self.at += got as u64;
        Ok(&self.buf)
    }

    /// What was taken last.
    pub(super) fn taken(&self) -> &[u8] {
        &self.buf
    }

    /// [`Source::take`] that must be complete; `what` it is for the complaint.
    pub(super) fn exactly(&mut self, len: usize, what: &str) -> Result<&[u8], CaptureError> {
        let start = self.at;
        let n = self.n;
        let got = self.take(len)?.len();
        if got < len {
            let why = format!("the file ends inside {what}: {got} of {len} bytes are there");
            return Err(CaptureError::Damaged { n, at: start, why });
        }
        Ok(&self.buf)
    }
}

#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

/// Header of a pcap file, as far as it matters.
#[derive(Clone, Copy, Debug)]
struct Pcap {
    endian: Endian,
    /// Nanoseconds per unit of the time stamp's fraction.
    tick_ns: u64,
    link: u16,
}

/// A capture file being read.
#[derive(Debug)]
pub(super) struct Capture<R> {
    source: Source<R>,
    format: Format,
}

impl<R: Read> Capture<R> {
    /// Recognises the format.
    ///
    /// # Errors
    /// Empty, no capture, or no readable header.
    pub(super) fn open(input: R) -> Result<Self, CaptureError> {
        let mut source = Source {
            input,
            at: 0,
            n: 0,
            buf: Vec::new(),
        };
        let magic: [u8; 4] = match source.take(4)? {
            [] => return Err(CaptureError::Empty),
            [0x1f, 0x8b, ..] => return Err(CaptureError::Gzip),
            bytes => match bytes.try_into() {
                Ok(magic) => magic,
                Err(_) => return Err(CaptureError::NotACapture(bytes.to_vec())),
            },
        };
        let format = match magic {
            [0xa1, 0xb2, 0xc3, 0xd4] => Self::pcap(&mut source, Endian::Big, 1_000)?,
            [0xd4, 0xc3, 0xb2, 0xa1] => Self::pcap(&mut source, Endian::Little, 1_000)?,
            [0xa1, 0xb2, 0x3c, 0x4d] => Self::pcap(&mut source, Endian::Big, 1)?,
            [0x4d, 0x3c, 0xb2, 0xa1] => Self::pcap(&mut source, Endian::Little, 1)?,
            pcapng::SECTION_HEADER => Format::PcapNg(PcapNg::open(&mut source)?),
            other => return Err(CaptureError::NotACapture(other.to_vec())),
        };
        Ok(Self { source, format })
    }

    fn pcap(source: &mut Source<R>, endian: Endian, tick_ns: u64) -> Result<Format, CaptureError> {
        // Version(2 2) zone(4) accuracy(4) snap length(4) link type(4).
        let header = source.exactly(20, "the file header")?;
        let mut fields = Fields {
            rest: header,
            endian,
        };
        let link = fields
            .bytes(16)
            .and_then(|_| fields.u32())
            .unwrap_or_default();
        // The upper half says whether frames end with an FCS: lengths come from the IP header.
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the lower half is the link type"
        )]
        let link = link as u16;
        Ok(Format::Pcap(Pcap {
            endian,
            tick_ns,
            link,
        }))
    }

    /// The next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// Damage that hides where the next packet begins.
    pub(super) fn next(&mut self) -> Result<Option<Item<'_>>, CaptureError> {
        match &mut self.format {
            Format::Pcap(pcap) => pcap.next(&mut self.source),
            Format::PcapNg(ng) => ng.next(&mut self.source),
        }
    }
}

impl Pcap {
    fn next<'s, R: Read>(
        &self,
        source: &'s mut Source<R>,
    ) -> Result<Option<Item<'s>>, CaptureError> {
        let at = source.at;
        if source.take(16)?.is_empty() {
            return Ok(None);
        }
        source.n += 1;
        let n = source.n;
        let damaged = |why| CaptureError::Damaged { n, at, why };
        let got = source.taken().len();
        let mut fields = Fields {
            rest: source.taken(),
            endian: self.endian,
        };
        let mut field = || fields.u32();
        let (Some(sec), Some(frac), Some(captured), Some(wire_len)) =
            (field(), field(), field(), field())
        else {
            let why =
                format!("the file ends inside its record header: {got} of 16 bytes are there");
            return Err(damaged(why));
        };
        if captured > MAX_CAPTURED {
            let why = format!(
                "its record claims {captured} bytes, more than the {MAX_CAPTURED} any capture has: \
                 the file is damaged here"
            );
            return Err(damaged(why));
        }
        let data = source.exactly(captured as usize, "the packet")?;
        Ok(Some(Item::Packet(Record {
            n,
            ts_ns: u64::from(sec) * 1_000_000_000 + u64::from(frac) * self.tick_ns,
            link: self.link,
            wire_len: wire_len.max(captured),
            data,
        })))
    }
}
