//! Every opcode and what it means, as one table: nobody else lists opcodes.
//!
//! BTH byte 0 is service (3 bits) and operation (5 bits), but the combinations that exist and the
//! headers each carries follow no formula, so they are rows. [`Opcode::from_u8`] and
//! [`Opcode::for_request`] are single lookups in tables built at compile time from these rows.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

/// Transport service, the upper three bits of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification, no queue pair service of its own.
    Cnp,
    /// Extension packets of a reliable connection whose two ends agreed on them
    /// ([`crate::ext`]).
    Ext,
}

/// What a packet asks for or answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Operation {
    /// SEND, with or without immediate data or invalidation.
    Send,
    /// RDMA WRITE, with or without immediate data.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; also answers FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// ACK, NAK or RNR NAK, as the syndrome says.
    Acknowledge,
    /// Answer to an atomic.
    AtomicAcknowledge,
    /// Compare and swap.
    CmpSwap,
    /// Fetch and add.
    FetchAdd,
    /// FLUSH (IBTA 1.5).
    Flush,
    /// ATOMIC WRITE of eight bytes (IBTA 1.5).
    AtomicWrite,
    /// Congestion notification packet.
    Cnp,
    /// Selective acknowledgement; extension.
    Sack,
    /// Asks for a selective acknowledgement; extension.
    Probe,
}

/// Place of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Of a packet that is the first of its message, or the last, or both, or neither.
    #[inline(always)]
    #[must_use]
    pub const fn of(is_first: bool, is_last: bool) -> Self {
        match (is_first, is_last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

bitflags! {
    /// Extension headers after BTH. The bits are in wire order.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Headers: u16 {
        /// Datagram header, 8 bytes.
        const DETH = 1 << 0;
        /// XRC header, 4 bytes.
        const XRCETH = 1 << 1;
        /// FLUSH header, 4 bytes.
        const FETH = 1 << 2;
        /// Message header of a self-contained WRITE packet, 4 bytes; extension.
        const METH = 1 << 3;
        /// RDMA header, 16 bytes.
        const RETH = 1 << 4;
        /// Atomic header, 28 bytes.
        const ATOMIC_ETH = 1 << 5;
        /// Acknowledge header, 4 bytes.
        const AETH = 1 << 6;
        /// Atomic acknowledge header, 8 bytes, follows AETH.
        const ATOMIC_ACK = 1 << 7;
        /// Immediate data, 4 bytes.
        const IMM = 1 << 8;
        /// Key to invalidate, 4 bytes.
        const IETH = 1 << 9;
        /// SACK header, 28 bytes; extension.
        const SETH = 1 << 10;
        /// Probe header, 16 bytes; extension.
        const PETH = 1 << 11;
    }
}

/// Length in bytes of the header of each bit of [`Headers`], in wire order.
const HEADER_LENS: [u8; HEADERS] = [8, 4, 4, 4, 16, 28, 4, 8, 4, 4, 28, 16];
/// How many headers there are.
const HEADERS: usize = 12;
/// "This opcode does not have that header" in [`OpcodeInfo::offsets`].
const ABSENT: u8 = u8::MAX;

/// Index of a header in wire order, the bit number in [`Headers`].
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Slot {
    Deth,
    XrcEth,
    Feth,
    Meth,
    Reth,
    AtomicEth,
    Aeth,
    AtomicAck,
    Imm,
    Ieth,
    Seth,
    Peth,
}

/// What there is to know about an opcode without looking at the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// The opcode itself.
    pub opcode: Opcode,
    /// Its transport service.
    pub service: Service,
    /// What it asks for or answers.
    pub operation: Operation,
    /// Place in the message.
    pub position: Position,
    /// Extension headers it carries.
    pub headers: Headers,
    /// Bytes of all extension headers after BTH, 0 ..= 32.
    pub header_len: u8,
    /// Whether it goes from requester to responder.
    pub is_request: bool,
    /// False in the filler rows of the table of 256.
    known: bool,
    /// Where each header begins, from the end of BTH; [`ABSENT`] without.
    offsets: [u8; HEADERS],
}

