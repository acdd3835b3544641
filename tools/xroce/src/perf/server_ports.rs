//! The ports of a server, each with an engine and a thread of its own, and who is sent to which.
//!
//! A client with several ports makes a conversation for each; all say how many there are, and that
//! they belong together. The server waits until it has heard all of them, then hands each to the
//! port with the same number.

use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result, anyhow, bail};
use xroce_engine::clock;

use crate::perf::args::{Poll, PortArgs};
use crate::perf::device::{self, Device, User};
use crate::perf::server::{Introduced, converse_with};
use crate::stop;

/// Between two looks at the stop flag.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// What a port tells.
enum Event {
    /// It is open and has this name.
    Ready(usize, String),
    /// It has finished a conversation, or could not be opened.
    Done(usize, Result<()>),
}

/// The ports of a server.
pub(crate) struct ServerPorts {
    jobs: Vec<Sender<Introduced>>,
    events: Receiver<Event>,
    /// Names of the ports.
    pub names: Vec<String>,
}

impl ServerPorts {
    /// Opens the ports, then does what `work` says with them.
    ///
    /// # Errors
    /// A port cannot be opened, or what `work` returns.
    pub(crate) fn open(
        ports: &[PortArgs],
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        std::thread::scope(|scope| {
            let (tell, events) = channel();
            let mut jobs = Vec::with_capacity(ports.len());
            for (n, port) in ports.iter().enumerate() {
                let (give, take) = channel();
                jobs.push(give);
                let tell = tell.clone();
                scope.spawn(move || {
                    let visitor = PortServer {
                        n,
                        poll: port.poll,
                        jobs: take,
                        tell: tell.clone(),
                    };
                    if let Err(e) = device::open(port, None, visitor) {
                        // Whoever waits for it hears it; if nobody does, all is over anyway.
                        let _ = tell.send(Event::Done(n, Err(e)));
                    }
                });
            }
            drop(tell);
            let mut ports = Self {
                jobs,
                events,
                names: vec![String::new(); ports.len()],
            };
            // Dropping the ports ends the threads.
            ports.await_ports().and_then(|()| work(&mut ports))
        })
    }

    fn await_ports(&mut self) -> Result<()> {
        for _ in 0..self.names.len() {
            match self.event()? {
                Event::Ready(n, name) => {
                    if let Some(place) = self.names.get_mut(n) {
                        *place = name;
                    }
                }
                Event::Done(_, Err(e)) => return Err(e),
                Event::Done(n, Ok(())) => bail!("port {n} ended by itself"),
            }
        }
        Ok(())
    }

    fn event(&self) -> Result<Event> {
        loop {
            stop::check()?;
            match self.events.recv_timeout(LOOK) {
                Ok(event) => return Ok(event),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Err(e) => bail!("the ports have gone: {e}"),
            }
        }
    }

    /// Has each conversation served by the port with its number, and waits for the end of all.
    ///
    /// # Errors
    /// What went wrong first.
    pub(crate) fn serve(&self, conversations: Vec<Introduced>) -> Result<()> {
        let several = conversations.len() > 1;
        let mut running: usize = 0;
        for (job, port) in conversations.into_iter().zip(&self.jobs) {
            port.send(job).map_err(|_| anyhow!("a port has gone"))?;
            running += 1;
        }
        let mut first = Ok(());
        while running > 0 {
            if let Event::Done(n, result) = self.event()? {
                running -= 1;
                let result = if several {
                    result.with_context(|| format!("port {n}"))
                } else {
                    result
                };
                first = first.and(result);
            }
        }
        first
    }
}

/// What the thread of a port does.
struct PortServer {
    n: usize,
    poll: Poll,
    jobs: Receiver<Introduced>,
    tell: Sender<Event>,
}

impl User for PortServer {
    fn run<D: Device>(self, mut device: D) -> Result<()> {
        let name = format!("{} as {}", device.port_name(), device.local());
        let gone = |_| anyhow!("the server has gone");
        self.tell.send(Event::Ready(self.n, name)).map_err(gone)?;
        // Until the server has no more for it.
        for (mut channel, greeting) in &self.jobs {
            let result = converse_with(greeting, self.poll, &mut device, &mut channel);
            if let Err(e) = &result {
                channel.abort(&format!("{e:#}"), clock::now());
            }
            self.tell.send(Event::Done(self.n, result)).map_err(gone)?;
        }
        Ok(())
    }
}
