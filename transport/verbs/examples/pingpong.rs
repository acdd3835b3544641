//! Messages back and forth by SEND and RECV: every byte compared, latencies as percentiles.
//!
//! ```text
//! pingpong server
//! pingpong client SERVER --size 64 --count 10000
//! ```
#![allow(clippy::print_stdout, reason = "a program")]

mod common;

use std::ffi::OsString;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use common::{DeviceArgs, Opened, PATIENCE, PORT};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use xroce_verbs::endpoint::SideChannel;
use xroce_verbs::{Access, Cq, Endpoint, Mr, Pd, Qp, Rc, RecvBatch, SendBatch, clock};

/// Longest message, bytes.
const SIZE_MAX: u32 = 1 << 24;

/// SEND and RECV between two processes, verified, with latency percentiles.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Answers one client after the other
    Server {
        /// Where to listen for clients (TCP)
        #[arg(long, value_name = "IP:PORT", default_value_t = format!("0.0.0.0:{PORT}"))]
        listen: String,
        /// Ends after one client
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Sends, waits for the answer, measures
    Client {
        /// HOST or HOST:PORT of the server
        server: String,
        /// Bytes of a message
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(SIZE_MAX)))]
        size: u32,
        /// Messages
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
        #[command(flatten)]
        device: DeviceArgs,
    },
}

/// What the client wants.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hello {
    endpoint: Endpoint,
    size: u32,
    count: u64,
}

fn main() -> Result<()> {
    run(std::env::args_os())
}

/// The program; the test of the examples calls it too.
///
/// # Errors
/// Whatever goes wrong.
pub(crate) fn run(args: impl Iterator<Item = OsString>) -> Result<()> {
    match Cli::parse_from(args).side {
        Side::Server {
            listen,
            once,
            device,
        } => serve(&listen, once, &device),
        Side::Client {
            server,
            size,
            count,
            device,
        } => client(&server, size, count, &device),
    }
}

/// One end: a buffer to send from and one to receive into.
struct End {
    qp: Qp<Rc>,
    cq: Cq,
    sent: Mr,
    received: Mr,
    send: SendBatch<Rc>,
    receive: RecvBatch,
}

impl End {
    /// Connects; `exchange` tells the peer about this end and returns its.
    fn new(
        opened: &Opened,
        size: u32,
        exchange: impl FnOnce(Endpoint) -> Result<Endpoint>,
    ) -> Result<Self> {
        let pd: Pd = opened.context.alloc_pd()?;
        let cq = opened.context.create_cq(16)?;
        let qp = pd.qp::<Rc>(&cq, &cq).max_send_wr(4).max_recv_wr(4);
        let qp = qp.create()?.init(Access::empty())?;
        let received = pd.alloc_mr(size as usize, Access::LOCAL_WRITE)?;
        let sent = pd.alloc_mr(size as usize, Access::empty())?;
        let mut receive = RecvBatch::new();
        receive.recv(1).sge(received.slice(..)?);
        // Before the peer can send.
        qp.post_recv(&receive)?;
        let peer = exchange(opened.endpoint(&qp)?)?;
        let mut send = SendBatch::new();
        send.send(0).sge(sent.slice(..)?).unsignaled();
        Ok(Self {
            qp: opened.connect(qp, &peer)?,
            cq,
            sent,
            received,
            send,
            receive,
        })
    }

    /// Waits for the next message.
    fn next(&self) -> Result<()> {
        let wc = self.cq.next(PATIENCE)?;
        let wc = wc.with_context(|| format!("no message for {} s", PATIENCE.as_secs()))?;
        if let Err(error) = wc.ok() {
            match self.qp.failure() {
                Some(failure) => bail!("{error}; {failure}"),
                None => bail!("{error}"),
            }
        }
        Ok(())
    }
}

fn serve(listen: &str, once: bool, device: &DeviceArgs) -> Result<()> {
    let listener = common::listen(listen)?;
    loop {
        let channel = common::accept(&listener)?;
        match answer(channel, device) {
            Ok(count) => println!("{count} messages answered"),
            Err(error) if once => return Err(error),
            Err(error) => eprintln!("client: {error:#}"),
        }
        if once {
            return Ok(());
        }
    }
}

/// Sends back what it receives, from another buffer.
fn answer(mut channel: SideChannel, device: &DeviceArgs) -> Result<u64> {
    let hello: Hello = channel.recv()?;
    ensure!(
        (1..=SIZE_MAX).contains(&hello.size),
        "messages of {} bytes: at most {SIZE_MAX}",
        hello.size
    );
    let opened = device.open(common::near(&channel)?)?;
    let end = End::new(&opened, hello.size, |own| {
        channel.send(&own)?;
        Ok(hello.endpoint)
    })?;
    let mut bytes = vec![0; hello.size as usize];
    for _ in 0..hello.count {
        end.next()?;
        end.received.read(0, &mut bytes)?;
        end.sent.write(0, &bytes)?;
        end.qp.post_recv(&end.receive)?;
        end.qp.post(&end.send)?;
    }
    // The client has all answers when it says so; until then this end must not go.
    channel
        .recv::<u64>()
        .context("waiting for the client to end")
}

/// Message number `n`: different in every byte from the one before.
fn fill(bytes: &mut [u8], n: u64) {
    for (at, byte) in (0u64..).zip(bytes) {
        let [low, ..] = (at.wrapping_mul(31) ^ n.wrapping_mul(0x9d)).to_le_bytes();
        *byte = low;
    }
}

fn client(server: &str, size: u32, count: u64, device: &DeviceArgs) -> Result<()> {
    let mut channel = common::dial(server)?;
    let opened = device.open(common::near(&channel)?)?;
    let end = End::new(&opened, size, |endpoint| {
        let hello = Hello {
            endpoint,
            size,
            count,
        };
        Ok(channel.exchange(&hello)?)
    })?;
    let mut histogram = Histogram::<u64>::new(3)?;
    let (mut bytes, mut back) = (vec![0; size as usize], vec![0; size as usize]);
    let mut wrong = 0u64;
    for n in 0..count {
        fill(&mut bytes, n);
        end.sent.write(0, &bytes)?;
        let start = clock::now();
        end.qp.post(&end.send)?;
        end.next()?;
        histogram.record(clock::now().since(start).as_nanos())?;
        end.received.read(0, &mut back)?;
        wrong += u64::from(back != bytes);
        end.qp.post_recv(&end.receive)?;
    }
    channel.send(&count)?;
    println!(
        "{count} messages of {size} bytes over {}",
        opened.context.name()
    );
    let at = |quantile| to_micros(histogram.value_at_quantile(quantile));
    println!(
        "round trip: min {} p50 {} p90 {} p99 {} p99.9 {} max {} µs",
        to_micros(histogram.min()),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        to_micros(histogram.max())
    );
    println!("{count} compared byte by byte, {wrong} wrong");
    ensure!(wrong == 0, "{wrong} messages came back changed");
    Ok(())
}

/// Nanoseconds as microseconds with two digits.
fn to_micros(ns: u64) -> String {
    format!("{}.{:02}", ns / 1000, ns % 1000 / 10)
}