impl OpcodeInfo {
    const fn row(
        opcode: Opcode,
        service: Service,
        operation: Operation,
        position: Position,
        headers: Headers,
    ) -> Self {
        let mut offsets = [ABSENT; HEADERS];
        let mut len = 0;
        let mut slot = 0;
        while slot < HEADER_LENS.len() {
            if headers.bits() & (1 << slot) != 0 {
                offsets[slot] = len;
                len += HEADER_LENS[slot];
            }
            slot += 1;
        }
        let is_request = !matches!(
            operation,
            Operation::ReadResponse
                | Operation::Acknowledge
                | Operation::AtomicAcknowledge
                | Operation::Cnp
                | Operation::Sack
        );
        Self {
            opcode,
            service,
            operation,
            position,
            headers,
            header_len: len,
            is_request,
            known: true,
            offsets,
        }
    }

    /// Where a header begins, from the end of BTH.
    #[inline]
    pub(crate) const fn offset(&self, slot: Slot) -> Option<usize> {
        let at = self.offsets[slot as usize];
        if at == ABSENT {
            None
        } else {
            Some(at as usize)
        }
    }

    /// Where RETH begins, from the end of BTH.
    #[inline]
    #[must_use]
    pub const fn reth_offset(&self) -> Option<usize> {
        self.offset(Slot::Reth)
    }

    /// Where AETH begins, from the end of BTH.
    #[inline]
    #[must_use]
    pub const fn aeth_offset(&self) -> Option<usize> {
        self.offset(Slot::Aeth)
    }

    /// Whether a message begins here: First or Only.
    #[inline]
    #[must_use]
    pub const fn starts(&self) -> bool {
        matches!(self.position, Position::First | Position::Only)
    }

    /// Whether a message ends here: Last or Only.
    #[inline]
    #[must_use]
    pub const fn ends(&self) -> bool {
        matches!(self.position, Position::Last | Position::Only)
    }

    /// Whether payload may follow the headers. A CNP counts its 16 reserved bytes as payload.
    #[inline]
    #[must_use]
    pub const fn has_payload(&self) -> bool {
        matches!(
            self.operation,
            Operation::Send
                | Operation::Write
                | Operation::ReadResponse
                | Operation::AtomicWrite
                | Operation::Cnp
        )
    }

    /// Whether it goes from responder to requester.
    #[inline]
    #[must_use]
    pub const fn is_response(&self) -> bool {
        !self.is_request && !matches!(self.operation, Operation::Cnp)
    }

    /// Whether it carries data of a message or asks for some: what a congestion notification is
    /// sent for if it was marked. ACKs, NAKs and notifications are not.
    #[inline]
    #[must_use]
    pub const fn is_data(&self) -> bool {
        self.is_request || matches!(self.operation, Operation::ReadResponse)
    }

    /// Whether only a peer that agreed may be sent it.
    #[inline]
    #[must_use]
    pub const fn is_extension(&self) -> bool {
        matches!(self.service, Service::Ext)
    }

    /// Whether immediate data follows.
    #[inline]
    #[must_use]
    pub const fn has_imm(&self) -> bool {
        self.headers.contains(Headers::IMM)
    }

    /// Whether a key to invalidate follows.
    #[inline]
    #[must_use]
    pub const fn has_invalidate(&self) -> bool {
        self.headers.contains(Headers::IETH)
    }
}

macro_rules! opcodes {
    ($($name:ident = $code:literal $service:ident $operation:ident $position:ident
       [$($header:ident)*] $text:literal;)*) => {
        /// Every opcode this stack knows: RC, UC, UD, XRC, CNP (RD is implemented nowhere) and the
        /// extensions.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = concat!($text, ", ", stringify!($code), ".")] $name = $code,)*
        }

        impl Opcode {
            /// All of them, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name for people, such as "RC SEND Only"; "RC ACK" stands for ACK and NAK.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }

        const ROWS: &[OpcodeInfo] = &[$(OpcodeInfo::row(
            Opcode::$name,
            Service::$service,
            Operation::$operation,
            Position::$position,
            Headers::empty()$(.union(Headers::$header))*,
        )),*];
    };
}

