//! Frames that mean harm.

use xroce_net::datapath::Link;
use xroce_net::sim::{Rng, SimPort};
use xroce_wire::frame::{Frame, UdpMeta};
use xroce_wire::newtypes::Qpn;

use crate::captured;
use crate::common::{Host, SRC_PORT};
use crate::field::{Field, QKEY};

/// Bytes of Ethernet, IPv4 and UDP headers.
const LOWER: usize = 14 + 20 + 8;

/// Bytes of a BTH and of an ICRC.
const BTH: usize = 12;
const ICRC: usize = 4;

/// A frame for one of the hosts.
#[derive(Clone, Debug)]
pub(crate) struct Shot {
    pub(crate) to: usize,
    /// BTH to ICRC.
    transport: Vec<u8>,
    /// The ICRC is made right.
    whole: bool,
    /// It claims to come from the peer of the connection.
    from_peer: bool,
    id: u16,
    /// Offset and mask of what is flipped after all that.
    flip: Option<(usize, u8)>,
    /// Bytes behind the packet.
    trailer: usize,
}

/// Chooses shots for the state a field is in.
pub(crate) struct Attack<'a> {
    pub(crate) field: &'a mut Field,
}

/// Transport parts of all captured RoCE packets.
pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let frames = captured::names().into_iter().map(|n| captured::frames(&n));
    let transport = |f: Vec<u8>| Some(Frame::parse_ethernet(&f).ok()?.transport().to_vec());
    let corpus: Vec<_> = frames.flatten().filter_map(transport).collect();
    assert!(corpus.len() > 1000);
    corpus
}

