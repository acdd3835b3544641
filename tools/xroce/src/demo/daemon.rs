//! Two daemons, each with processes of its own, which do every operation with those of the other.
//!
//! The processes are in neither namespace and have no privileges they need: all they have of the
//! network is the socket of their daemon.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use xroce_engine::clock;

use super::child::{Child, Line};
use super::guest::Found;
use super::stage::Stage;
use super::{PATIENCE, note, server_port};
use crate::stop;

/// Between two looks whether a daemon listens.
const LOOK: Duration = Duration::from_millis(10);
/// Processes of each daemon.
const GUESTS: usize = 3;

/// Runs it all, and says what was found.
pub(super) fn run(stage: &Stage, json: bool, out: &mut dyn Write) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("xroce-demo-").tempdir()?;
    let sockets = ["a", "b"].map(|name| dir.path().join(format!("{name}.sock")));
    let [first, second] = stage.daemons(&sockets)?;
    let _daemons = [start(first, &sockets[0])?, start(second, &sockets[1])?];
    note(&format!("two daemons with {GUESTS} processes each"));
    let began = clock::now();
    let mut pairs = Vec::new();
    for _ in 0..GUESTS {
        let mut listens = guest(stage, &sockets[0], None)?;
        let port = server_port(&mut listens)?;
        pairs.push((listens, guest(stage, &sockets[1], Some(port))?));
    }
    let mut sum = Found::default();
    for (mut a, mut b) in pairs {
        for guest in [&mut b, &mut a] {
            let found = finish(guest)?;
            sum.operations += found.operations;
            sum.bytes += found.bytes;
        }
    }
    let seconds = clock::now().since(began).as_nanos() as f64 / 1e9;
    if json {
        writeln!(out, "{}", serde_json::to_string(&sum)?)?;
    } else {
        writeln!(
            out,
            "{} processes of two daemons: {} operations of RC, UC and UD completed, {} bytes compared, \
             none wrong; {seconds:.1} s",
            2 * GUESTS,
            sum.operations,
            sum.bytes
        )?;
    }
    Ok(())
}

/// Starts a daemon and waits until it listens.
fn start(command: Command, socket: &Path) -> Result<Child> {
    let mut daemon = Child::spawn("daemon", command)?;
    let mut waited = Duration::ZERO;
    while xroce_control::socket::connect_to(socket).is_err() {
        stop::check()?;
        if daemon.has_ended()? {
            daemon.finish(PATIENCE)?;
            bail!("the daemon ended at once");
        }
        if waited > PATIENCE {
            bail!(
                "the daemon does not listen at {}: {}",
                socket.display(),
                daemon.end()
            );
        }
        std::thread::sleep(LOOK);
        waited += LOOK;
    }
    Ok(daemon)
}

fn guest(stage: &Stage, socket: &Path, connect: Option<u16>) -> Result<Child> {
    let mut command = Command::new(stage.exe());
    command.arg("demo-guest").arg("--socket").arg(socket);
    if let Some(port) = connect {
        command.args(["--connect", &port.to_string()]);
    }
    Child::spawn("process", command)
}

/// What a process found, when it has ended well.
fn finish(guest: &mut Child) -> Result<Found> {
    let mut last = String::new();
    loop {
        match guest.next(PATIENCE)? {
            Line::Out(line) => last = line,
            Line::Err(_) => {}
            Line::End => break,
        }
    }
    guest.finish(PATIENCE)?;
    serde_json::from_str(&last).with_context(|| format!("a process said: {last}"))
}
