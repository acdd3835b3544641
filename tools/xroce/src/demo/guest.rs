//! A process of the daemon demo: attached to a daemon, it does every operation with its partner, a
//! process of the other daemon, and both compare every byte.
//!
//! Both run the same steps at the same time; a message over TCP marks where one has to wait for the
//! other. The one that connected acts, the other is acted upon.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xroce_verbs::endpoint::{Endpoint, SideChannel};
use xroce_verbs::{
    Access, AhAttr, Completion, ConnectAttr, Context, Cq, GRH_BYTES, Init, Mr, Pd, Placement, QKey,
    Qp, Rc, Ready, RecvBatch, RemoteMr, SendBatch, SrqInfo, Type1, Type2, Uc, Ud, WcOpcode,
    WcStatus,
};

/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// What has not come by then is lost; how often it is sent.
const LOST_AFTER: Duration = Duration::from_secs(1);
const TRIES: u32 = 10;
/// Bytes of registered memory: what is sent in the first half, what comes in the second.
const MEMORY: usize = 4 << 20;
const HALF: u64 = MEMORY as u64 / 2;
/// Message sizes, bytes.
const SIZES: [u64; 6] = [1, 64, 1500, 4096, 100_000, 1 << 20];
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL);
const KEY: QKey = QKey::new(0x0bad_cafe);

/// One process of the daemon demo (it starts them itself)
#[derive(Args, Clone, Debug)]
pub(crate) struct GuestArgs {
    /// Socket of the daemon
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Where the partner listens; without it, this one listens and says on which port
    #[arg(long, value_name = "PORT")]
    pub connect: Option<u16>,
}

/// What a guest found: printed as one line of JSON.
#[derive(Serialize, serde::Deserialize, Default, Debug)]
pub(crate) struct Found {
    /// Operations that completed.
    pub operations: u64,
    /// Bytes compared.
    pub bytes: u64,
}

pub(crate) fn run(args: &GuestArgs, out: &mut dyn std::io::Write) -> Result<()> {
    let stream = match args.connect {
        Some(port) => TcpStream::connect(("127.0.0.1", port)).context("the partner")?,
        None => {
            let listener = TcpListener::bind("127.0.0.1:0").context("listening")?;
            let port = listener.local_addr()?.port();
            writeln!(out, "listening on TCP port {port}")?;
            out.flush()?;
            listener.accept()?.0
        }
    };
    let mut guest = Guest::attach(args, stream)?;
    guest.everything()?;
    writeln!(out, "{}", serde_json::to_string(&guest.found)?)?;
    Ok(())
}

struct Guest {
    acts: bool,
    channel: SideChannel,
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    found: Found,
}

/// Bytes that tell the place and the step.
fn pattern(seed: u64, len: u64) -> Vec<u8> {
    let byte = |n: u64| (n.wrapping_mul(7) + (n >> 8) + seed).to_le_bytes()[0];
    (0..len).map(byte).collect()
}

impl Guest {
    fn attach(args: &GuestArgs, stream: TcpStream) -> Result<Self> {
        let context = Context::attach(&args.socket, None)?;
        let pd = context.alloc_pd()?;
        Ok(Self {
            acts: args.connect.is_some(),
            channel: SideChannel::new(stream, PATIENCE)?,
            cq: context.create_cq(256)?,
            mr: pd.alloc_mr(MEMORY, ALL)?,
            pd,
            context,
            found: Found::default(),
        })
    }

    fn everything(&mut self) -> Result<()> {
        let qp = self.rc()?;
        for (n, size) in (0..).zip(SIZES) {
            self.send(&qp, n, size)?;
            self.write(&qp, n + 100, size)?;
            self.read(&qp, n + 200, size)?;
        }
        self.atomics(&qp)?;
        self.windows(&qp)?;
        drop(qp);
        self.shared_receives()?;
        self.unreliable()?;
        self.datagrams()
    }

    /// Tells the other something, and hears the same of it.
    fn exchange<T: Serialize + DeserializeOwned>(&mut self, ours: &T) -> Result<T> {
        Ok(self.channel.exchange(ours)?)
    }