impl Attack<'_> {
    /// Nothing but an opcode, a length, and what else it takes to reach a QP.
    pub(crate) fn plain(&mut self, opcode: u8, len: usize, whole: bool, hits: bool) -> Shot {
        let innocent = self.field.rng.below(16) == 0;
        let to = self.field.rng.index(2);
        let mut transport: Vec<u8> = (0..len).map(|_| self.field.rng.next_u64() as u8).collect();
        if len >= BTH {
            transport[0] = opcode;
            // Solicited, migration, pad and version: version 0 mostly, or nothing gets far.
            transport[1] &= if hits { 0xf0 } else { 0xff };
            transport[2..4].copy_from_slice(&[0xff, 0xff]);
            let qpn = if innocent && !hits {
                self.field.innocent(to)
            } else {
                self.field.victim.target(to, &mut self.field.rng)
            };
            transport[5..8].copy_from_slice(&qpn.value().to_be_bytes()[1..]);
            if hits {
                self.aim(to, &mut transport);
                if let (0x64 | 0x65, Some(deth)) = (opcode, transport.get_mut(12..16)) {
                    deth.copy_from_slice(&QKEY.to_be_bytes());
                }
            }
        } else if let Some(first) = transport.first_mut() {
            *first = opcode;
        }
        self.shot(to, transport, whole)
    }

    /// A captured packet, its address rewritten, with one to four things wrong.
    pub(crate) fn mutated(&mut self, corpus: &[Vec<u8>]) -> Shot {
        let rng = &mut self.field.rng;
        let to = rng.index(2);
        let mut transport = corpus[rng.index(corpus.len())].clone();
        let qpn = match rng.below(10) {
            0 => rng.below(1 << 24) as u32,
            1 => self.field.victim.qpns[to].value() ^ 1 << rng.below(24),
            2 => 0x11 + rng.below(4) as u32,
            _ => self.field.victim.target(to, rng).value(),
        };
        transport[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        self.disguise(to, qpn, &mut transport);
        let aimed = self.field.rng.below(10) < 8;
        if aimed {
            self.aim(to, &mut transport);
        }
        for _ in 0..self.field.rng.below(5) {
            mutate(&mut self.field.rng, &mut transport);
        }
        let whole = self.field.rng.below(2) == 0;
        self.shot(to, transport, whole)
    }

    /// Makes a packet one of the service of its QP, mostly.
    fn disguise(&mut self, to: usize, qpn: u32, transport: &mut [u8]) {
        let victim = &self.field.victim;
        let rng = &mut self.field.rng;
        if rng.below(4) == 0 {
            return;
        }
        if qpn == victim.uc[to].value() {
            transport[0] = transport[0] & 0x1f | 0x20;
        } else if qpn == victim.ud[to].value() {
            transport[0] = 0x64 + rng.below(2) as u8;
            let qkey = QKEY ^ u32::from(rng.below(4) == 0);
            if let Some(deth) = transport.get_mut(12..16) {
                deth.copy_from_slice(&qkey.to_be_bytes());
            }
        }
    }

    /// Gives a packet a PSN and an address that are worth something.
    fn aim(&mut self, to: usize, transport: &mut [u8]) {
        let live = *self.field.live.borrow();
        let rng = &mut self.field.rng;
        // Opcodes 13 to 18 of each service answer; all others ask.
        let answers = (13..=18).contains(&(transport[0] & 0x1f));
        let psn = if answers {
            live.asked[to]
        } else {
            live.request[1 - to]
        };
        let near = [0, 0, 0, 0, 1, 2, 0xff_ffff, 0xff_fffe, 0x80_0000][rng.index(9)];
        transport[9..12].copy_from_slice(&psn.add(near).value().to_be_bytes()[1..]);
        let (open, readable) = (self.field.victim.open[to], self.field.victim.readable[to]);
        let host = &self.field.world.hosts[to];
        let (at, mr) = if rng.below(4) == 0 { readable } else { open };
        let va = match rng.below(8) {
            0 => host.va(at).value().wrapping_sub(rng.below(9)),
            1 => host.va(at + mr.len).value() - rng.below(9),
            2 => u64::MAX - rng.below(9),
            3 => rng.next_u64(),
            _ => host.va(at + rng.below(mr.len)).value(),
        };
        let foreign = &self.field.foreign[to];
        let rkey = match rng.below(8) {
            0 => foreign[rng.index(foreign.len())].value(),
            1 => mr.rkey.value() ^ 1 << rng.below(32),
            _ => mr.rkey.value(),
        };
        if transport.len() < BTH + 16 + ICRC {
            return;
        }
        // The RETH of WRITE and READ is right behind the BTH; elsewhere this is other bytes.
        let carried = transport.len() - BTH - 16 - ICRC;
        let len = match rng.below(6) {
            0 => rng.next_u64() as u32,
            1 => 0,
            2 => rng.below(8192) as u32,
            _ => carried as u32,
        };
        if (6..=12).contains(&(transport[0] & 0x1f)) {
            transport[12..20].copy_from_slice(&va.to_be_bytes());
            transport[20..24].copy_from_slice(&rkey.to_be_bytes());
            transport[24..28].copy_from_slice(&len.to_be_bytes());
        }
    }

    fn shot(&mut self, to: usize, transport: Vec<u8>, whole: bool) -> Shot {
        let field = &mut *self.field;
        let rng = &mut field.rng;
        let id = rng.below(1 << 16) as u16;
        let from_peer = rng.below(20) != 0;
        let flip = (rng.below(10) == 0).then(|| {
            let at = rng.index(LOWER + transport.len());
            (at, 1u8 << rng.below(8))
        });
        let trailer = if rng.below(10) == 0 { rng.index(40) } else { 0 };
        let mut shot = Shot {
            to,
            transport,
            whole,
            from_peer,
            id,
            flip,
            trailer,
        };
        // Who knows all numbers of a connection can disturb it, so with the pair that has to live
        // one thing is wrong for certain.
        if let Some(&[a, b, c]) = shot.transport.get(5..8).and_then(|b| b.first_chunk())
            && field.is_innocent(to, Qpn::new(u32::from_be_bytes([0, a, b, c])))
        {
            shot.whole = field.link == Link::Ethernet && field.rng.below(2) == 0;
            shot.from_peer = !shot.whole;
        }
        shot
    }
}

