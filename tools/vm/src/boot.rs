//! A running machine.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::accel::{Accel, Memory};
use crate::agent::Agent;
use crate::command::{last_lines, now};
use crate::qemu::{Net, VmConfig};

/// From the start to the agent's hello. Emulation takes 5 s on an idle machine, 30 s on a loaded
/// one.
const BOOT: Duration = Duration::from_secs(120);
/// The same for the trial of KVM, which takes 2 s where it works.
const TRIAL: Duration = Duration::from_secs(10);
/// How often a machine that boots is looked at.
const STEP: Duration = Duration::from_millis(20);

/// A machine with rdma_rxe on its eth0. It ends when this is dropped, and also when the program
/// that holds it dies: the agent then switches the machine off.
#[derive(Debug)]
pub struct Vm {
    machine: Machine,
    agent: Agent,
    accel: Accel,
    release: String,
    took: Duration,
}

impl Vm {
    /// Starts it and waits for the agent's hello, 120 s at most.
    pub fn boot(config: &VmConfig) -> Result<Self> {
        config.check()?;
        let whole = config.dir.as_path();
        fs::create_dir_all(whole).with_context(|| format!("cannot make {}", whole.display()))?;
        match config.accel {
            Accel::Auto => Self::boot_auto(config),
            accel => Self::start(config, accel, BOOT),
        }
    }

    fn boot_auto(config: &VmConfig) -> Result<Self> {
        let memory = Memory::of(config)?;
        let known = memory.recall();
        let device = fs::File::options().read(true).write(true).open("/dev/kvm");
        if device.is_ok() && known != Some(Accel::Tcg) {
            let limit = if known.is_some() { BOOT } else { TRIAL };
            if let Ok(vm) = Self::start(config, Accel::Kvm, limit) {
                memory.keep(Accel::Kvm);
                return Ok(vm);
            }
        }
        let vm = Self::start(config, Accel::Tcg, BOOT)?;
        // Only now: an image that comes up with neither says nothing about KVM.
        if device.is_ok() {
            memory.keep(Accel::Tcg);
        }
        Ok(vm)
    }

    fn start(config: &VmConfig, accel: Accel, limit: Duration) -> Result<Self> {
        let start = now();
        let socket = config.agent_socket();
        let mut sockets = vec![socket.clone()];
        if let Net::Dgram { local, .. } = &config.net {
            sockets.push(local.clone());
        }
        for path in sockets.iter().chain([&config.console_log()]) {
            remove(path)?;
        }
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot make {}", socket.display()))?;
        listener.set_nonblocking(true)?;
        let child = config
            .command(accel)?
            .spawn()
            .context("cannot start QEMU")?;
        let mut machine = Machine {
            child,
            sockets,
            console: config.console_log(),
            log: config.qemu_log(),
        };
        let deadline = start + limit;
        match machine.greet(&listener, deadline) {
            Ok((agent, release)) => Ok(Self {
                machine,
                agent,
                accel,
                release,
                took: now() - start,
            }),
            Err(error) => {
                let what = format!("{} does not come up ({accel:?}): {error:#}", config.name);
                Err(anyhow!("{what}{}", machine.last_words()))
            }
        }
    }

    /// What to ask things of.
    pub fn agent(&mut self) -> &mut Agent {
        &mut self.agent
    }

    /// How it runs: not `Auto`.
    pub fn accel(&self) -> Accel {
        self.accel
    }

    /// The kernel's release as the guest itself says it.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// From the start to the agent's hello.
    pub fn boot_time(&self) -> Duration {
        self.took
    }

    /// Stops all of it where it is: it neither sends nor receives, as a peer that hangs. Frames
    /// wait in the host's queues until they are full; the guest's clock goes on.
    pub fn pause(&self) -> Result<()> {
        self.machine.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<()> {
        self.machine.signal(Signal::CONT)
    }

    /// What it wrote to its console so far.
    pub fn console(&self) -> String {
        text(&self.machine.console)
    }

    /// Ends it at once, as pulling the plug does.
    pub fn kill(self) {
        drop(self);
    }
}

/// The process, killed and reaped when dropped.
#[derive(Debug)]
struct Machine {
    child: Child,
    sockets: Vec<PathBuf>,
    console: PathBuf,
    log: PathBuf,
}

impl Machine {
    /// Waits for the agent's connection and its first line, which tells the kernel's release.
    fn greet(&mut self, listener: &UnixListener, deadline: Instant) -> Result<(Agent, String)> {
        let mut agent = loop {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false)?;
                break Agent::connect(stream);
            }
            self.still_runs(deadline)?;
            std::thread::sleep(STEP);
        };
        loop {
            match agent.hello(STEP) {
                Ok(Some(hello)) => return Ok((agent, hello.text("kernel")?.to_owned())),
                Ok(None) => self.still_runs(deadline)?,
                Err(error) => {
                    // Its end is seen here first, and the reason a moment later.
                    std::thread::sleep(STEP);
                    return Err(self.still_runs(deadline).err().unwrap_or(error));
                }
            }
        }
    }

    fn still_runs(&mut self, deadline: Instant) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("QEMU ended ({status})");
        }
        if now() >= deadline {
            bail!("no word of the agent in time");
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let mut words = String::new();
        for path in [&self.log, &self.console] {
            let text = text(path);
            if !text.trim().is_empty() {
                let name = path.file_name().unwrap_or_default().display().to_string();
                words.push_str(&format!("\n{name}:\n{}", last_lines(&text, 20)));
            }
        }
        words
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("cannot signal QEMU")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Best effort: it may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for path in &self.sockets {
            let _ = fs::remove_file(path);
        }
    }
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
