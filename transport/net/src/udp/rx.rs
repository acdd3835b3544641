//! Receiving: `recvmmsg` into buffers large enough for what GRO coalesces, handed out frame by
//! frame. What exceeds a burst's budget waits for the next.

use std::array;
use std::io::{self, IoSliceMut};

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use socket2::Socket;
use xroce_wire::frame::UdpMeta;
use xroce_wire::newtypes::Gid;

use crate::datapath::Rx;

/// Messages per system call. Each is a train of up to 64 frames, so this is for small, scattered
/// traffic; more would only walk through more cache.
const BATCH: usize = 16;
/// Bytes per message: the largest UDP datagram, and the largest coalesced train.
const BUFFER: usize = 65_536;

/// Received messages and how far they have been handed out.
#[derive(Debug)]
pub(super) struct Inbox {
    buffers: Box<[u8]>,
    meta: [RecvMeta; BATCH],
    have: usize,
    next: usize,
    offset: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            buffers: vec![0; BATCH * BUFFER].into_boxed_slice(),
            meta: [RecvMeta::default(); BATCH],
            have: 0,
            next: 0,
            offset: 0,
        }
    }

    /// Whether frames wait here, received but not handed out.
    pub(super) fn is_empty(&self) -> bool {
        self.next >= self.have
    }

    /// Receives what there is, at most one batch; whether there may be more. Needs: empty.
    pub(super) fn fill(
        &mut self,
        socket: &Socket,
        state: &UdpSocketState,
        messages: usize,
    ) -> io::Result<bool> {
        (self.have, self.next, self.offset) = (0, 0, 0);
        let messages = messages.clamp(1, BATCH);
        let mut chunks = self.buffers.chunks_exact_mut(BUFFER);
        let mut slices: [IoSliceMut<'_>; BATCH] =
            array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let slices = slices.get_mut(..messages).unwrap_or_default();
        self.have = state.recv(UdpSockRef::from(socket), slices, &mut self.meta)?;
        Ok(self.have == messages)
    }

    /// Hands out up to `budget` frames; how many, and their bytes.
    pub(super) fn hand_out(
        &mut self,
        local: Gid,
        budget: usize,
        each: &mut impl FnMut(Rx<'_>),
    ) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        while count < budget && self.next < self.have {
            let Some(m) = self.meta.get(self.next) else {
                break;
            };
            let base = self.next * BUFFER;
            let message = self.buffers.get(base..base + m.len).unwrap_or_default();
            let meta = UdpMeta {
                src: m.addr.ip().into(),
                dst: m.dst_ip.map_or(local, Gid::from),
                src_port: m.addr.port(),
                tos: m.ecn.map_or(0, |e| e as u8),
                hop_limit: None,
            };
            // A message may be empty: one frame of no bytes. Otherwise stride is not 0.
            let stride = m.stride.max(1);
            while count < budget {
                let rest = message.get(self.offset..).unwrap_or_default();
                let frame = rest.get(..stride).unwrap_or(rest);
                each(Rx::Udp(meta, frame));
                count += 1;
                bytes += frame.len() as u64;
                self.offset += stride;
                if self.offset >= m.len {
                    self.next += 1;
                    self.offset = 0;
                    break;
                }
            }
        }
        (count, bytes)
    }
}
