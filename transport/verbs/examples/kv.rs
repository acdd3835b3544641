//! A key-value store in the memory of a server that does nothing: clients get by READ and put by
//! compare-and-swap and WRITE.
//!
//! ```text
//! kv server
//! kv client SERVER put KEY VALUE
//! kv client SERVER get KEY
//! kv client SERVER bench --threads 4 --ops 1000
//! ```
//!
//! The table is an array of slots: a version, lengths, a key, a value. The version is odd while
//! somebody writes. A reader READs the slot and then its version again, in order on one queue
//! pair: if the two are even and the same, nothing changed in between. A writer makes the version
//! odd by compare-and-swap, from the one it has read the slot under: if that succeeds, the slot is
//! as it was read, and the writer's alone. It WRITEs key and value and then the next even version.
//! A client that dies in between leaves its slot locked; the others say so.
#![allow(clippy::print_stdout, reason = "a program")]

mod common;

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::TcpListener;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use common::{DeviceArgs, Opened, PATIENCE, PORT};
use serde::{Deserialize, Serialize};
use xroce_verbs::endpoint::SideChannel;
use xroce_verbs::{Access, Cq, Endpoint, Mr, Pd, Qp, Rc, RemoteMr, SendBatch, clock};

/// Bytes of a slot: version 8, length of key 2 and value 2, 4 spare, key, value.
const SLOT: u64 = SLOT_BYTES as u64;
const SLOT_BYTES: usize = 256;
const HEAD: usize = 16;
const KEY_MAX: usize = 48;
const VALUE_MAX: usize = SLOT_BYTES - HEAD - KEY_MAX;
/// Slots looked at for a key, from the one its hash says.
const PROBES: u64 = 16;
/// Times a slot is tried that somebody else writes.
const TRIES: u32 = 100_000;

/// Where what a client reads or writes begins in its own region.
const READ_AT: u64 = 0;
const AGAIN_AT: u64 = SLOT;
const OLD_AT: u64 = SLOT + 8;
const WRITE_AT: u64 = 2 * SLOT;
const REGION: usize = 3 * SLOT_BYTES;

/// Key-value store by RDMA READ, compare-and-swap and WRITE.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Lends the memory
    Server {
        /// Slots of the table
        #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 22))]
        slots: u64,
        /// Where to listen for clients (TCP)
        #[arg(long, value_name = "IP:PORT", default_value_t = format!("0.0.0.0:{PORT}"))]
        listen: String,
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Uses it
    Client(ClientArgs),
}

#[derive(Args)]
struct ClientArgs {
    /// HOST or HOST:PORT of the server
    server: String,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Stores a value
    Put {
        /// Up to 48 bytes
        key: String,
        /// Up to 192 bytes
        value: String,
    },
    /// Prints a value; fails if there is none
    Get {
        /// Up to 48 bytes
        key: String,
    },
    /// Several clients put, get and count at once; every value is checked
    Bench {
        /// Clients, each with a queue pair
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
        threads: u32,
        /// Operations of each
        #[arg(long, default_value_t = 1000)]
        ops: u32,
    },
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
            slots,
            listen,
            device,
        } => Server::run(slots, &listen, &device),
        Side::Client(args) => client(&args),
    }
}

/// What the server tells a client.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Welcome {
    /// With the table as memory.
    endpoint: Endpoint,
    slots: u64,
}

// The server.

struct Server {
    opened: Opened,
    pd: Pd,
    cq: Cq,
    table: Mr,
    slots: u64,
}

impl Server {
    fn run(slots: u64, listen: &str, device: &DeviceArgs) -> Result<()> {
        let listener = common::listen(listen)?;
        let mut first = common::accept(&listener)?;
        let opened = device.open(common::near(&first)?)?;
        let pd = opened.context.alloc_pd()?;
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC;
        let server = Self {
            cq: opened.context.create_cq(64)?,
            table: pd.alloc_mr(usize::try_from(slots * SLOT)?, rights)?,
            pd,
            opened,
            slots,
        };
        let server = &server;
        std::thread::scope(|scope| {
            scope.spawn(move || server.attend(&mut first));
            server.accept_all(&listener, |mut channel| {
                scope.spawn(move || server.attend(&mut channel));
            })
        })
    }

