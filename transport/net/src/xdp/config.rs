//! What a port is opened with.

use xroce_wire::newtypes::Gid;

use super::XdpError;

/// How the program is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Native if the driver can, else generic.
    #[default]
    Auto,
    /// In the driver, before the kernel makes a packet buffer; zero-copy if the driver can.
    Native,
    /// In the network stack: any device, slower, always copying.
    Generic,
}

/// How to open an [`XdpPort`](super::XdpPort).
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// Interface, in the network namespace of the calling thread.
    pub ifname: String,
    /// Receive and transmit queue, from 0; one port per queue.
    pub queue: u32,
    /// How to attach the program.
    pub mode: Mode,
    /// Chunks given to the kernel for receiving = entries of the receive and fill rings; a power
    /// of two, 64 ..= 16384. A frame of up to 3766 bytes takes one chunk, a longer one two.
    ///
    /// More absorb longer bursts, or a receiver that is off the CPU for longer: 256 last about
    /// 1 ms at full rate. But every chunk goes round, through the cache: 1024 instead of 256 cost
    /// 10 % at 1 KB and 25 % at 4 KB frames over veth, 512 nothing that could be measured.
    pub ring_size: u32,
    /// Frames that can be lent or on their way out at the same time, 16 ..= 8192. The last used
    /// is used first, so more cost no cache, only memory (4 or 8 KB each).
    pub tx_frames: u32,
    /// Addresses whose RoCE frames come to this port; empty: all of the interface that are
    /// usable when it is opened.
    pub addresses: Vec<Gid>,
}

impl XdpConfig {
    /// Queue 0 of `ifname`, mode [`Mode::Auto`], all its addresses, rings for 256 frames.
    #[must_use]
    pub fn new(ifname: impl Into<String>) -> Self {
        Self {
            ifname: ifname.into(),
            queue: 0,
            mode: Mode::Auto,
            ring_size: 256,
            tx_frames: 256,
            addresses: Vec::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), XdpError> {
        if !self.ring_size.is_power_of_two() || !(64..=16384).contains(&self.ring_size) {
            return Err(XdpError::Config(format!(
                "ring_size must be a power of two from 64 to 16384, not {}",
                self.ring_size
            )));
        }
        if !(16..=8192).contains(&self.tx_frames) {
            return Err(XdpError::Config(format!(
                "tx_frames must be from 16 to 8192, not {}",
                self.tx_frames
            )));
        }
        Ok(())
    }
}
