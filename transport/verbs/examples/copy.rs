//! Copies a file by RDMA WRITE with immediate.
//!
//! ```text
//! copy receive --output DIRECTORY
//! copy send FILE SERVER
//! ```
//!
//! The receiver lends a window of memory, cut into slots. The sender writes chunk n into slot n
//! modulo slots, with n as immediate data; the receiver stores it and gives the slot back by an
//! empty SEND that says how many chunks are stored. At the end both compare SHA-256 sums.
#![allow(clippy::print_stdout, reason = "a program")]

mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use common::{DeviceArgs, Opened, PATIENCE, PORT};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use xroce_verbs::endpoint::SideChannel;
use xroce_verbs::{
    Access, Completion, Cq, Endpoint, Mr, Qp, Rc, RecvBatch, RemoteMr, SendBatch, WcOpcode,
};

/// Bytes of a slot.
const CHUNK: u32 = 1 << 18;
/// Slots of the window.
const SLOTS: u32 = 16;
/// Says that the receiver cannot go on; it tells why on the side channel.
const ABORT: u32 = u32::MAX;

/// File copy by RDMA WRITE with immediate, checked by SHA-256.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Waits for one file
    Receive {
        /// File or directory to write to; a file must not exist yet
        #[arg(long, default_value = ".")]
        output: PathBuf,
        /// Where to listen for the sender (TCP)
        #[arg(long, value_name = "IP:PORT", default_value_t = format!("0.0.0.0:{PORT}"))]
        listen: String,
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Sends one file
    Send {
        /// The file
        file: PathBuf,
        /// HOST or HOST:PORT of the receiver
        server: String,
        #[command(flatten)]
        device: DeviceArgs,
    },
}

/// What the sender has.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Offer {
    name: String,
    bytes: u64,
    endpoint: Endpoint,
}

/// The receiver's answers.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Answer {
    /// With its window as the endpoint's memory.
    Accepted(Endpoint),
    /// The sum of what was stored.
    Stored(String),
    /// It cannot.
    Failed(String),
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
        Side::Receive {
            output,
            listen,
            device,
        } => receive(&output, &listen, &device),
        Side::Send {
            file,
            server,
            device,
        } => send(&file, &server, &device),
    }
}

/// A queue pair in the making, its completion queue and its memory.
struct Parts {
    qp: Qp<Rc, xroce_verbs::Init>,
    cq: Cq,
    mr: Mr,
}

fn parts(opened: &Opened, access: Access) -> Result<Parts> {
    let pd = opened.context.alloc_pd()?;
    let cq = opened.context.create_cq(4 * SLOTS)?;
    let qp = pd.qp::<Rc>(&cq, &cq);
    let qp = qp.max_send_wr(2 * SLOTS).max_recv_wr(2 * SLOTS).create()?;
    Ok(Parts {
        qp: qp.init(access)?,
        cq,
        mr: pd.alloc_mr((CHUNK * SLOTS) as usize, access | Access::LOCAL_WRITE)?,
    })
}

/// The next completion, if it is one of success.
fn next(cq: &Cq, qp: &Qp<Rc>) -> Result<Completion> {
    let wc = cq.next(PATIENCE)?;
    let wc = wc.with_context(|| format!("nothing happened for {} s", PATIENCE.as_secs()))?;
    match (wc.ok(), qp.failure()) {
        (Ok(_), _) => Ok(wc),
        (Err(error), Some(failure)) => bail!("{error}; {failure}"),
        (Err(error), None) => bail!("{error}"),
    }
}

fn progress(bytes: u64, what: &str) -> Result<ProgressBar> {
    let bar = ProgressBar::new(bytes);
    let form = "{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar.set_style(ProgressStyle::with_template(form)?.progress_chars("=> "));
    bar.set_message(what.to_owned());
    Ok(bar)
}

/// Where slot `n` modulo slots begins.
fn slot(n: u32) -> u64 {
    u64::from(n % SLOTS) * u64::from(CHUNK)
}

/// Chunks of a file.
fn chunks(bytes: u64) -> Result<u32> {
    let chunks = u32::try_from(bytes.div_ceil(CHUNK.into())).ok();
    let chunks = chunks.filter(|&n| n < ABORT);
    chunks.with_context(|| format!("a file of {bytes} bytes is too long"))
}