    fn accept_all(&self, listener: &TcpListener, mut each: impl FnMut(SideChannel)) -> Result<()> {
        loop {
            each(common::accept(listener)?);
        }
    }

    /// Keeps a queue pair for a client until the client is gone.
    fn attend(&self, channel: &mut SideChannel) {
        let attended = self.lend(channel);
        match attended {
            Ok(()) => println!("a client left"),
            Err(error) => eprintln!("client: {error:#}"),
        }
    }

    fn lend(&self, channel: &mut SideChannel) -> Result<()> {
        let peer: Endpoint = channel.recv()?;
        let qp = self.pd.qp::<Rc>(&self.cq, &self.cq).create()?;
        let qp = qp.init(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
        let endpoint = self.opened.endpoint(&qp)?.with_memory(self.table.remote());
        let _qp = self.opened.connect(qp, &peer)?;
        channel.send(&Welcome {
            endpoint,
            slots: self.slots,
        })?;
        channel.stream().set_read_timeout(None)?;
        // Nothing more comes: the end of the stream is the end of the client.
        match channel.recv::<()>() {
            Ok(()) => bail!("the client talks out of turn"),
            Err(_) => Ok(()),
        }
    }
}

// The client.

/// A connection to a table.
struct Store {
    qp: Qp<Rc>,
    cq: Cq,
    mr: Mr,
    table: RemoteMr,
    slots: u64,
    /// Keeps the server's queue pair.
    _channel: SideChannel,
}

/// A slot as it was read.
#[derive(Clone, Copy)]
struct Slot {
    version: u64,
    bytes: [u8; SLOT_BYTES],
}

impl Slot {
    fn field(&self, at: usize) -> usize {
        let bytes = self.bytes.get(at..at + 2).and_then(|b| b.try_into().ok());
        bytes.map_or(0, |b| u16::from_le_bytes(b).into())
    }

    fn key(&self) -> &[u8] {
        let len = self.field(8).min(KEY_MAX);
        self.bytes.get(HEAD..HEAD + len).unwrap_or_default()
    }

    fn value(&self) -> &[u8] {
        let start = HEAD + KEY_MAX;
        let len = self.field(10).min(VALUE_MAX);
        self.bytes.get(start..start + len).unwrap_or_default()
    }
}

/// Key and value as a slot holds them, without the version.
fn body(key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
    let len = |bytes: &[u8], max: usize, what: &str| {
        let len = bytes.len();
        ensure!(len <= max, "a {what} of {len} bytes, at most {max}");
        Ok(u16::try_from(len)?.to_le_bytes())
    };
    ensure!(!key.is_empty(), "a key of no bytes");
    let mut body = len(key, KEY_MAX, "key")?.to_vec();
    body.extend(len(value, VALUE_MAX, "value")?);
    body.extend([0; 4]);
    body.extend(key);
    body.resize(HEAD - 8 + KEY_MAX, 0);
    body.extend(value);
    body.resize(SLOT_BYTES - 8, 0);
    Ok(body)
}

impl Store {
    fn connect(opened: &Opened, server: &str) -> Result<Self> {
        let channel = common::dial(server)?;
        Self::over(opened, channel)
    }

    fn over(opened: &Opened, mut channel: SideChannel) -> Result<Self> {
        let pd = opened.context.alloc_pd()?;
        let cq = opened.context.create_cq(16)?;
        let qp = pd.qp::<Rc>(&cq, &cq).max_send_wr(8).create()?;
        let qp = qp.init(Access::empty())?;
        let welcome: Welcome = channel.exchange(&opened.endpoint(&qp)?)?;
        let table = welcome
            .endpoint
            .memory
            .context("the server lends nothing")?;
        ensure!(
            welcome.slots != 0 && welcome.slots.checked_mul(SLOT) == Some(table.len()),
            "the server has {} slots in {} bytes",
            welcome.slots,
            table.len()
        );
        Ok(Self {
            qp: opened.connect(qp, &welcome.endpoint)?,
            cq,
            mr: pd.alloc_mr(REGION, Access::LOCAL_WRITE)?,
            table,
            slots: welcome.slots,
            _channel: channel,
        })
    }