    /// Both are here.
    fn meet(&mut self, step: &str) -> Result<()> {
        let theirs: String = self.exchange(&step.to_owned())?;
        ensure!(
            theirs == step,
            "this one is at {step:?}, the partner at {theirs:?}"
        );
        Ok(())
    }

    fn done(&mut self) -> Result<Completion> {
        let wc = self.cq.next(PATIENCE)?.context("no completion came")?;
        let wc = *wc.ok()?;
        self.found.operations += 1;
        Ok(wc)
    }

    /// What may be lost on the way is sent until it has come: `send` on the one side, the completion
    /// of a receive on the other.
    fn until_it_comes(
        &mut self,
        step: &str,
        send: impl Fn(&Self) -> Result<()>,
    ) -> Result<Option<Completion>> {
        for _ in 0..TRIES {
            self.meet(step)?;
            let mut came = None;
            if self.acts {
                send(self)?;
                self.done()?;
            } else {
                came = self.cq.next(LOST_AFTER)?;
            }
            let theirs: bool = self.exchange(&came.is_some())?;
            if let Some(wc) = came {
                self.found.operations += 1;
                return Ok(Some(*wc.ok()?));
            }
            if theirs {
                return Ok(None);
            }
        }
        bail!("{step}: {TRIES} times nothing came")
    }

    fn fill(&self, seed: u64, len: u64) -> Result<()> {
        Ok(self.mr.write(0, &pattern(seed, len))?)
    }

    /// What came is what the other sent.
    fn compare(&mut self, at: u64, seed: u64, len: u64) -> Result<()> {
        let mut seen = vec![0; usize::try_from(len)?];
        self.mr.read(at, &mut seen)?;
        if let Some(at) = seen
            .iter()
            .zip(pattern(seed, len))
            .position(|(a, b)| *a != b)
        {
            bail!("byte {at} of {len} is not what was sent");
        }
        self.found.bytes += len;
        Ok(())
    }

    fn receive(&self, wr_id: u64, len: u64) -> Result<RecvBatch> {
        let mut batch = RecvBatch::new();
        batch.recv(wr_id).sge(self.mr.slice(HALF..HALF + len)?);
        Ok(batch)
    }

    fn rc(&mut self) -> Result<Qp<Rc>> {
        let qp = self.pd.qp::<Rc>(&self.cq, &self.cq).create()?.init(ALL)?;
        let ours = qp.endpoint()?.with_memory(self.mr.remote());
        let theirs: Endpoint = self.exchange(&ours)?;
        let qp = qp.connect(&theirs, &ConnectAttr::default())?;
        self.meet("connected")?;
        Ok(qp)
    }

    fn remote(&mut self) -> Result<RemoteMr> {
        let ours = self.mr.remote().context("no remote rights")?;
        self.exchange(&ours)
    }

    fn send(&mut self, qp: &Qp<Rc>, seed: u64, size: u64) -> Result<()> {
        if self.acts {
            self.fill(seed, size)?;
            self.meet("send")?;
            let mut batch = SendBatch::new();
            let imm = u32::try_from(seed)?.to_be_bytes();
            batch.send_imm(seed, imm).sge(self.mr.slice(0..size)?);
            qp.post(&batch)?;
            self.done()?;
        } else {
            qp.post_recv(&self.receive(seed, size)?)?;
            self.meet("send")?;
            let wc = self.done()?;
            ensure!(u64::from(wc.byte_len) == size && wc.wr_id == seed, "{wc:?}");
            self.compare(HALF, seed, size)?;
        }
        self.meet("sent")
    }

    fn write(&mut self, qp: &Qp<Rc>, seed: u64, size: u64) -> Result<()> {
        let there = self.remote()?;
        if self.acts {
            self.fill(seed, size)?;
            self.meet("write")?;
            let mut batch = SendBatch::new();
            let to = there.slice(HALF..HALF + size)?;
            // In two parts, the second of which says that all is there.
            let half = size / 2;
            batch
                .write(1, to.slice(..half)?)
                .sge(self.mr.slice(0..half)?)
                .unsignaled();
            let rest = self.mr.slice(half..size)?;
            batch
                .write_imm(2, to.slice(half..)?, [1, 2, 3, 4])
                .sge(rest);
            qp.post(&batch)?;
            self.done()?;
        } else {
            let mut batch = RecvBatch::new();
            batch.recv(seed);
            qp.post_recv(&batch)?;
            self.meet("write")?;
            let wc = self.done()?;
            ensure!(
                wc.opcode == WcOpcode::RecvRdmaWithImm && wc.imm == [1, 2, 3, 4],
                "{wc:?}"
            );
            self.compare(HALF, seed, size)?;
        }
        self.meet("written")
    }

