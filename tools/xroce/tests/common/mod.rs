//! Runs the `xroce` command for tests.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "the test has failed")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The command under test.
pub(crate) const XROCE: &str = env!("CARGO_BIN_EXE_xroce");

/// What a finished program left.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Exit status; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Finished {
    /// It failed with one line on standard error, which begins with "xroce: " and contains
    /// `words`, and nothing on standard output.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert_eq!(self.out, "", "nothing on standard output");
        assert_eq!(self.err.lines().count(), 1, "one line: {self:#?}");
        assert!(self.err.starts_with("xroce: "), "{self:#?}");
        for word in words {
            assert!(self.err.contains(word), "\"{word}\" is not in {self:#?}");
        }
    }

    /// It failed as [`Finished::fails`] says, after it had printed that it listens.
    #[track_caller]
    pub(crate) fn fails_after_a_line(&self, words: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:#?}");
        for word in words {
            assert!(self.err.contains(word), "\"{word}\" is not in {self:#?}");
        }
    }

    /// It failed as [`Finished::fails`] says, but for a JSON object on standard output that says the
    /// same; returns it.
    #[track_caller]
    pub(crate) fn failure(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(1), "{self:#?}");
        let failure: serde_json::Value =
            serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:#?}"));
        // Standard error has it on one line.
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let error = words(failure["error"].as_str().unwrap());
        assert_eq!(words(&self.err), format!("xroce: {error}"));
        failure
    }

    /// It succeeded; returns the JSON on standard output.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{self:#?}");
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }
}

/// A program in the background; killed when dropped.
pub(crate) struct Running {
    child: Child,
    out: Receiver<String>,
    err: Receiver<String>,
}

impl Running {
    /// Starts `command`.
    #[track_caller]
    pub(crate) fn start(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = lines(child.stdout.take().unwrap());
        let err = lines(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    /// The next line of standard output.
    #[track_caller]
    pub(crate) fn out_line(&self) -> String {
        match self.out.recv_timeout(Duration::from_secs(30)) {
            Ok(line) => line,
            Err(e) => panic!(
                "no output: {e}, {:?}",
                self.err.try_iter().collect::<Vec<_>>()
            ),
        }
    }

    /// The next line of standard error.
    #[track_caller]
    pub(crate) fn err_line(&self) -> String {
        self.err.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// The process number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end, a minute at most.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Finished {
        for _ in 0..6000 {
            if let Some(status) = self.child.try_wait().unwrap() {
                let all = |r: &Receiver<String>| r.iter().map(|l| l + "\n").collect::<String>();
                return Finished {
                    code: status.code(),
                    out: all(&self.out),
                    err: all(&self.err),
                };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!(
            "the program does not end: {:?}",
            self.err.try_iter().collect::<Vec<_>>()
        );
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (to, from) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
    from
}

/// `xroce` with these arguments, split at blanks.
pub(crate) fn command(args: &str) -> Command {
    let mut command = Command::new(XROCE);
    command.args(args.split_whitespace());
    command
}

/// Runs `xroce` to its end.
#[track_caller]
pub(crate) fn xroce(args: &str) -> Finished {
    Running::start(command(args)).finish()
}

/// Runs `xroce decode` on a file.
pub(crate) fn decode(file: &Path, flag: Option<&str>) -> Finished {
    let mut command = command("decode");
    command.args(flag).arg(file);
    Running::start(command).finish()
}

/// A running `xroce perf server` and the TCP port it chose.
#[track_caller]
pub(crate) fn server(command: Command) -> (Running, u16) {
    let server = Running::start(command);
    let line = server.out_line();
    let port = line
        .strip_prefix("listening on TCP port ")
        .and_then(|l| l.split(',').next());
    let port = port
        .and_then(|p| p.parse().ok())
        .unwrap_or_else(|| panic!("{line}"));
    (server, port)
}

/// A server over UDP at a loopback address of its own: UDP port 4791 exists once per address.
#[track_caller]
pub(crate) fn udp_server(address: &str, more: &str) -> (Running, u16) {
    server(command(&format!(
        "perf server --backend udp --local {address} --bind {address} --port 0 {more}"
    )))
}