opcodes! {
    RcSendFirst = 0x00 Rc Send First [] "RC SEND First";
    RcSendMiddle = 0x01 Rc Send Middle [] "RC SEND Middle";
    RcSendLast = 0x02 Rc Send Last [] "RC SEND Last";
    RcSendLastImm = 0x03 Rc Send Last [IMM] "RC SEND Last Imm";
    RcSendOnly = 0x04 Rc Send Only [] "RC SEND Only";
    RcSendOnlyImm = 0x05 Rc Send Only [IMM] "RC SEND Only Imm";
    RcWriteFirst = 0x06 Rc Write First [RETH] "RC RDMA WRITE First";
    RcWriteMiddle = 0x07 Rc Write Middle [] "RC RDMA WRITE Middle";
    RcWriteLast = 0x08 Rc Write Last [] "RC RDMA WRITE Last";
    RcWriteLastImm = 0x09 Rc Write Last [IMM] "RC RDMA WRITE Last Imm";
    RcWriteOnly = 0x0a Rc Write Only [RETH] "RC RDMA WRITE Only";
    RcWriteOnlyImm = 0x0b Rc Write Only [RETH IMM] "RC RDMA WRITE Only Imm";
    RcReadRequest = 0x0c Rc ReadRequest Only [RETH] "RC RDMA READ Request";
    RcReadResponseFirst = 0x0d Rc ReadResponse First [AETH] "RC RDMA READ Response First";
    RcReadResponseMiddle = 0x0e Rc ReadResponse Middle [] "RC RDMA READ Response Middle";
    RcReadResponseLast = 0x0f Rc ReadResponse Last [AETH] "RC RDMA READ Response Last";
    RcReadResponseOnly = 0x10 Rc ReadResponse Only [AETH] "RC RDMA READ Response Only";
    RcAcknowledge = 0x11 Rc Acknowledge Only [AETH] "RC ACK";
    RcAtomicAcknowledge = 0x12 Rc AtomicAcknowledge Only [AETH ATOMIC_ACK] "RC ATOMIC ACK";
    RcCmpSwap = 0x13 Rc CmpSwap Only [ATOMIC_ETH] "RC Compare Swap";
    RcFetchAdd = 0x14 Rc FetchAdd Only [ATOMIC_ETH] "RC Fetch Add";
    RcSendLastInvalidate = 0x16 Rc Send Last [IETH] "RC SEND Last Inv";
    RcSendOnlyInvalidate = 0x17 Rc Send Only [IETH] "RC SEND Only Inv";
    RcFlush = 0x1c Rc Flush Only [FETH RETH] "RC FLUSH";
    RcAtomicWrite = 0x1d Rc AtomicWrite Only [RETH] "RC ATOMIC WRITE";
    UcSendFirst = 0x20 Uc Send First [] "UC SEND First";
    UcSendMiddle = 0x21 Uc Send Middle [] "UC SEND Middle";
    UcSendLast = 0x22 Uc Send Last [] "UC SEND Last";
    UcSendLastImm = 0x23 Uc Send Last [IMM] "UC SEND Last Imm";
    UcSendOnly = 0x24 Uc Send Only [] "UC SEND Only";
    UcSendOnlyImm = 0x25 Uc Send Only [IMM] "UC SEND Only Imm";
    UcWriteFirst = 0x26 Uc Write First [RETH] "UC RDMA WRITE First";
    UcWriteMiddle = 0x27 Uc Write Middle [] "UC RDMA WRITE Middle";
    UcWriteLast = 0x28 Uc Write Last [] "UC RDMA WRITE Last";
    UcWriteLastImm = 0x29 Uc Write Last [IMM] "UC RDMA WRITE Last Imm";
    UcWriteOnly = 0x2a Uc Write Only [RETH] "UC RDMA WRITE Only";
    UcWriteOnlyImm = 0x2b Uc Write Only [RETH IMM] "UC RDMA WRITE Only Imm";
    UdSendOnly = 0x64 Ud Send Only [DETH] "UD SEND Only";
    UdSendOnlyImm = 0x65 Ud Send Only [DETH IMM] "UD SEND Only Imm";
    Cnp = 0x81 Cnp Cnp Only [] "CNP";
    XrcSendFirst = 0xa0 Xrc Send First [XRCETH] "XRC SEND First";
    XrcSendMiddle = 0xa1 Xrc Send Middle [XRCETH] "XRC SEND Middle";
    XrcSendLast = 0xa2 Xrc Send Last [XRCETH] "XRC SEND Last";
    XrcSendLastImm = 0xa3 Xrc Send Last [XRCETH IMM] "XRC SEND Last Imm";
    XrcSendOnly = 0xa4 Xrc Send Only [XRCETH] "XRC SEND Only";
    XrcSendOnlyImm = 0xa5 Xrc Send Only [XRCETH IMM] "XRC SEND Only Imm";
    XrcWriteFirst = 0xa6 Xrc Write First [XRCETH RETH] "XRC RDMA WRITE First";
    XrcWriteMiddle = 0xa7 Xrc Write Middle [XRCETH] "XRC RDMA WRITE Middle";
    XrcWriteLast = 0xa8 Xrc Write Last [XRCETH] "XRC RDMA WRITE Last";
    XrcWriteLastImm = 0xa9 Xrc Write Last [XRCETH IMM] "XRC RDMA WRITE Last Imm";
    XrcWriteOnly = 0xaa Xrc Write Only [XRCETH RETH] "XRC RDMA WRITE Only";
    XrcWriteOnlyImm = 0xab Xrc Write Only [XRCETH RETH IMM] "XRC RDMA WRITE Only Imm";
    XrcReadRequest = 0xac Xrc ReadRequest Only [XRCETH RETH] "XRC RDMA READ Request";
    XrcReadResponseFirst = 0xad Xrc ReadResponse First [AETH] "XRC RDMA READ Response First";
    XrcReadResponseMiddle = 0xae Xrc ReadResponse Middle [] "XRC RDMA READ Response Middle";
    XrcReadResponseLast = 0xaf Xrc ReadResponse Last [AETH] "XRC RDMA READ Response Last";
    XrcReadResponseOnly = 0xb0 Xrc ReadResponse Only [AETH] "XRC RDMA READ Response Only";
    XrcAcknowledge = 0xb1 Xrc Acknowledge Only [AETH] "XRC ACK";
    XrcAtomicAcknowledge = 0xb2 Xrc AtomicAcknowledge Only [AETH ATOMIC_ACK] "XRC ATOMIC ACK";
    XrcCmpSwap = 0xb3 Xrc CmpSwap Only [XRCETH ATOMIC_ETH] "XRC Compare Swap";
    XrcFetchAdd = 0xb4 Xrc FetchAdd Only [XRCETH ATOMIC_ETH] "XRC Fetch Add";
    XrcSendLastInvalidate = 0xb6 Xrc Send Last [XRCETH IETH] "XRC SEND Last Inv";
    XrcSendOnlyInvalidate = 0xb7 Xrc Send Only [XRCETH IETH] "XRC SEND Only Inv";
    ExtWriteFirst = 0xc6 Ext Write First [METH RETH] "EXT RDMA WRITE First";
    ExtWriteMiddle = 0xc7 Ext Write Middle [METH RETH] "EXT RDMA WRITE Middle";
    ExtWriteLast = 0xc8 Ext Write Last [METH RETH] "EXT RDMA WRITE Last";
    ExtWriteLastImm = 0xc9 Ext Write Last [METH RETH IMM] "EXT RDMA WRITE Last Imm";
    ExtWriteOnly = 0xca Ext Write Only [METH RETH] "EXT RDMA WRITE Only";
    ExtWriteOnlyImm = 0xcb Ext Write Only [METH RETH IMM] "EXT RDMA WRITE Only Imm";
    ExtSack = 0xdc Ext Sack Only [SETH] "EXT SACK";
    ExtProbe = 0xde Ext Probe Only [PETH] "EXT Probe";
}

