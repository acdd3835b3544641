//! A daemon as a process, and what it tells its service manager.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use xroce_verbs::{Access, ConnectAttr, Context, Cq, Init, Mr, Pd, Qp, Rc, RecvBatch, SendBatch};

pub const LONG: Duration = Duration::from_secs(60);

/// An address of loopback that no other test has: RoCE has one port, and tests run side by side.
pub fn address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    // 127.192.0.0/10; nextest runs each test in a process of its own.
    IpAddr::V4(Ipv4Addr::new(127, 192 + n, high, low.clamp(1, 254)))
}

/// A port that was free a moment ago.
pub fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

pub fn xroced(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xroced"));
    command.env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET");
    command.args(args).output().unwrap()
}

/// A process that is killed when the test ends, however it ends.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon that serves an address of its own.
pub struct Running {
    process: Killed,
    notes: UnixDatagram,
    pub dir: TempDir,
    pub addr: IpAddr,
}

impl Running {
    /// Starts one, and waits until it is ready.
    pub fn start(args: &[&str]) -> Self {
        Self::start_in(TempDir::new().unwrap(), address(), args)
    }

    /// Another, where this one was and with its address.
    pub fn start_again(self, args: &[&str]) -> Self {
        let Self {
            process, dir, addr, ..
        } = self;
        drop(process);
        std::fs::remove_file(dir.path().join("notify")).unwrap();
        Self::start_in(dir, addr, args)
    }

    fn start_in(dir: TempDir, addr: IpAddr, args: &[&str]) -> Self {
        let notes = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        notes.set_read_timeout(Some(LONG)).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_xroced"))
            .args(["--udp", &addr.to_string(), "--socket"])
            .arg(dir.path().join("xroced.sock"))
            .args(args)
            .current_dir(&dir)
            .env_remove("RUST_LOG")
            .env("NOTIFY_SOCKET", dir.path().join("notify"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let process = Killed(child);
        let running = Self {
            process,
            notes,
            dir,
            addr,
        };
        running.wait_for("READY=1");
        running
    }

    /// What it tells the service manager, until one has `words`.
    pub fn wait_for(&self, words: &str) -> String {
        let mut bytes = [0; 4096];
        loop {
            let Ok(len) = self.notes.recv(&mut bytes) else {
                panic!("no {words} from the daemon: {}", self.log());
            };
            let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
            if text.contains(words) {
                return text;
            }
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("xroced.sock")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.process.0);
        kill_process(pid, signal).unwrap();
    }

    /// Its exit status.
    pub fn ended(&mut self) -> Option<i32> {
        self.process.0.wait().unwrap().code()
    }

    pub fn attach(&self) -> Context {
        Context::attach(&self.socket(), None).unwrap()
    }
}

/// A process' side of a connection.
pub struct End {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
}

impl End {
    pub fn of(context: Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        Self {
            cq: context.create_cq(256).unwrap(),
            mr: pd.alloc_mr(1 << 16, Access::LOCAL_WRITE).unwrap(),
            pd,
            context,
        }
    }

    fn qp(&self) -> Qp<Rc, Init> {
        let qp = self.pd.qp::<Rc>(&self.cq, &self.cq).create().unwrap();
        qp.init(Access::LOCAL_WRITE).unwrap()
    }
}

/// Two queue pairs that are connected.
pub fn pair(near: &End, far: &End) -> [Qp<Rc>; 2] {
    let (a, b) = (near.qp(), far.qp());
    let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    let attr = ConnectAttr {
        timeout: 17,
        ..ConnectAttr::default()
    };
    [
        a.connect(&ends[1], &attr).unwrap(),
        b.connect(&ends[0], &attr).unwrap(),
    ]
}

/// So many messages from one to the other.
pub fn send(near: &End, far: &End, [a, b]: &[Qp<Rc>; 2], messages: u32) {
    for n in 0..messages {
        let mut receive = RecvBatch::new();
        receive
            .recv(u64::from(n))
            .sge(far.mr.slice(0..4096).unwrap());
        b.post_recv(&receive).unwrap();
        let mut batch = SendBatch::new();
        batch
            .send(u64::from(n))
            .sge(near.mr.slice(0..1000).unwrap());
        a.post(&batch).unwrap();
        for cq in [&near.cq, &far.cq] {
            let wc = cq.next(LONG).unwrap().expect("a completion");
            assert_eq!(wc.ok().unwrap().wr_id, u64::from(n));
        }
    }
}

/// The body of what a GET is answered with, and its head.
pub fn get(at: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}
