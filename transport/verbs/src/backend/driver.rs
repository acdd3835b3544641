//! The thread that polls an engine.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use xroce_api::PollMode;
use xroce_net::datapath::Datapath;
use xroce_proto::time::Duration as Span;

use super::inproc::{InProc, now};

/// Without work for so long, an adaptive thread offers its core to others in every turn.
const SPIN: Span = Span::from_micros(5);
/// Without work for so long, it sleeps; why so late: [`PollMode::Adaptive`] in the engine.
const AWAKE: Span = Span::from_micros(1_000);

/// A running thread.
#[derive(Debug)]
pub(crate) struct Driver {
    handle: JoinHandle<()>,
}

impl Driver {
    pub(crate) fn start<D: Datapath + Send + 'static>(
        engine: Arc<InProc<D>>,
        mode: PollMode,
    ) -> io::Result<Self> {
        let thread = Builder::new().name("xroce-engine".to_owned());
        let handle = thread.spawn(move || run(&engine, mode))?;
        Ok(Self { handle })
    }

    /// Waits for the end of the thread, which has been told.
    pub(crate) fn join(self) {
        // A panic there has been printed, and there is nobody to hand it to.
        let _ = self.handle.join();
    }
}

fn run<D: Datapath>(engine: &InProc<D>, mode: PollMode) {
    let mut last_work = now();
    while !engine.stopped.load(Ordering::Acquire) {
        let time = now();
        // Whoever calls next hears why it ended.
        let Ok(work) = engine.turn(time) else { return };
        if !work.is_idle() {
            last_work = time;
        } else {
            let idle = time.since(last_work);
            match mode {
                PollMode::Adaptive if idle >= AWAKE => {
                    if engine.doze(None, Duration::MAX).is_err() {
                        return;
                    }
                }
                PollMode::Adaptive if idle >= SPIN => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        engine.give_way();
    }
}
