//! What the core costs when nothing is below it: two engines in one thread over the in-memory
//! port.

use std::hint::black_box;

use xroce_engine::clock;
use xroce_net::datapath::Link;
use xroce_wire::icrc::crc_update;
use xroce_wire::newtypes::PathMtu;

use super::{MEMORY, Op, Pace, Pair};

fn seconds(f: impl FnOnce()) -> f64 {
    let start = clock::now();
    f();
    clock::now().since(start).as_nanos() as f64 / 1e9
}

/// Sends so many messages and does nothing else: for counting instructions.
pub fn messages(op: Op, size: u32, count: usize) {
    Pair::in_memory(Link::Ethernet, PathMtu::Mtu4096, 1).stream(op, size, count);
}

/// Bytes under the ICRC of a packet of 4 KB in the middle of a message: IPv4, UDP and BTH behind
/// eight bytes of ones, the payload.
pub const UNDER_ICRC: usize = 8 + 20 + 8 + 12 + 4096;

/// Seconds that the ICRC of a packet of 4 KB takes at one end, its bytes being in the cache, where
/// the copy has just put them.
pub fn icrc_alone() -> f64 {
    const COUNT: u32 = 20_000;
    let frame = vec![7u8; UNDER_ICRC];
    let mut crc = 0;
    let time = seconds(|| {
        for _ in 0..COUNT {
            crc ^= crc_update(!0, black_box(&frame));
        }
    });
    black_box(crc);
    time / f64::from(COUNT)
}

/// D6: messages of 64 bytes a second.
pub struct MessageRate(Pair);

impl MessageRate {
    const COUNT: usize = 200_000;

    pub fn new() -> Self {
        let mut pair = Pair::in_memory(Link::Ethernet, PathMtu::Mtu1024, 1);
        pair.stream(Op::Send, 64, Self::COUNT);
        Self(pair)
    }

    pub fn measure(&mut self) -> f64 {
        let time = seconds(|| self.0.stream(Op::Send, 64, Self::COUNT));
        Self::COUNT as f64 / time
    }
}

/// D7: bytes a second of RDMA WRITE in packets of 4096, and of what no implementation can do
/// without: at each end one copy and one CRC of each packet.
pub struct ByteRate {
    pair: Pair,
    memory: Vec<u8>,
    landing: Vec<u8>,
}

impl ByteRate {
    const SIZE: u32 = 1 << 20;
    const COUNT: usize = 300;
    const BYTES: usize = Self::SIZE as usize * Self::COUNT;

    pub fn new() -> Self {
        let mut pair = Pair::in_memory(Link::Ethernet, PathMtu::Mtu4096, 1);
        pair.stream(Op::Write, Self::SIZE, Self::COUNT);
        Self {
            pair,
            memory: vec![7; MEMORY],
            landing: vec![0; MEMORY],
        }
    }

    /// Of a new pair of queue pairs with `pace`.
    pub fn measure(&mut self, pace: Pace) -> f64 {
        self.pair.disconnect();
        self.pair.pace = pace;
        self.pair.connect(PathMtu::Mtu4096);
        self.pair.stream(Op::Write, Self::SIZE, Self::COUNT / 10);
        let time = seconds(|| self.pair.stream(Op::Write, Self::SIZE, Self::COUNT));
        Self::BYTES as f64 / time
    }

    pub fn copy_and_crc(&mut self) -> f64 {
        const PACKET: usize = 4096;
        let mut frame = vec![0u8; PACKET];
        let mut crc = 0;
        let time = seconds(|| {
            for i in 0..Self::BYTES / PACKET {
                let at = (i * PACKET) % Self::SIZE as usize;
                frame.copy_from_slice(&self.memory[at..at + PACKET]);
                crc ^= crc_update(!0, black_box(&frame));
                crc ^= crc_update(!0, black_box(&frame));
                self.landing[at..at + PACKET].copy_from_slice(&frame);
            }
        });
        black_box((crc, &self.landing));
        Self::BYTES as f64 / time
    }
}