fn hex(sum: Sha256) -> String {
    sum.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

// The sender.

fn send(path: &Path, server: &str, device: &DeviceArgs) -> Result<()> {
    let shown = path.display();
    let mut file = File::open(path).with_context(|| format!("opening {shown}"))?;
    let meta = file.metadata()?;
    ensure!(meta.is_file(), "{shown} is not a file");
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{shown}: the name is not UTF-8"))?;
    let mut channel = common::dial(server)?;
    let opened = device.open(common::near(&channel)?)?;
    let Parts { qp, cq, mr } = parts(&opened, Access::empty())?;
    let mut credits = RecvBatch::new();
    for n in 0..SLOTS + 1 {
        credits.recv(n.into());
    }
    qp.post_recv(&credits)?;
    let offer = Offer {
        name: name.to_owned(),
        bytes: meta.len(),
        endpoint: opened.endpoint(&qp)?,
    };
    let peer = match channel.exchange(&offer)? {
        Answer::Accepted(peer) => peer,
        Answer::Failed(reason) => bail!("the receiver refused: {reason}"),
        Answer::Stored(_) => bail!("the receiver talks out of turn"),
    };
    let window = peer.memory.context("the receiver lends no memory")?;
    let mut sender = Sender {
        qp: opened.connect(qp, &peer)?,
        cq,
        mr,
        window,
        stored: 0,
        written: 0,
    };
    let (sum, complete) = sender.run(&mut file, meta.len(), name)?;
    if complete {
        channel.send(&sum)?;
    }
    match channel.recv()? {
        Answer::Stored(theirs) if complete && theirs == sum => {
            println!("sent {} bytes of {name}, sha256 {sum}", meta.len());
            Ok(())
        }
        Answer::Stored(theirs) => bail!("the receiver has sha256 {theirs}, not {sum}"),
        Answer::Failed(reason) => bail!("the receiver gave up: {reason}"),
        Answer::Accepted(_) => bail!("the receiver talks out of turn"),
    }
}

struct Sender {
    qp: Qp<Rc>,
    cq: Cq,
    mr: Mr,
    window: RemoteMr,
    /// Chunks the receiver has stored.
    stored: u32,
    /// Chunks whose WRITE has completed.
    written: u32,
}

impl Sender {
    /// Sends all chunks and returns their sum; `false` if the receiver gave up.
    fn run(&mut self, file: &mut File, bytes: u64, name: &str) -> Result<(String, bool)> {
        let bar = progress(bytes, name)?;
        let mut sum = Sha256::new();
        let mut buffer = vec![0; CHUNK as usize];
        let (mut batch, mut again) = (SendBatch::new(), RecvBatch::new());
        again.recv(0);
        let chunks = chunks(bytes)?;
        let mut left = bytes;
        for n in 0..chunks {
            // The slot here is free when its WRITE is done, the one there when it is stored.
            while n - self.stored >= SLOTS || n - self.written >= SLOTS {
                if !self.wait(&again, &bar)? {
                    return Ok((String::new(), false));
                }
            }
            let len = left.min(CHUNK.into());
            let part = buffer.get_mut(..usize::try_from(len)?).unwrap_or_default();
            file.read_exact(part)
                .context("the file became shorter while it was sent")?;
            sum.update(&*part);
            self.mr.write(slot(n), part)?;
            let range = slot(n)..slot(n) + len;
            batch.clear();
            batch
                .write_imm(n.into(), self.window.slice(range.clone())?, n.to_be_bytes())
                .sge(self.mr.slice(range)?);
            self.qp.post(&batch)?;
            left -= len;
        }
        while self.stored < chunks {
            if !self.wait(&again, &bar)? {
                return Ok((String::new(), false));
            }
        }
        bar.finish_and_clear();
        Ok((hex(sum), true))
    }

    /// One completion; `false` if the receiver cannot go on.
    fn wait(&mut self, again: &RecvBatch, bar: &ProgressBar) -> Result<bool> {
        let wc = next(&self.cq, &self.qp)?;
        if wc.opcode != WcOpcode::Recv {
            self.written += 1;
            return Ok(true);
        }
        let stored = u32::from_be_bytes(wc.imm);
        if stored == ABORT {
            bar.abandon();
            return Ok(false);
        }
        self.stored = stored;
        bar.set_position(u64::from(stored) * u64::from(CHUNK));
        self.qp.post_recv(again)?;
        Ok(true)
    }
}

// The receiver.

fn receive(output: &Path, listen: &str, device: &DeviceArgs) -> Result<()> {
    let listener = common::listen(listen)?;
    let mut channel = common::accept(&listener)?;
    let offer: Offer = channel.recv()?;
    let result = store(output, &offer, &mut channel, device);
    if let Err(error) = &result {
        // The sender may be gone, which is then the error.
        let _ = channel.send(&Answer::Failed(format!("{error:#}")));
    }
    result
}

fn store(
    output: &Path,
    offer: &Offer,
    channel: &mut SideChannel,
    device: &DeviceArgs,
) -> Result<()> {
    let chunks = chunks(offer.bytes)?;
    let mut target = Target::create(output, &offer.name)?;
    let opened = device.open(common::near(channel)?)?;
    let Parts { qp, cq, mr } = parts(&opened, Access::REMOTE_WRITE)?;
    let mut receives = RecvBatch::new();
    for n in 0..SLOTS {
        receives.recv(n.into());
    }
    qp.post_recv(&receives)?;
    let own = opened.endpoint(&qp)?.with_memory(mr.remote());
    let qp = opened.connect(qp, &offer.endpoint)?;
    channel.send(&Answer::Accepted(own))?;
    let stored = take(&mut target, offer, chunks, (&qp, &cq, &mr));
    if stored.is_err() {
        let mut batch = SendBatch::new();
        batch.send_imm(u64::MAX, ABORT.to_be_bytes());
        // If that fails too, the sender hears of it on the side channel or by timeout.
        if qp.post(&batch).is_ok() {
            while let Ok(Some(wc)) = cq.next(PATIENCE) {
                if wc.wr_id == u64::MAX {
                    break;
                }
            }
        }
    }
    let sum = stored?;
    let theirs: String = channel.recv().context("waiting for the sender's sum")?;
    ensure!(
        sum == theirs,
        "sha256 is {sum} here, {theirs} at the sender"
    );
    let path = target.finish()?;
    channel.send(&Answer::Stored(sum.clone()))?;
    let bytes = offer.bytes;
    println!(
        "received {bytes} bytes into {}, sha256 {sum}",
        path.display()
    );
    Ok(())
}

/// Takes all chunks and returns their sum.
fn take(
    target: &mut Target,
    offer: &Offer,
    chunks: u32,
    (qp, cq, mr): (&Qp<Rc>, &Cq, &Mr),
) -> Result<String> {
    let bar = progress(offer.bytes, &offer.name)?;
    let mut sum = Sha256::new();
    let mut buffer = vec![0; CHUNK as usize];
    let (mut batch, mut again) = (SendBatch::new(), RecvBatch::new());
    again.recv(0);
    let mut left = offer.bytes;
    let mut n = 0;
    while n < chunks {
        let wc = next(cq, qp)?;
        if wc.opcode != WcOpcode::RecvRdmaWithImm {
            continue;
        }
        let expected = left.min(CHUNK.into());
        ensure!(
            wc.imm == n.to_be_bytes() && u64::from(wc.byte_len) == expected,
            "chunk {n} of {expected} bytes was expected, the sender sent {} of {} bytes",
            u32::from_be_bytes(wc.imm),
            wc.byte_len
        );
        let part = buffer.get_mut(..usize::try_from(expected)?);
        let part = part.unwrap_or_default();
        mr.read(slot(n), part)?;
        sum.update(&*part);
        target.write(part)?;
        n += 1;
        left -= expected;
        qp.post_recv(&again)?;
        batch.clear();
        // Its completion is passed over above.
        batch.send_imm(n.into(), n.to_be_bytes());
        qp.post(&batch)?;
        bar.set_position(offer.bytes - left);
    }
    bar.finish_and_clear();
    Ok(hex(sum))
}

/// What is written to: a file beside the final one, or something that is no file.
struct Target {
    file: File,
    path: PathBuf,
    /// Renamed to `path` at the end, removed if that never comes.
    part: Option<PathBuf>,
}

impl Target {
    fn create(output: &Path, name: &str) -> Result<Self> {
        let base = Path::new(name).file_name();
        ensure!(
            base.is_some_and(|base| base == name),
            "{name:?} is not the name of a file"
        );
        let path = if output.is_dir() {
            output.join(name)
        } else {
            output.to_owned()
        };
        let shown = path.display();
        match fs::metadata(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("looking at {shown}")),
            Ok(meta) if meta.is_file() => bail!("{shown} exists: remove it first"),
            // A device or a pipe.
            Ok(_) => {
                let opened = File::options().write(true).open(&path);
                let file = opened.with_context(|| format!("opening {shown}"))?;
                let part = None;
                return Ok(Self { file, path, part });
            }
        }
        let mut hidden = path.clone();
        hidden.set_file_name(format!(".{name}.{}.part", std::process::id()));
        let file = File::create_new(&hidden);
        let file = file.with_context(|| format!("creating {}", hidden.display()))?;
        let part = Some(hidden);
        Ok(Self { file, path, part })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.with_context(|| format!("writing {}", self.path.display()))
    }

    /// The whole file is there, under its name.
    fn finish(mut self) -> Result<PathBuf> {
        if let Some(part) = self.part.take() {
            let moved = self
                .file
                .sync_all()
                .and_then(|()| fs::rename(&part, &self.path));
            if let Err(e) = moved {
                self.part = Some(part);
                return Err(e).with_context(|| format!("finishing {}", self.path.display()));
            }
        }
        Ok(self.path.clone())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // Gone already, or nobody can do anything about it.
            let _ = fs::remove_file(part);
        }
    }
}