impl Shot {
    /// As a frame on Ethernet, from the peer or from somebody else.
    pub(crate) fn ethernet(&self, host: &Host<SimPort>, peer: &Host<SimPort>) -> Vec<u8> {
        let mut f = Vec::with_capacity(LOWER + self.transport.len() + self.trailer);
        f.extend_from_slice(&host.mac.bytes());
        f.extend_from_slice(&peer.mac.bytes());
        f.extend_from_slice(&[8, 0]);
        let ip_len = 28 + self.transport.len() as u16;
        let src = match peer.gid.v4() {
            Some(src) if self.from_peer => src,
            _ => [192, 0, 2, 77],
        };
        let mut ip = [0u8; 20];
        ip[..2].copy_from_slice(&[0x45, 2]);
        ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
        ip[4..6].copy_from_slice(&self.id.to_be_bytes());
        ip[6..10].copy_from_slice(&[0x40, 0, 64, 17]);
        ip[12..16].copy_from_slice(&src);
        ip[16..20].copy_from_slice(&host.gid.v4().unwrap());
        let sum: u32 = ip
            .chunks(2)
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let check = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        f.extend_from_slice(&ip);
        f.extend_from_slice(&SRC_PORT.to_be_bytes());
        f.extend_from_slice(&4791u16.to_be_bytes());
        f.extend_from_slice(&(ip_len - 20).to_be_bytes());
        f.extend_from_slice(&[0, 0]);
        f.extend_from_slice(&self.transport);
        let icrc = Frame::parse_ethernet(&f)
            .ok()
            .and_then(|f| f.icrc_computed());
        self.seal(&mut f, icrc);
        f.resize(f.len() + self.trailer, 0x77);
        f
    }

    /// As the payload of a datagram.
    pub(crate) fn udp(&self, meta: &UdpMeta) -> Vec<u8> {
        let mut f = self.transport.clone();
        let icrc = Frame::from_udp(meta, &f).icrc_computed();
        self.seal(&mut f, icrc);
        f
    }

    /// Makes the ICRC right or wrong, then flips what is to be flipped.
    fn seal(&self, f: &mut [u8], icrc: Option<[u8; 4]>) {
        let len = f.len();
        if let Some(icrc) = icrc
            && len >= ICRC
        {
            let at = &mut f[len - ICRC..];
            if self.whole {
                at.copy_from_slice(&icrc);
            } else if at == icrc {
                at[0] ^= 1;
            }
        }
        // Flipped bits of the fields that are masked out leave a frame whole: with the innocent
        // pair nothing is flipped back by chance, a single flip never makes a CRC right.
        if let Some((at, mask)) = self.flip
            && at < len
            && self.whole
        {
            f[at] ^= mask;
        }
    }
}

/// One thing wrong.
fn mutate(rng: &mut Rng, t: &mut Vec<u8>) {
    let at = |rng: &mut Rng, t: &Vec<u8>| rng.index(t.len());
    if t.is_empty() {
        t.push(rng.next_u64() as u8);
        return;
    }
    match rng.below(12) {
        0..=2 => {
            let i = at(rng, t);
            t[i] ^= 1 << rng.below(8);
        }
        3 => {
            let i = at(rng, t);
            t[i] = rng.next_u64() as u8;
        }
        4 => t[0] = rng.next_u64() as u8,
        // Another operation of the same service.
        5 | 6 => t[0] = t[0] & 0xe0 | rng.below(24) as u8,
        // Pad, version, solicited, migration.
        7 => {
            if let Some(b) = t.get_mut(1) {
                *b = rng.next_u64() as u8;
            }
        }
        8 => {
            let keep = at(rng, t);
            t.truncate(keep);
        }
        9 => {
            let more = rng.index(1100);
            t.resize((t.len() + more).min(4100), 0xa5);
        }
        // The first word behind the BTH: syndrome and MSN of a response.
        10 => {
            if let Some(word) = t.get_mut(12..16) {
                word.copy_from_slice(&(rng.next_u64() as u32).to_be_bytes());
            }
        }
        _ => {
            if let Some(b) = t.get_mut(8) {
                *b = rng.next_u64() as u8;
            }
        }
    }
}
