//! `xroce capture` as a process: how it ends, and who may.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that fails may panic"
)]

use std::fs::{Permissions, set_permissions};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};

fn capture(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xroce"));
    command.arg("capture").args(args);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A daemon that everybody may attach to; its address ends in `n`.
fn daemon(dir: &TempDir, n: u8) -> (Daemon, String) {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let addr = IpAddr::V4(Ipv4Addr::new(127, 24 + n, high, low.clamp(1, 254)));
    let device = DeviceConfig::new(Below::Udp { addr, ifname: None });
    let socket = dir.path().join("s");
    let mut config = DaemonConfig::new(&socket, vec![device]);
    config.mode = 0o666;
    set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let daemon = Daemon::start(config).unwrap();
    (daemon, socket.to_str().unwrap().to_owned())
}

#[test]
fn ctrl_c_ends_it_with_a_whole_file_and_a_summary() {
    let dir = TempDir::new().unwrap();
    let (_daemon, socket) = daemon(&dir, 0);
    let mut child = capture(&["--socket", &socket, "-w", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The file begins when the capture does.
    let mut magic = [0; 4];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut magic).unwrap();
    assert_eq!(magic, [0x0a, 0x0d, 0x0d, 0x0a]);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = stderr(&output);
    assert!(
        said.starts_with("0 packets of 0 bytes captured on udp:127."),
        "{said}"
    );
    // The last block are the statistics: its type, its length, and its length again.
    let length = rest.last_chunk::<4>().unwrap();
    let length = u32::from_be_bytes(*length) as usize;
    let block = &rest[rest.len() - length..];
    assert_eq!(block[..4], [0, 0, 0, 5]);
}

#[test]
fn without_a_daemon_it_says_so() {
    let output = capture(&["--socket", "/nonexistent/s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(
        said.contains("/nonexistent/s") && said.contains("is it running"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1);
    for wrong in [
        ["--sample", "0"],
        ["--snaplen", "70000"],
        ["--duration", "-1"],
        ["--qp", "0x1000000"],
        ["--peer", "nobody"],
    ] {
        let output = capture(&wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn who_is_neither_root_nor_the_daemons_user_may_not() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("needs root to be somebody else: not tested");
        return;
    }
    let dir = TempDir::new().unwrap();
    let (_daemon, socket) = daemon(&dir, 1);
    // The command may lie where others may not look.
    let command = dir.path().join("xroce");
    std::fs::copy(env!("CARGO_BIN_EXE_xroce"), &command).unwrap();
    let mut capture = Command::new(command);
    capture.args(["capture", "--socket", &socket]);
    let output = capture.uid(65_534).gid(65_534).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("user 65534 may not see or change"), "{said}");
}
