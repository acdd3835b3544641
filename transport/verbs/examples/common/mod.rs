//! What the examples have in common: opening a device, and finding each other over TCP.
#![allow(dead_code, unreachable_pub, reason = "each example uses its own part")]

use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use xroce_verbs::endpoint::SideChannel;
use xroce_verbs::{ConnectAttr, Context, Device, Drive, Endpoint, Init, PollMode, Qp, Rc, Ready};

/// TCP port of the side channel.
pub const PORT: u16 = 18_716;
/// A peer that says nothing for so long is given up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Which device to use.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Interface for AF_XDP, as root; without it a UDP socket is used
    #[arg(long, value_name = "IFNAME")]
    pub dev: Option<String>,
    /// Own RoCE address [default: the one of the TCP connection]
    #[arg(long, value_name = "IP")]
    pub local: Option<IpAddr>,
    /// How the engine's thread waits for work
    #[arg(long, value_enum, default_value_t = Poll::Adaptive)]
    pub poll: Poll,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Poll {
    /// Never sleeps
    Busy,
    /// Sleeps when there is nothing to do
    Adaptive,
}

impl DeviceArgs {
    /// Opens the device; `near` is the own address on the side channel.
    pub fn open(&self, near: IpAddr) -> Result<Opened> {
        let local = self.local.unwrap_or(near).to_canonical();
        let device = match &self.dev {
            Some(ifname) => Device::xdp(ifname.as_str()),
            None => Device::udp(local),
        };
        let mode = match self.poll {
            Poll::Busy => PollMode::Busy,
            Poll::Adaptive => PollMode::Adaptive,
        };
        let context = Context::open(&device, Drive::Thread(mode))?;
        let gids = context.gids();
        let found = gids.iter().find(|(_, e)| e.gid.ip() == local);
        let Some(&(sgid_index, _)) = found else {
            let have: Vec<_> = gids.iter().map(|(_, e)| e.gid.to_string()).collect();
            bail!(
                "{local} is not an address of {}; give --local, one of {}",
                context.name(),
                have.join(", ")
            );
        };
        Ok(Opened {
            context,
            sgid_index,
        })
    }
}

/// An open device, and which of its addresses to use.
pub struct Opened {
    pub context: Context,
    pub sgid_index: u32,
}

impl Opened {
    pub fn endpoint(&self, qp: &Qp<Rc, Init>) -> Result<Endpoint> {
        Ok(qp.endpoint_at(self.sgid_index)?)
    }

    /// Connects; a peer on a loaded machine may take half a second to answer.
    pub fn connect(&self, qp: Qp<Rc, Init>, peer: &Endpoint) -> Result<Qp<Rc, Ready>> {
        let attr = ConnectAttr {
            sgid_index: self.sgid_index,
            timeout: 17,
            ..ConnectAttr::default()
        };
        Ok(qp.connect(peer, &attr)?)
    }
}

/// Listens, and says where on standard output.
#[allow(clippy::print_stdout, reason = "a program")]
pub fn listen(on: &str) -> Result<TcpListener> {
    let listener = TcpListener::bind(on).with_context(|| format!("listening on {on}"))?;
    println!("listening on {}", listener.local_addr()?);
    Ok(listener)
}

/// Connects to a server given as HOST or HOST:PORT.
pub fn dial(server: &str) -> Result<SideChannel> {
    let with_port = server.to_socket_addrs().or_else(|_| {
        let bare = server.trim_start_matches('[').trim_end_matches(']');
        (bare, PORT).to_socket_addrs()
    });
    let addresses: Vec<_> = with_port
        .with_context(|| format!("{server} is no host, nor HOST:PORT"))?
        .collect();
    let stream = TcpStream::connect(&addresses[..])
        .with_context(|| format!("connecting to {server}: is the server running there?"))?;
    Ok(SideChannel::new(stream, PATIENCE)?)
}

/// The next client.
pub fn accept(listener: &TcpListener) -> Result<SideChannel> {
    let (stream, _) = listener.accept()?;
    Ok(SideChannel::new(stream, PATIENCE)?)
}

/// Own address on a side channel.
pub fn near(channel: &SideChannel) -> Result<IpAddr> {
    Ok(channel.stream().local_addr()?.ip())
}