    fn read(&mut self, qp: &Qp<Rc>, seed: u64, size: u64) -> Result<()> {
        let there = self.remote()?;
        if self.acts {
            self.meet("read")?;
            let mut batch = SendBatch::new();
            let from = there.slice(0..size)?;
            batch
                .read(seed, from)
                .sge(self.mr.slice(HALF..HALF + size)?);
            qp.post(&batch)?;
            self.done()?;
            self.compare(HALF, seed, size)?;
        } else {
            self.fill(seed, size)?;
            self.meet("read")?;
        }
        self.meet("read it")
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.mr.read(at, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn atomics(&mut self, qp: &Qp<Rc>) -> Result<()> {
        let there = self.remote()?;
        if self.acts {
            self.mr.write(64, &77u64.to_ne_bytes())?;
            self.meet("atomics")?;
            let mut batch = SendBatch::new();
            batch.fetch_add(1, there.word(0)?, 3, self.mr.word(0)?);
            let old = self.mr.word(8)?;
            batch.compare_swap(2, there.word(0)?, 8, 21, old);
            batch.atomic_write(3, there.word(16)?, self.mr.word(64)?);
            batch.flush(4, there.slice(0..24)?, Placement::GLOBAL);
            qp.post(&batch)?;
            for _ in 0..4 {
                self.done()?;
            }
            let seen = (self.word(0)?, self.word(8)?);
            ensure!(seen == (5, 8), "atomics returned {seen:?}");
        } else {
            self.mr.write(0, &5u64.to_ne_bytes())?;
            self.meet("atomics")?;
        }
        self.meet("done")?;
        if !self.acts {
            let seen = (self.word(0)?, self.word(16)?);
            ensure!(seen == (21, 77), "atomics left {seen:?}");
        }
        self.meet("looked at")
    }

    /// Windows of both types; the key of one is taken back, and worth nothing afterwards.
    fn windows(&mut self, qp: &Qp<Rc>) -> Result<()> {
        if self.acts {
            self.fill(9, 64)?;
            let windows: [RemoteMr; 2] = self.channel.recv()?;
            let mut batch = SendBatch::new();
            for (n, window) in (1..).zip(windows) {
                batch.write(n, window).sge(self.mr.slice(0..64)?);
            }
            let [_, second] = windows;
            batch.send_inv(3, second.rkey()).inline(b"yours again");
            qp.post(&batch)?;
            for _ in 0..3 {
                self.done()?;
            }
            self.meet("windows")?;
            batch.clear();
            batch.write(4, second).inline(b"too late");
            qp.post(&batch)?;
            let wc = self.cq.next(PATIENCE)?.context("no completion came")?;
            ensure!(
                wc.status == WcStatus::RemAccessErr,
                "a key that was taken back: {wc:?}"
            );
        } else {
            let rights = Access::REMOTE_WRITE;
            let mut first = self.pd.alloc_mw::<Type1>()?;
            let one = first.bind(self.mr.slice(HALF..HALF + 64)?, rights)?;
            let second = self.pd.alloc_mw::<Type2>()?;
            let part = self.mr.slice(HALF + 64..HALF + 128)?;
            let mut batch = SendBatch::new();
            batch.bind(1, &second, 7, part, rights);
            qp.post(&batch)?;
            let two = second.remote(7, part, rights);
            self.done()?;
            let mut receive = RecvBatch::new();
            receive.recv(2).sge(self.mr.slice(0..64)?);
            qp.post_recv(&receive)?;
            self.channel.send(&[one, two])?;
            let wc = self.done()?;
            ensure!(wc.invalidated() == Some(second.key(7)), "{wc:?}");
            self.meet("windows")?;
            self.compare(HALF, 9, 64)?;
            self.compare(HALF + 64, 9, 64)?;
        }
        self.meet("taken back")
    }

    /// Two queue pairs of one side take their receives from one queue.
    fn shared_receives(&mut self) -> Result<()> {
        let srq = self.pd.create_srq(&SrqInfo::default())?;
        let mut qps: Vec<Qp<Rc, Ready>> = Vec::new();
        for _ in 0..2 {
            let qp = self.pd.qp::<Rc>(&self.cq, &self.cq);
            let qp = if self.acts { qp } else { qp.srq(&srq) };
            let qp: Qp<Rc, Init> = qp.create()?.init(ALL)?;
            let theirs: Endpoint = self.exchange(&qp.endpoint()?)?;
            qps.push(qp.connect(&theirs, &ConnectAttr::default())?);
        }
        if !self.acts {
            let mut receives = RecvBatch::new();
            for n in 0..4u64 {
                let at = HALF + n * 100;
                receives.recv(n).sge(self.mr.slice(at..at + 100)?);
            }
            srq.post(&receives)?;
        }
        self.meet("shared receives")?;
        for n in 0..4u64 {
            if self.acts {
                self.fill(n, 100)?;
                let mut batch = SendBatch::new();
                batch.send(n).sge(self.mr.slice(0..100)?);
                let qp = qps
                    .get(usize::from(n % 2 == 1))
                    .context("two queue pairs")?;
                qp.post(&batch)?;
                self.done()?;
            } else {
                let wc = self.done()?;
                ensure!(wc.wr_id == n, "{wc:?}");
                self.compare(HALF + n * 100, n, 100)?;
            }
            self.meet("one by one")?;
        }
        Ok(())
    }

    fn unreliable(&mut self) -> Result<()> {
        let qp = self.pd.qp::<Uc>(&self.cq, &self.cq).create()?.init(ALL)?;
        let theirs: Endpoint = self.exchange(&qp.endpoint()?.with_memory(self.mr.remote()))?;
        let qp = qp.connect(&theirs, &ConnectAttr::default())?;
        let there = theirs.memory.context("no memory of the partner")?;
        if self.acts {
            self.fill(3, 3000)?;
        } else {
            let mut receive = RecvBatch::new();
            receive.recv(1);
            qp.post_recv(&receive)?;
        }
        // Whole or not at all, and the receive says that it is there.
        let came = self.until_it_comes("UC", |guest| {
            let mut batch = SendBatch::new();
            let to = there.slice(HALF..)?;
            batch.write_imm(1, to, [5; 4]).sge(guest.mr.slice(0..3000)?);
            Ok(qp.post(&batch)?)
        })?;
        if let Some(wc) = came {
            ensure!(wc.opcode == WcOpcode::RecvRdmaWithImm, "{wc:?}");
            self.compare(HALF, 3, 3000)?;
        }
        self.meet("UC done")
    }

    fn datagrams(&mut self) -> Result<()> {
        let qp = self.pd.qp::<Ud>(&self.cq, &self.cq).create()?;
        let qp = qp.init(KEY)?;
        let theirs: Endpoint = self.exchange(&qp.endpoint()?.with_qkey(KEY))?;
        let qp = qp.activate()?;
        if self.acts {
            self.fill(4, 900)?;
        } else {
            let mut receive = RecvBatch::new();
            let grh = u64::from(GRH_BYTES);
            let slice = self.mr.slice(HALF - grh..HALF + 2000)?;
            receive.recv(1).sge(slice);
            qp.post_recv(&receive)?;
        }
        let ah = self.pd.create_ah(&AhAttr::to(theirs.gid))?;
        let came = self.until_it_comes("UD", |guest| {
            let mut batch = SendBatch::new();
            let to = ah.to(theirs.qpn, KEY);
            batch.send_to(1, to).sge(guest.mr.slice(0..900)?);
            Ok(qp.post(&batch)?)
        })?;
        if let Some(wc) = came {
            ensure!(wc.src_qp == theirs.qpn, "a datagram of somebody else");
            self.compare(HALF, 4, 900)?;
        }
        self.meet("UD done")?;
        let (stats, _) = self.context.stats();
        ensure!(
            stats.icrc_errors == 0,
            "{} packets with a wrong ICRC",
            stats.icrc_errors
        );
        Ok(())
    }
}
