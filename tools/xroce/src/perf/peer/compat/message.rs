//! The messages of perftest 5.70 and later and of `ibv_rc_pingpong`: numbers in ASCII or
//! big-endian binary, each of a fixed size. Nothing a peer says is trusted.

use xroce_wire::newtypes::{Gid, PathMtu};

use super::line::shown;
use crate::perf::peer::message::QpData;

/// What this side says it is: the version that is most widely deployed.
const OWN_VERSION: &str = "6.06";
/// Hundredths of that version.
const OWN_HUNDREDTHS: u32 = 606;
/// Hundredths of the oldest version that speaks this language.
const OLDEST_HUNDREDTHS: u32 = 570;
/// Page size of this side in bytes: the memory that small messages go through in turn.
pub(super) const CYCLE_BUFFER: u32 = 4096;
/// Cache line of this side in bytes: small messages start at multiples of it.
pub(super) const CACHE_LINE: u32 = 64;
/// Largest page of a peer: 16 MB on POWER.
pub(super) const MAX_CYCLE_BUFFER: u32 = 16 << 20;
/// Largest cache line of a peer.
pub(super) const MAX_CACHE_LINE: u32 = 4096;
/// The last word, of either program.
pub(super) const DONE: [u8; 5] = *b"done\0";
/// Bytes of a key message of perftest.
pub(super) const KEY_LEN: usize = 108;
/// Bytes of the message of `ibv_rc_pingpong`.
pub(super) const ADDRESS_LEN: usize = 52;

/// What a peer said cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer's \"{what}\" message{}: {expected}", shown(.got))]
pub(crate) struct BadMessage {
    /// Name of the message.
    pub what: &'static str,
    /// The message.
    pub got: Vec<u8>,
    /// What is wrong, or what was expected.
    pub expected: String,
}

impl BadMessage {
    fn new(what: &'static str, got: &[u8], expected: impl Into<String>) -> Self {
        Self {
            what,
            got: got.to_vec(),
            expected: expected.into(),
        }
    }
}

/// The bytes before the first NUL.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|&b| b == 0).next().unwrap_or_default()
}

/// The version of this side.
pub(super) fn version() -> [u8; 16] {
    let mut message = [0; 16];
    for (to, from) in message.iter_mut().zip(OWN_VERSION.bytes()) {
        *to = from;
    }
    message
}

/// The version of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Version {
    /// As it writes it.
    pub text: String,
    hundredths: u32,
}

impl Version {
    /// Whether it is later than the one whose habits this side has.
    pub(super) fn is_later(&self) -> bool {
        self.hundredths > OWN_HUNDREDTHS
    }
}

/// The version of the peer.
///
/// # Errors
/// It is none, or too old.
pub(super) fn parse_version(message: &[u8; 16]) -> Result<Version, BadMessage> {
    let bad = |expected: &str| BadMessage::new("version", message, expected);
    let version = text(message);
    if version.starts_with(b"XRPF") {
        return Err(bad(
            "the peer is xroce perf without --compat perftest: leave --compat away, or give it to both",
        ));
    }
    let number = |digits: &[u8]| -> Option<u32> {
        let is_number = (1..=4).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
        let value = |n, &d: &u8| n * 10 + u32::from(d - b'0');
        is_number.then(|| digits.iter().fold(0, value))
    };
    let mut parts = version.splitn(2, |&b| b == b'.');
    let major = parts.next().and_then(number);
    // The second number is a decimal fraction: 5.7 is 5.70.
    let minor = parts.next().filter(|m| m.len() <= 2).and_then(|m| {
        let scale = if m.len() == 1 { 10 } else { 1 };
        Some(number(m)? * scale)
    });
    let (Some(major), Some(minor)) = (major, minor) else {
        return Err(bad(
            "a version like \"6.06\" was expected; is the peer perftest?",
        ));
    };
    let hundredths = major * 100 + minor;
    if hundredths < OLDEST_HUNDREDTHS {
        return Err(bad("perftest 5.70 or later is needed"));
    }
    let text = String::from_utf8_lossy(version).into_owned();
    Ok(Version { text, hundredths })
}