/// By BTH byte 0; unknown opcodes have `known` false.
static TABLE: [OpcodeInfo; 256] = {
    let mut filler = ROWS[0];
    filler.known = false;
    let mut table = [filler; 256];
    let mut i = 0;
    while i < ROWS.len() {
        table[ROWS[i].opcode as usize] = ROWS[i];
        i += 1;
    }
    table
};

const OPERATIONS: usize = Operation::Probe as usize + 1;
const SERVICES: usize = Service::Ext as usize + 1;

/// Index into [`CHOICES`].
const fn choice(service: Service, op: Operation, pos: Position, imm: bool, inv: bool) -> usize {
    let row = (service as usize * OPERATIONS + op as usize) * 4 + pos as usize;
    row * 4 + imm as usize * 2 + inv as usize
}

/// The opcode for each service, operation, position, immediate, invalidate.
static CHOICES: [Option<Opcode>; SERVICES * OPERATIONS * 16] = {
    let mut table = [None; SERVICES * OPERATIONS * 16];
    let mut i = 0;
    while i < ROWS.len() {
        let r = &ROWS[i];
        let (imm, inv) = (r.has_imm(), r.has_invalidate());
        table[choice(r.service, r.operation, r.position, imm, inv)] = Some(r.opcode);
        // Immediate data and invalidation belong to the message and show in its last packet:
        // the packets before it are the same with and without.
        if !r.ends() {
            table[choice(r.service, r.operation, r.position, true, false)] = Some(r.opcode);
            table[choice(r.service, r.operation, r.position, false, true)] = Some(r.opcode);
        }
        i += 1;
    }
    table
};

