//! Where processes attach, who may, and where metrics are.

use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access, access};
use xroce_daemon::DaemonConfig;

use super::Findings;
use crate::options::ModeArg;
use crate::plan::Plan;

/// Explains the socket and the metrics.
pub(super) fn check(plan: &Plan, found: &mut Findings) {
    let daemon = &plan.daemon;
    found.about(format!("socket {}", daemon.socket.display()));
    place(&daemon.socket, found);
    found.say(who(daemon));
    found.say(format!(
        "{} processes at once, {} of one user; at the end sends get {} s to complete",
        daemon.sessions,
        daemon.sessions_per_user,
        daemon.drain.as_secs()
    ));
    let Some(at) = plan.metrics else {
        return found.about("metrics: none");
    };
    found.about(format!("metrics for Prometheus at {at}, path /metrics"));
    if let Err(error) = TcpListener::bind(at) {
        found.wrong(format!(
            "{at} cannot be bound: {error}; choose another port"
        ));
    }
    if !at.ip().is_loopback() {
        found.say(
            "hint: everybody who reaches this address sees the names and users of all processes",
        );
    }
}

fn place(path: &Path, found: &mut Findings) {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let shown = folder.display();
    if !folder.is_dir() {
        return found.wrong(format!(
            "the folder {shown} does not exist: make it (the unit's RuntimeDirectory does), or choose another \
             --socket"
        ));
    }
    if access(folder, Access::WRITE_OK).is_err() {
        found.wrong(format!("the folder {shown} cannot be written by this user"));
    }
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            found.wrong("what is there is no socket: remove it, or choose another --socket");
        }
        Ok(_) if xroce_control::socket::connect_to(path).is_ok() => {
            found.wrong("another daemon listens there: stop it, or choose another --socket");
        }
        Ok(_) => found.say("one that a daemon left behind is replaced"),
        Err(_) => {}
    }
}

/// In words, who may open the socket.
fn who(daemon: &DaemonConfig) -> String {
    let group = match daemon.group {
        Some(number) => format!("group {}", group_name(number)),
        None => "the daemon's group".to_owned(),
    };
    // To connect to a socket means to write to it.
    let may = |bit: u32| daemon.mode & bit != 0;
    let whom = match (may(0o020), may(0o002)) {
        (_, true) => "every user of this machine".to_owned(),
        (true, false) => format!("root, the daemon's user and {group}"),
        (false, false) => "only root and the daemon's user".to_owned(),
    };
    format!("mode {}: {whom} may attach", ModeArg(daemon.mode))
}

fn group_name(number: u32) -> String {
    let found = nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(number));
    let name = found.ok().flatten().map(|g| g.name);
    name.unwrap_or_else(|| number.to_string())
}