/// A number between 1 and `max` from a message of four bytes.
///
/// # Errors
/// It is out of range.
pub(super) fn parse_number(
    what: &'static str,
    message: [u8; 4],
    max: u32,
) -> Result<u32, BadMessage> {
    let value = u32::from_be_bytes(message);
    if (1..=max).contains(&value) {
        Ok(value)
    } else {
        let expected = format!("a number between 1 and {max} was expected, not {value}");
        Err(BadMessage::new(what, &message, expected))
    }
}

/// A path MTU: the digit of the verbs enumeration.
pub(super) fn mtu(mtu: PathMtu) -> [u8; 2] {
    [b'0' + mtu as u8, 0]
}

/// The path MTU of the peer.
///
/// # Errors
/// It is none of the five.
pub(super) fn parse_mtu(message: [u8; 2]) -> Result<PathMtu, BadMessage> {
    let mtu = match message {
        [digit, 0] => PathMtu::from_code(digit.wrapping_sub(b'0')),
        _ => None,
    };
    mtu.ok_or_else(|| {
        BadMessage::new(
            "mtu",
            &message,
            "a digit from 1 (256 bytes) to 5 (4096 bytes) and NUL were expected",
        )
    })
}

/// Reads fields of hexadecimal digits from the start of a message.
struct Fields<'a> {
    what: &'static str,
    whole: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn new(what: &'static str, whole: &'a [u8]) -> Self {
        Self {
            what,
            whole,
            rest: whole,
        }
    }

    fn bad(&self, expected: impl Into<String>) -> BadMessage {
        BadMessage::new(self.what, self.whole, expected)
    }

    /// `digits` hexadecimal digits, at most 32, and the byte `end` behind them.
    fn number(&mut self, name: &str, digits: usize, end: u8) -> Result<u128, BadMessage> {
        let (Some(field), Some(&after), Some(rest)) = (
            self.rest.get(..digits),
            self.rest.get(digits),
            self.rest.get(digits + 1..),
        ) else {
            return Err(self.bad(format!("{name} is missing")));
        };
        let value = field.iter().try_fold(0_u128, |n, &b| {
            Some(n << 4 | u128::from(char::from(b).to_digit(16)?))
        });
        let (Some(value), true) = (value, after == end) else {
            let at = self.whole.len() - self.rest.len();
            let got = self.rest.get(..=digits).unwrap_or_default().escape_ascii();
            let end = end.escape_ascii();
            return Err(self.bad(format!(
                "{digits} hexadecimal digits and \"{end}\" were expected for {name} at byte {at}, not \"{got}\""
            )));
        };
        self.rest = rest;
        Ok(value)
    }

    /// A field that a `u32` holds: up to 8 digits.
    fn small(&mut self, name: &str, digits: usize) -> Result<u32, BadMessage> {
        let value = self.number(name, digits, b':')?;
        u32::try_from(value).map_err(|_| self.bad(format!("{name} is too large")))
    }
}

/// What perftest tells about one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    /// READs it can have in progress.
    pub out_reads: u16,
    /// Queue pair number.
    pub qpn: u32,
    /// First PSN it sends.
    pub psn: u32,
    /// Key of its memory.
    pub rkey: u32,
    /// Address of its memory.
    pub va: u64,
    /// Its address.
    pub gid: Gid,
}

impl Key {
    /// The message.
    pub(super) fn encode(&self) -> [u8; KEY_LEN] {
        let mut text = format!(
            "0000:{:04x}:{:06x}:{:06x}:{:08x}:{:016x}:",
            self.out_reads,
            self.qpn & 0x00ff_ffff,
            self.psn & 0x00ff_ffff,
            self.rkey,
            self.va
        );
        for byte in self.gid.bytes() {
            text += &format!("{byte:02x}:");
        }
        // No shared receive queue.
        text += "00000000:";
        padded(&text)
    }

    /// The queue pair.
    pub(super) fn qp(&self) -> QpData {
        QpData {
            qpn: self.qpn,
            psn: self.psn,
        }
    }

