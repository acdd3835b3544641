//! The programs of rdma-core and perftest as they are, in the guest, against `xroce perf`.

use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{Direction, Outcome, Scenario, Seen, Stage, mtu};
use crate::clock;
use crate::ends::{gid_index, wait_for_port};
use crate::fabric::{DEV, Route};

/// TCP port of all of them, and as /proc/net/tcp writes it.
const PORT: (u16, &str) = (18_515, ":4853");
/// How long one run may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tool {
    Pingpong,
    Bw(&'static str),
    Lat(&'static str),
}

/// How it is called.
#[derive(Clone, Copy, Debug)]
struct Call {
    tool: Tool,
    size: u32,
    iterations: u32,
    qps: u32,
}

impl Tool {
    fn program(self) -> String {
        match self {
            Self::Pingpong => "ibv_rc_pingpong".to_owned(),
            Self::Bw(op) => format!("ib_{op}_bw"),
            Self::Lat(op) => format!("ib_{op}_lat"),
        }
    }
}

impl Call {
    /// The command line in the guest; `peer` is where it connects to, if it is the client.
    fn guest(&self, gid_index: u32, mtu: usize, peer: &str) -> String {
        let (program, size, n) = (self.tool.program(), self.size, self.iterations);
        match self.tool {
            Tool::Pingpong => {
                format!("{program} -d rxe0 -g {gid_index} -m {mtu} -s {size} -n {n} -c {peer}")
            }
            Tool::Bw(_) => format!(
                "{program} -F -d rxe0 -x {gid_index} -m {mtu} -s {size} -n {n} -q {} {peer}",
                self.qps
            ),
            Tool::Lat(_) => {
                format!("{program} -F -d rxe0 -x {gid_index} -m {mtu} -s {size} -n {n} {peer}")
            }
        }
    }

    /// Arguments of `xroce perf server` and `client` for the same.
    fn ours(&self, mtu: usize) -> Vec<String> {
        let (compat, op, test) = match self.tool {
            Tool::Pingpong => ("pingpong", None, None),
            Tool::Bw(op) => ("perftest", Some(op), Some("bw")),
            Tool::Lat(op) => ("perftest", Some(op), Some("lat")),
        };
        let mut args = vec!["--compat".to_owned(), compat.to_owned()];
        let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        if let Some(op) = op {
            add("op", op.to_owned());
        }
        if let Some(test) = test {
            add("test", test.to_owned());
        }
        if self.qps > 1 {
            add("qps", self.qps.to_string());
        }
        add("size", self.size.to_string());
        add("messages", self.iterations.to_string());
        add("mtu", mtu.to_string());
        args
    }
}

fn run(stage: &mut Stage, scenario: &Scenario, call: Call) -> Result<Outcome> {
    // The interface is for the other process now.
    stage.close();
    stage.start(&[]);
    let result = match scenario.direction {
        Direction::ToXroce => guest_is_client(stage, scenario, call),
        _ => guest_is_server(stage, scenario, call),
    };
    let record = stage.finish()?;
    let text = result?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    Ok(seen.outcome(figure(call.tool, &text)))
}

fn guest_is_client(stage: &mut Stage, scenario: &Scenario, call: Call) -> Result<String> {
    let mut args = call.ours(scenario.mtu.bytes());
    args.push("--once".to_owned());
    let server = Ours::start(stage, "server", None, scenario.route, &args)?;
    server.wait_until_it_listens(stage)?;
    let gid = gid_index(stage.vm.agent(), scenario.route)?;
    let command = call.guest(gid, scenario.mtu.bytes(), &Route::V4.ip(1).to_string());
    let output = stage.vm.agent().exec(&command, PATIENCE)?;
    let ours = server.finish();
    both(&command, output, ours)
}

fn guest_is_server(stage: &mut Stage, scenario: &Scenario, call: Call) -> Result<String> {
    let gid = gid_index(stage.vm.agent(), scenario.route)?;
    let command = call.guest(gid, scenario.mtu.bytes(), "");
    stage.vm.agent().spawn("tool", &command)?;
    wait_for_port(stage.vm.agent(), PORT.0)
        .with_context(|| format!("{command} does not listen"))?;
    let peer = Route::V4.ip(2).to_string();
    let args = call.ours(scenario.mtu.bytes());
    let client = Ours::start(stage, "client", Some(&peer), scenario.route, &args)?;
    let ours = client.finish();
    let wait = if ours.is_ok() {
        PATIENCE
    } else {
        Duration::from_secs(2)
    };
    let output = stage.vm.agent().wait("tool", wait)?;
    both(&command, output, ours)
}

/// Both must have ended well; if not, both say why.
fn both(command: &str, guest: xroce_vm::Output, ours: Result<String>) -> Result<String> {
    let text = guest.text.clone();
    match (guest.ok(), ours) {
        (Ok(text), Ok(_)) => Ok(text),
        (Ok(_), Err(ours)) => Err(ours.context(format!("{command} ended well, but said: {text}"))),
        (Err(guest), Ok(ours)) => {
            Err(guest.context(format!("{command} failed; xroce ended well: {ours}")))
        }
        (Err(guest), Err(ours)) => bail!("{command}: {guest:#}; xroce: {ours:#}"),
    }
}

/// A process `xroce perf` in the namespace.
struct Ours {
    child: Child,
    started: Instant,
}

impl Ours {
    fn start(
        stage: &Stage,
        role: &str,
        peer: Option<&str>,
        route: Route,
        args: &[String],
    ) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("xroce");
        ensure!(
            program.exists(),
            "{} is missing: build it with cargo build --release -p xroce",
            program.display()
        );
        let local = route.ip(1).to_string();
        let child = stage
            .fabric
            .netns
            .command(&program)
            .args(["perf", role])
            .args(peer)
            .args(["--dev", DEV, "--local", &local])
            .args(args)
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting xroce perf")?;
        Ok(Self {
            child,
            started: clock::now(),
        })
    }

    fn wait_until_it_listens(&self, stage: &Stage) -> Result<()> {
        let listens = || {
            let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
            tables.iter().any(|t| {
                let text = fs::read_to_string(t).unwrap_or_default();
                text.lines()
                    .any(|l| l.contains(PORT.1) && l.contains(" 0A "))
            })
        };
        while !stage.fabric.netns.run(listens) {
            if self.started.elapsed() > Duration::from_secs(15) {
                bail!("xroce perf server does not listen on port {}", PORT.0);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits for its end, and kills it if that does not come.
    fn finish(mut self) -> Result<String> {
        let until = self.started + PATIENCE + Duration::from_secs(10);
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break Some(status);
            }
            if clock::now() > until {
                break None;
            }
            thread::sleep(Duration::from_millis(10));
        };
        if status.is_none() {
            self.child.kill()?;
            self.child.wait()?;
        }
        let mut said = String::new();
        let mut errors = String::new();
        if let Some(out) = &mut self.child.stdout {
            out.read_to_string(&mut said)?;
        }
        if let Some(err) = &mut self.child.stderr {
            err.read_to_string(&mut errors)?;
        }
        match status {
            Some(status) if status.success() => Ok(said),
            Some(status) => Err(anyhow!("xroce perf ended with {status}: {}", errors.trim())),
            None => Err(anyhow!("xroce perf did not end: {}", errors.trim())),
        }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        // Both fail if it has ended and was waited for, as it should have been.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the guest's program measured.
fn figure(tool: Tool, text: &str) -> String {
    let numbers = |line: &str| -> Vec<f64> {
        let words: Vec<_> = line.split_whitespace().map(str::parse).collect();
        words.into_iter().map_while(Result::ok).collect()
    };
    let last = text.lines().map(numbers).rfind(|row| row.len() >= 4);
    match (tool, last) {
        (Tool::Bw(_), Some(row)) => format!("{:.1} MB/s", row.get(3).unwrap_or(&0.0)),
        (Tool::Lat(_), Some(row)) => format!("{:.0} µs", row.get(4).unwrap_or(&0.0)),
        (Tool::Pingpong, _) => text
            .lines()
            .find_map(|line| {
                line.split(" = ")
                    .nth(1)
                    .filter(|_| line.contains("usec/iter"))
            })
            .map(|rest| rest.replace(" usec/iter", " µs a round"))
            .unwrap_or_default(),
        _ => String::new(),
    }
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    let mut push = |call: Call, route: Route, bytes: usize, smoke: bool| {
        for direction in Direction::EACH {
            let qps = if call.qps > 1 {
                format!(" -q {}", call.qps)
            } else {
                String::new()
            };
            list.push(Scenario {
                name: format!("tool: {}{qps}", call.tool.program()),
                direction,
                route,
                mtu: mtu(bytes),
                smoke,
                run: Box::new(move |stage, scenario| run(stage, scenario, call)),
            });
        }
    };
    let call = |tool, size, iterations, qps| Call {
        tool,
        size,
        iterations,
        qps,
    };
    let bw = |op| call(Tool::Bw(op), 65_536, 100, 1);
    let lat = |op| call(Tool::Lat(op), 2, 100, 1);
    let pingpong = call(Tool::Pingpong, 4_096, 100, 1);
    push(pingpong, Route::V4, 1024, true);
    push(pingpong, Route::V6, 1024, false);
    for op in ["send", "write", "read"] {
        for route in [Route::V4, Route::V6] {
            push(lat(op), route, 1024, route == Route::V4 && op == "write");
        }
        push(bw(op), Route::V6, 1024, false);
        for bytes in [256, 512, 1024, 2048, 4096] {
            push(bw(op), Route::V4, bytes, bytes == 4096 && op == "send");
        }
        push(call(Tool::Bw(op), 4_096, 50, 8), Route::V4, 1024, false);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_the_programs_print() {
        let bw = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                  65536      100              14.05              13.97  \t\t   0.000223\n----\n";
        assert_eq!(figure(Tool::Bw("send"), bw), "14.0 MB/s");
        let lat = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec] t_avg[usec]\n \
                   2       100          362.76         5402.11      410.12    611.70\n";
        assert_eq!(figure(Tool::Lat("write"), lat), "410 µs");
        let pingpong = "819200 bytes in 0.05 seconds = 131.07 Mbit/sec\n\
                        100 iters in 0.05 seconds = 500.00 usec/iter\n";
        assert_eq!(figure(Tool::Pingpong, pingpong), "500.00 µs a round");
    }
}