    /// Posts a batch of which only the last request is signaled, and waits for that.
    fn run(&self, batch: &SendBatch<Rc>) -> Result<()> {
        self.qp.post(batch)?;
        let wc = self.cq.next(PATIENCE)?;
        let wc = wc.with_context(|| format!("no answer for {} s", PATIENCE.as_secs()))?;
        match (wc.ok(), self.qp.failure()) {
            (Ok(_), _) => Ok(()),
            (Err(error), Some(failure)) => bail!("{error}; {failure}"),
            (Err(error), None) => bail!("{error}"),
        }
    }

    fn word_at(&self, offset: u64) -> Result<u64> {
        let mut word = [0; 8];
        self.mr.read(offset, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn slot(&self, n: u64) -> Result<RemoteMr> {
        Ok(self.table.slice(n * SLOT..(n + 1) * SLOT)?)
    }

    /// A slot at rest.
    fn read(&self, n: u64) -> Result<Slot> {
        let there = self.slot(n)?;
        let mut batch = SendBatch::new();
        let whole = self.mr.slice(READ_AT..READ_AT + SLOT)?;
        batch.read(1, there).sge(whole).unsignaled();
        let again = self.mr.slice(AGAIN_AT..AGAIN_AT + 8)?;
        batch.read(2, there.slice(..8)?).sge(again);
        for _ in 0..TRIES {
            self.run(&batch)?;
            let (first, second) = (self.word_at(READ_AT)?, self.word_at(AGAIN_AT)?);
            if first == second && first.is_multiple_of(2) {
                let mut bytes = [0; SLOT_BYTES];
                self.mr.read(READ_AT, &mut bytes)?;
                let version = first;
                return Ok(Slot { version, bytes });
            }
            std::thread::yield_now();
        }
        bail!("slot {n} stays locked: a client died while it wrote")
    }

    /// Where a key may be, first where its hash says.
    fn places(&self, key: &[u8]) -> impl Iterator<Item = u64> + use<> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let (first, slots) = (hasher.finish(), self.slots);
        (0..PROBES.min(slots)).map(move |n| (first.wrapping_add(n)) % slots)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        for n in self.places(key) {
            let slot = self.read(n)?;
            if slot.key() == key {
                return Ok(Some(slot.value().to_vec()));
            }
            if slot.key().is_empty() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Replaces a value by what `change` makes of it, whoever else does so at the same time.
    fn update(&self, key: &[u8], change: impl Fn(Option<&[u8]>) -> Vec<u8>) -> Result<()> {
        for _ in 0..TRIES {
            let mut found = None;
            for n in self.places(key) {
                let slot = self.read(n)?;
                if slot.key() == key || slot.key().is_empty() {
                    found = Some((n, slot));
                    break;
                }
            }
            let (n, slot) = found.context("the table is full around this key")?;
            let old = (!slot.key().is_empty()).then(|| slot.value());
            let body = body(key, &change(old))?;
            if self.lock(n, slot.version)? {
                return self.store(n, slot.version, &body);
            }
            std::thread::yield_now();
        }
        bail!("others were faster {TRIES} times")
    }

    /// Whether the slot had this version, and is locked now.
    fn lock(&self, n: u64, version: u64) -> Result<bool> {
        let mut batch = SendBatch::new();
        let word = self.slot(n)?.word(0)?;
        let old = self.mr.word(OLD_AT)?;
        batch.compare_swap(1, word, version, version + 1, old);
        self.run(&batch)?;
        Ok(self.word_at(OLD_AT)? == version)
    }

    /// Writes a slot that is locked, and unlocks it.
    fn store(&self, n: u64, version: u64, body: &[u8]) -> Result<()> {
        let there = self.slot(n)?;
        self.mr.write(WRITE_AT, &(version + 2).to_ne_bytes())?;
        self.mr.write(WRITE_AT + 8, body)?;
        let mut batch = SendBatch::new();
        let from = self.mr.slice(WRITE_AT + 8..WRITE_AT + SLOT)?;
        batch.write(1, there.slice(8..)?).sge(from).unsignaled();
        batch.atomic_write(2, there.word(0)?, self.mr.word(WRITE_AT)?);
        self.run(&batch)
    }
}

fn client(args: &ClientArgs) -> Result<()> {
    let channel = common::dial(&args.server)?;
    let opened = args.device.open(common::near(&channel)?)?;
    let store = Store::over(&opened, channel)?;
    match &args.command {
        Command::Put { key, value } => {
            store.update(key.as_bytes(), |_| value.as_bytes().to_vec())?;
            println!("stored");
        }
        Command::Get { key } => {
            let value = store.get(key.as_bytes())?;
            let value = value.with_context(|| format!("there is no {key:?}"))?;
            println!("{}", String::from_utf8_lossy(&value));
        }
        Command::Bench { threads, ops } => bench(&opened, &args.server, &store, *threads, *ops)?,
    }
    Ok(())
}

/// Keys the clients of a bench share.
const KEYS: u32 = 8;

/// A value that says what it is in every byte.
fn telling(thread: u32, n: u32) -> Vec<u8> {
    let [low, ..] = (n ^ thread << 5).to_le_bytes();
    let mut value = vec![low; 8 + (n % 180) as usize];
    value.splice(..8, thread.to_le_bytes().into_iter().chain(n.to_le_bytes()));
    value
}

fn is_telling(value: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = value.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map(u32::from_le_bytes)
    };
    word(0)
        .zip(word(4))
        .is_some_and(|(thread, n)| telling(thread, n) == value)
}

fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

fn bench(opened: &Opened, server: &str, store: &Store, threads: u32, ops: u32) -> Result<()> {
    // Of its own, so that several benches may run at once; the other keys they share.
    let counter = format!("counter {}", std::process::id());
    let before = store.get(counter.as_bytes())?;
    let before = before.map_or(0, |value| number(&value));
    let start = clock::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..threads)
            .map(|thread| {
                let counter = &counter;
                scope.spawn(move || one_client(opened, server, counter, thread, ops))
            })
            .collect();
        clients
            .into_iter()
            .try_for_each(|client| match client.join() {
                Ok(result) => result,
                Err(_) => bail!("a client panicked"),
            })
    })?;
    let took = clock::now().since(start).as_nanos().max(1);
    let counted = store.get(counter.as_bytes())?;
    let counted = counted.map_or(0, |value| number(&value)) - before;
    let expected = u64::from(threads) * u64::from(ops.div_ceil(4));
    let all = u64::from(threads) * u64::from(ops);
    println!(
        "{all} operations of {threads} clients, {} per s",
        all * 1_000_000_000 / took
    );
    println!("counter {counted}, expected {expected}; every value read was whole");
    ensure!(counted == expected, "additions were lost");
    Ok(())
}

/// Puts, gets and counts, in turn.
fn one_client(opened: &Opened, server: &str, counter: &str, thread: u32, ops: u32) -> Result<()> {
    let store = Store::connect(opened, server)?;
    for n in 0..ops {
        let key = format!("key {}", (n / 4 + thread) % KEYS);
        if n % 4 == 0 {
            store.update(counter.as_bytes(), |old| {
                (old.map_or(0, number) + 1).to_le_bytes().to_vec()
            })?;
        } else if n % 4 == 1 {
            store.update(key.as_bytes(), |_| telling(thread, n))?;
        } else if let Some(value) = store.get(key.as_bytes())? {
            ensure!(is_telling(&value), "{key} holds half a value: {value:?}");
        }
    }
    Ok(())
}