impl Opcode {
    /// What BTH byte 0 means; `None` for an opcode that must be dropped.
    #[inline]
    #[must_use]
    pub const fn from_u8(byte: u8) -> Option<&'static OpcodeInfo> {
        let info = &TABLE[byte as usize];
        if info.known { Some(info) } else { None }
    }

    /// Its row in the table.
    #[inline]
    #[must_use]
    pub const fn info(self) -> &'static OpcodeInfo {
        &TABLE[self as usize]
    }

    /// The opcode of a packet at place `pos` of a message; `imm` and `inv` say what the message
    /// carries and are ignored before its last packet. `None` if there is no such opcode.
    #[inline]
    #[must_use]
    pub const fn for_request(
        service: Service,
        op: Operation,
        pos: Position,
        imm: bool,
        inv: bool,
    ) -> Option<Self> {
        CHOICES[choice(service, op, pos, imm, inv)]
    }

    /// READ response at place `pos` of its message; `None` for services without READ.
    #[inline]
    #[must_use]
    pub const fn read_response(service: Service, pos: Position) -> Option<Self> {
        CHOICES[choice(service, Operation::ReadResponse, pos, false, false)]
    }

    /// ACK/NAK of a service; `None` for unacknowledged services.
    #[inline]
    #[must_use]
    pub const fn acknowledge(service: Service) -> Option<Self> {
        CHOICES[choice(
            service,
            Operation::Acknowledge,
            Position::Only,
            false,
            false,
        )]
    }

    /// Atomic acknowledge of a service; `None` for services without atomics.
    #[inline]
    #[must_use]
    pub const fn atomic_acknowledge(service: Service) -> Option<Self> {
        CHOICES[choice(
            service,
            Operation::AtomicAcknowledge,
            Position::Only,
            false,
            false,
        )]
    }
}