    /// Understands the message.
    ///
    /// # Errors
    /// It is malformed.
    pub(super) fn parse(message: &[u8; KEY_LEN]) -> Result<Self, BadMessage> {
        let mut fields = Fields::new("key", message);
        fields.small("the LID", 4)?;
        let out_reads = fields.small("the number of READs", 4)?;
        let qpn = fields.small("the queue pair number", 6)?;
        let psn = fields.small("the PSN", 6)?;
        let rkey = fields.small("the R_Key", 8)?;
        let va = fields.number("the address", 16, b':')?;
        let mut gid = [0; 16];
        for byte in &mut gid {
            *byte = u8::try_from(fields.small("the GID", 2)?).unwrap_or(0);
        }
        fields.small("the SRQ number", 8)?;
        if fields.rest != [0] {
            return Err(fields.bad("NUL was expected at the end"));
        }
        Ok(Self {
            // Both had that many digits.
            out_reads: u16::try_from(out_reads).unwrap_or(u16::MAX),
            va: u64::try_from(va).unwrap_or(u64::MAX),
            qpn,
            psn,
            rkey,
            gid: Gid::new(gid),
        })
    }
}

/// What `ibv_rc_pingpong` tells about its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    /// Queue pair number.
    pub qpn: u32,
    /// First PSN it sends.
    pub psn: u32,
    /// Its address.
    pub gid: Gid,
}

impl Address {
    /// The message.
    pub(super) fn encode(&self) -> [u8; ADDRESS_LEN] {
        let gid = u128::from_be_bytes(self.gid.bytes());
        let (qpn, psn) = (self.qpn & 0x00ff_ffff, self.psn & 0x00ff_ffff);
        padded(&format!("0000:{qpn:06x}:{psn:06x}:{gid:032x}"))
    }

    /// Understands the message.
    ///
    /// # Errors
    /// It is malformed.
    pub(super) fn parse(message: &[u8; ADDRESS_LEN]) -> Result<Self, BadMessage> {
        let mut fields = Fields::new("address", message);
        fields.small("the LID", 4)?;
        let qpn = fields.small("the queue pair number", 6)?;
        let psn = fields.small("the PSN", 6)?;
        let gid = fields.number("the GID", 32, 0)?;
        Ok(Self {
            qpn,
            psn,
            gid: Gid::new(gid.to_be_bytes()),
        })
    }
}

/// Text and NULs behind it.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    debug_assert!(text.len() < N, "the fields have fixed widths");
    let mut message = [0; N];
    for (to, from) in message.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    message
}

/// Figures of a bandwidth test, as they travel: five messages of eight bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub(super) struct PeerReport {
    /// Message size in bytes.
    pub size: u64,
    /// Messages of all queue pairs.
    pub iterations: u64,
    /// Best stretch, in MiB a second.
    pub peak_mib_per_s: f64,
    /// All of it, in MiB a second.
    pub average_mib_per_s: f64,
    /// Million messages a second.
    pub mega_messages_per_s: f64,
}

impl PeerReport {
    /// Names of the messages.
    pub(super) const NAMES: [&'static str; 5] = [
        "report: size",
        "report: iterations",
        "report: peak",
        "report: average",
        "report: message rate",
    ];

    /// The messages.
    pub(super) fn encode(&self) -> [[u8; 8]; 5] {
        [
            self.size.to_be_bytes(),
            self.iterations.to_be_bytes(),
            self.peak_mib_per_s.to_be_bytes(),
            self.average_mib_per_s.to_be_bytes(),
            self.mega_messages_per_s.to_be_bytes(),
        ]
    }

    /// Understands the messages. Whatever they say is only shown.
    pub(super) fn parse(messages: [[u8; 8]; 5]) -> Self {
        let [size, iterations, peak, average, rate] = messages;
        Self {
            size: u64::from_be_bytes(size),
            iterations: u64::from_be_bytes(iterations),
            peak_mib_per_s: f64::from_be_bytes(peak),
            average_mib_per_s: f64::from_be_bytes(average),
            mega_messages_per_s: f64::from_be_bytes(rate),
        }
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
