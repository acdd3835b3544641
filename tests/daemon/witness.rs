//! Two processes that behave: messages of known bytes go round between them, and every one is
//! looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use xroce_verbs::{
    Access, Completion, ConnectAttr, Context, Cq, Mr, Pd, Qp, Rc, RecvBatch, SendBatch,
};

use super::{Host, LONG};

pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);
const LEN: usize = 3000;

pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
}

impl End {
    pub(crate) fn new(context: Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        Self {
            cq: context.create_cq(1024).unwrap(),
            mr: pd.alloc_mr(1 << 16, ALL).unwrap(),
            pd,
            context,
        }
    }

    fn done(&self) -> Completion {
        let wc = self.cq.next(LONG).unwrap().expect("a completion");
        *wc.ok().unwrap()
    }
}

pub(crate) fn pair(near: &End, far: &End) -> [Qp<Rc>; 2] {
    let [a, b] = [near, far].map(|end| {
        let qp = end.pd.qp::<Rc>(&end.cq, &end.cq).create().unwrap();
        qp.init(ALL).unwrap()
    });
    let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
    // A loaded machine may answer late: 1 s, doubled.
    let attr = ConnectAttr {
        timeout: 18,
        ..ConnectAttr::default()
    };
    [
        a.connect(&ends[1], &attr).unwrap(),
        b.connect(&ends[0], &attr).unwrap(),
    ]
}

/// Both, and the thread that moves them.
pub(crate) struct Witness {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u64>>,
}

impl Witness {
    pub(crate) fn start(host: &Host) -> Self {
        let ends = [(); 2].map(|()| End::new(host.attach()));
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let thread = std::thread::spawn(move || go_round(&ends, &theirs));
        Self { stop, thread }
    }

    /// Half round trips, ns, sorted. Every byte was right, or this panics.
    pub(crate) fn finish(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = self.thread.join().expect("the witnesses saw nothing wrong");
        times.sort_unstable();
        times
    }
}

fn go_round([near, far]: &[End; 2], stop: &AtomicBool) -> Vec<u64> {
    let [a, b] = pair(near, far);
    let mut times = Vec::new();
    let receive = |end: &End, qp: &Qp<Rc>| {
        let mut batch = RecvBatch::new();
        batch.recv(0).sge(end.mr.slice(0..8192).unwrap());
        qp.post_recv(&batch).unwrap();
    };
    let sends = |end: &End| {
        let mut batch = SendBatch::new();
        batch
            .send(1)
            .sge(end.mr.slice(16_384..16_384 + LEN as u64).unwrap());
        batch
    };
    let (send_a, send_b) = (sends(near), sends(far));
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let bytes = vec![n.to_le_bytes()[0] ^ 0x5a; LEN];
        near.mr.write(16_384, &bytes).unwrap();
        far.mr.write(16_384, &bytes).unwrap();
        receive(near, &a);
        receive(far, &b);
        let began = Instant::now();
        a.post(&send_a).unwrap();
        take(far, 1, &bytes, || b.post(&send_b).unwrap());
        take(near, 2, &bytes, || {});
        times.push(u64::try_from(began.elapsed().as_nanos()).unwrap() / 2);
        // Its own send.
        far.done();
        n += 1;
    }
    assert!(n > 0);
    times
}

/// Takes completions until the receive has come; then `next`.
fn take(end: &End, count: usize, bytes: &[u8], next: impl FnOnce()) {
    for _ in 0..count {
        let wc = end.done();
        if wc.wr_id == 0 {
            let mut seen = vec![0; LEN];
            end.mr.read(0, &mut seen).unwrap();
            assert_eq!(seen, bytes);
        }
    }
    next();
}

/// The half round trip at a share of all, µs.
pub(crate) fn at(times: &[u64], per_cent: usize) -> f64 {
    times[(times.len() - 1) * per_cent / 100] as f64 / 1000.0
}

pub(crate) fn print(what: &str, before: &[u64], during: &[u64]) {
    println!(
        "{what}: half a round trip of the others, µs: p50 {:.1} before, {:.1} during; p99 {:.1} before, \
         {:.1} during ({} and {} rounds)",
        at(before, 50),
        at(during, 50),
        at(before, 99),
        at(during, 99),
        before.len(),
        during.len()
    );
}

/// How it is without anybody else.
pub(crate) fn undisturbed(host: &Host) -> Vec<u64> {
    let witness = Witness::start(host);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let times = witness.finish();
    host.wait_for(0);
    times
}
