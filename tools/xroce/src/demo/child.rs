//! A program of the demo: its output line by line, and its end in any case.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::stop;

/// Between two looks at the stop flag.
const LOOK: Duration = Duration::from_millis(50);
/// A program that was asked to end may take so long.
const GRACE: Duration = Duration::from_millis(2_000);
/// Longest line kept, in bytes.
const LINE_MAX: u64 = 1 << 20;

/// What a program says.
pub(crate) enum Line {
    /// A line of standard output.
    Out(String),
    /// A line of standard error.
    Err(String),
    /// Both are closed.
    End,
}

/// A running program; dropping it ends it.
pub(crate) struct Child {
    name: &'static str,
    process: std::process::Child,
    lines: Receiver<Line>,
    /// Why it fails, if it does: our one line, or how a panic begins.
    complaint: String,
    /// Lines of a panic still to come.
    panic_lines: u8,
}

impl Child {
    /// Starts a program.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn spawn(name: &'static str, mut command: Command) -> Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command
            .spawn()
            .with_context(|| format!("cannot start the {name} ({command:?})"))?;
        let (tx, lines) = channel();
        if let Some(out) = process.stdout.take() {
            read_lines(out, tx.clone(), Line::Out);
        }
        if let Some(err) = process.stderr.take() {
            read_lines(err, tx, Line::Err);
        }
        Ok(Self {
            name,
            process,
            lines,
            complaint: String::new(),
            panic_lines: 0,
        })
    }

    /// The next line.
    ///
    /// # Errors
    /// Nothing comes within `patience`, or the user interrupts.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Line> {
        let mut waited = Duration::ZERO;
        loop {
            stop::check()?;
            match self.lines.recv_timeout(LOOK) {
                Ok(Line::Err(line)) => {
                    self.note(&line);
                    return Ok(Line::Err(line));
                }
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => return Ok(Line::End),
                Err(RecvTimeoutError::Timeout) => waited += LOOK,
            }
            if waited >= patience {
                bail!(
                    "the {} has been silent for {} s",
                    self.name,
                    patience.as_secs()
                );
            }
        }
    }

    /// Whether it has ended already.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_some())
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// It failed, with its reason; it does not end; or the user interrupts.
    pub(crate) fn finish(&mut self, patience: Duration) -> Result<()> {
        let status = self.wait(patience, true)?;
        while let Line::Out(_) | Line::Err(_) = self.next(patience)? {}
        match status {
            None => bail!("the {} does not end", self.name),
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                let why = Some(self.complaint.clone()).filter(|said| !said.is_empty());
                let why = why.unwrap_or_else(|| status.to_string());
                bail!("the {} failed: {why}", self.name)
            }
        }
    }

    /// Ends the program and returns its last complaint.
    pub(crate) fn end(&mut self) -> String {
        self.stop();
        while let Ok(line) = self.lines.recv_timeout(LOOK) {
            if let Line::Err(line) = line {
                self.note(&line);
            }
        }
        self.complaint.clone()
    }

    fn note(&mut self, line: &str) {
        if let Some(said) = line.strip_prefix("xroce: ") {
            said.clone_into(&mut self.complaint);
        } else if self.panic_lines > 0 {
            self.panic_lines -= 1;
            self.complaint = format!("{} {line}", self.complaint);
        } else if line.contains("panicked at") {
            line.trim().clone_into(&mut self.complaint);
            self.panic_lines = 1;
        }
    }

    fn wait(&mut self, patience: Duration, interruptible: bool) -> Result<Option<ExitStatus>> {
        let mut waited = Duration::ZERO;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(Some(status));
            }
            if interruptible {
                stop::check()?;
            }
            if waited >= patience {
                return Ok(None);
            }
            thread::sleep(LOOK / 5);
            waited += LOOK / 5;
        }
    }

    fn stop(&mut self) {
        if let Ok(Some(_)) = self.process.try_wait() {
            return;
        }
        if let Some(pid) = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw)
        {
            // Not yet waited for, so the number is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        if !matches!(self.wait(GRACE, false), Ok(Some(_))) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends the lines of a pipe until it closes. The thread ends with the program.
fn read_lines(pipe: impl Read + Send + 'static, to: Sender<Line>, wrap: fn(String) -> Line) {
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        loop {
            let mut line = Vec::new();
            match (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if to.send(wrap(text)).is_err() {
                return;
            }
        }
    });
}
