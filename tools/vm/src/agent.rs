//! The host's side of the agent.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Ipv6Addr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::command::now;
use crate::protocol::{Answer, Head, MAX_LINE, Refused, number, parse_head, request};

/// What the host waits beyond the time that the guest was given: an emulated machine is slow.
const GRACE: Duration = Duration::from_secs(30);
/// Completions of one answer.
const MAX_COMPLETIONS: usize = 512;
/// For requests that wait for nothing.
const SHORT: Duration = Duration::from_secs(30);

/// The program in the guest that does as it is told, one request at a time.
#[derive(Debug)]
pub struct Agent {
    stream: UnixStream,
    /// Read and not used yet.
    read: Vec<u8>,
    seq: u64,
    /// Why nothing more can be asked of it.
    lost: Option<String>,
}

/// How a program in the guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its status; 124 if it was killed after its time, 128 + N by signal N.
    pub rc: i32,
    /// Standard output and error together, the last 256 KiB.
    pub text: String,
}

/// An entry of the GID table of rxe0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place, for `gid_index`.
    pub index: u32,
    /// The GID; an IPv4 address is mapped (`::ffff:a.b.c.d`).
    pub addr: Ipv6Addr,
    /// RoCE v2, not v1.
    pub v2: bool,
    /// The network device that has the address.
    pub ndev: String,
}

/// A completion, in the numbers of libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of struct ibv_wc")]
pub struct Completion {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub byte_len: u32,
    pub flags: u32,
    /// In host order; the invalidated key if the flags say so; otherwise 0.
    pub imm: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub vendor_err: u32,
}

impl Agent {
    /// Takes over the stream and waits for the agent's first line.
    pub(crate) fn connect(stream: UnixStream) -> Self {
        Self {
            stream,
            read: Vec::new(),
            seq: 0,
            lost: None,
        }
    }

    /// The line that it sends by itself, when it starts. `Ok(None)` if that takes longer.
    pub(crate) fn hello(&mut self, patience: Duration) -> Result<Option<Answer>> {
        match self.line(now() + patience) {
            Ok(line) => match parse_head(&line, 0).context("the agent's first line")? {
                Head::Ok(fields, _) => Ok(Some(Answer {
                    fields,
                    payload: Vec::new(),
                })),
                Head::Err(text) => bail!("the agent does not start: {text}"),
            },
            Err(error) if is_timeout(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One request and its answer. The agent saying no is an error of type [`Refused`]; an answer
    /// that comes too late or cannot be read makes all later calls fail as well, for nobody knows
    /// what the bytes on the way belong to.
    pub fn call(
        &mut self,
        verb: &str,
        args: &str,
        payload: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<Answer> {
        if let Some(why) = &self.lost {
            bail!("the agent cannot be asked for {verb:?}: {why}");
        }
        let bytes = request(self.seq + 1, verb, args, payload)?;
        self.seq += 1;
        let shown = format!("{verb} {args}");
        let shown: String = shown.trim_end().chars().take(200).collect();
        match self.exchange(&bytes, timeout) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(text)) => Err(Refused {
                request: shown,
                text,
            }
            .into()),
            Err(error) => {
                let why = if is_timeout(&error) {
                    format!("no answer to request {} {shown:?} in {timeout:?}", self.seq)
                } else {
                    format!("the answer to request {} {shown:?}: {error:#}", self.seq)
                };
                self.lost = Some(why.clone());
                Err(anyhow!(why))
            }
        }
    }

    /// Requests without payload, in one turn: the answers of as many as were done. The first that
    /// the agent refuses is an error of type [`Refused`], and those behind it are not done.
    pub fn batch(&mut self, requests: &[String], timeout: Duration) -> Result<Vec<Answer>> {
        let lines = requests.join("\n");
        ensure!(
            requests.iter().all(|r| !r.contains('\n')) && !lines.is_empty(),
            "a request is a line"
        );
        let answer = self.call("batch", "", Some(lines.as_bytes()), timeout)?;
        let text = String::from_utf8(answer.payload).context("answers that are no text")?;
        let mut answers = Vec::new();
        for (line, request) in text.lines().zip(requests) {
            match parse_head(format!("0 {line}").as_bytes(), 0)? {
                Head::Ok(fields, _) => answers.push(Answer {
                    fields,
                    payload: Vec::new(),
                }),
                Head::Err(text) => {
                    let request = request.chars().take(200).collect();
                    return Err(Refused { request, text }.into());
                }
            }
        }
        ensure!(
            answers.len() == requests.len(),
            "{} answers to {} requests",
            answers.len(),
            requests.len()
        );
        Ok(answers)
    }

    fn exchange(&mut self, bytes: &[u8], timeout: Duration) -> Result<Result<Answer, String>> {
        let deadline = now() + timeout;
        self.stream
            .set_write_timeout(Some(timeout.max(Duration::from_millis(1))))?;
        self.stream.write_all(bytes).map_err(gone)?;
        let line = self.line(deadline)?;
        let head = parse_head(&line, self.seq).with_context(|| {
            let start = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
            format!("{start:?}")
        })?;
        match head {
            Head::Err(text) => Ok(Err(text)),
            Head::Ok(fields, len) => {
                while self.read.len() < len {
                    self.more(deadline)?;
                }
                let rest = self.read.split_off(len);
                let payload = std::mem::replace(&mut self.read, rest);
                Ok(Ok(Answer { fields, payload }))
            }
        }
    }

    fn line(&mut self, deadline: Instant) -> Result<Vec<u8>> {
        let mut seen = 0;
        loop {
            if let Some(at) = self.read[seen..].iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(seen + at + 1);
                let mut line = std::mem::replace(&mut self.read, rest);
                line.pop();
                return Ok(line);
            }
            seen = self.read.len();
            ensure!(seen <= MAX_LINE, "a line without an end");
            self.more(deadline)?;
        }
    }

    fn more(&mut self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(now());
        self.stream
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut part = [0; 64 << 10];
        let n = self.stream.read(&mut part).map_err(gone)?;
        ensure!(n > 0, GONE);
        self.read.extend_from_slice(&part[..n]);
        Ok(())
    }

    /// Runs a bash script; after `timeout` it is killed, with all that it started.
    pub fn exec(&mut self, script: &str, timeout: Duration) -> Result<Output> {
        let args = format!("timeout={}", whole_seconds(timeout));
        let answer = self.call("exec", &args, Some(script.as_bytes()), timeout + GRACE)?;
        Output::of(answer)
    }

    /// Starts a bash script and leaves it running; returns its process id.
    pub fn spawn(&mut self, name: &str, script: &str) -> Result<u32> {
        let args = format!("name={name}");
        self.call("spawn", &args, Some(script.as_bytes()), SHORT)?
            .num32("pid")
    }

    /// Waits until what was spawned ends; after `timeout` it is killed.
    pub fn wait(&mut self, name: &str, timeout: Duration) -> Result<Output> {
        let args = format!("name={name} timeout={}", whole_seconds(timeout));
        Output::of(self.call("wait", &args, None, timeout + GRACE)?)
    }

    /// Sends a signal to what was spawned, with all that it started.
    pub fn signal(&mut self, name: &str, signal: u32) -> Result<()> {
        self.call("kill", &format!("name={name} sig={signal}"), None, SHORT)?;
        Ok(())
    }

    /// Writes a file.
    pub fn put(&mut self, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        let args = format!("path={path} mode=0{mode:o}");
        self.call("put", &args, Some(bytes), GRACE * 2)?;
        Ok(())
    }

    /// Reads a file, `max` bytes at most.
    pub fn get(&mut self, path: &str, max: usize) -> Result<Vec<u8>> {
        let args = format!("path={path} max={max}");
        Ok(self.call("get", &args, None, GRACE * 2)?.payload)
    }

    /// Destroys all verbs objects and opens rxe0 anew.
    pub fn reset(&mut self) -> Result<()> {
        self.call("reset", "", None, SHORT).map(drop)
    }

    /// The counters that rxe0 keeps.
    pub fn counters(&mut self) -> Result<BTreeMap<String, u64>> {
        let answer = self.call("counters", "", None, SHORT)?;
        let counters = answer.fields.into_iter();
        counters
            .map(|(name, value)| Ok((name, number(&value)?)))
            .collect()
    }

    /// The GID table of rxe0, entries in use.
    pub fn gids(&mut self) -> Result<Vec<Gid>> {
        let answer = self.call("gids", "", None, SHORT)?;
        answer.all("gid").map(Gid::parse).collect()
    }

    /// Takes completions: returns when there are `min`, or after `timeout` with fewer.
    pub fn poll(&mut self, cq: u32, min: usize, timeout: Duration) -> Result<Vec<Completion>> {
        self.poll_up_to(cq, min, MAX_COMPLETIONS, timeout)
    }

    /// The same, but `max` at most; one answer holds 512.
    pub fn poll_up_to(
        &mut self,
        cq: u32,
        min: usize,
        max: usize,
        timeout: Duration,
    ) -> Result<Vec<Completion>> {
        let (min, max) = (min.min(MAX_COMPLETIONS), max.min(MAX_COMPLETIONS));
        let timeout_ms = timeout.as_millis();
        let args = format!("cq={cq} min={min} max={max} timeout_ms={timeout_ms}");
        let answer = self.call("poll", &args, None, timeout + GRACE)?;
        let all: Vec<_> = answer
            .all("wc")
            .map(Completion::parse)
            .collect::<Result<_>>()?;
        ensure!(
            all.len() as u64 == answer.num("n")?,
            "the agent announced other completions than it listed"
        );
        Ok(all)
    }
}

/// Whether it is the time limit of a socket.
fn is_timeout(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

const GONE: &str = "the machine is gone";

/// Says so where QEMU has closed its end.
fn gone(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => anyhow!(GONE),
        _ => error.into(),
    }
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

impl Output {
    fn of(answer: Answer) -> Result<Self> {
        Ok(Self {
            rc: answer.num("rc")?.try_into()?,
            text: String::from_utf8_lossy(&answer.payload).into_owned(),
        })
    }

    /// The text of a program that succeeded; for others an error that holds it.
    pub fn ok(self) -> Result<String> {
        ensure!(
            self.rc == 0,
            "status {}:\n{}",
            self.rc,
            self.text.trim_end()
        );
        Ok(self.text)
    }
}

impl Gid {
    /// `INDEX:32HEX:TYPE:NDEV`.
    fn parse(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.splitn(4, ':').collect();
        let [index, addr, kind, ndev] = parts[..] else {
            bail!("{text:?} is no GID");
        };
        ensure!(addr.len() == 32, "{text:?} is no GID");
        let bits = u128::from_str_radix(addr, 16).with_context(|| format!("{text:?} is no GID"))?;
        Ok(Self {
            index: index.parse()?,
            addr: Ipv6Addr::from_bits(bits),
            v2: kind == "v2",
            ndev: ndev.to_owned(),
        })
    }

    /// As `dgid=` takes it.
    pub fn hex(&self) -> String {
        format!("{:032x}", self.addr.to_bits())
    }
}

impl Completion {
    /// `WR:STATUS:OPCODE:BYTELEN:FLAGS:IMM:QPN:SRCQP:VENDOR`.
    fn parse(text: &str) -> Result<Self> {
        let numbers: Vec<u64> = text.split(':').map(number).collect::<Result<_>>()?;
        let [wr_id, rest @ ..] = &numbers[..] else {
            bail!("{text:?} is no completion");
        };
        let rest: Vec<u32> = rest
            .iter()
            .map(|n| u32::try_from(*n))
            .collect::<Result<_, _>>()
            .with_context(|| format!("{text:?} is no completion"))?;
        let [
            status,
            opcode,
            byte_len,
            flags,
            imm,
            qp_num,
            src_qp,
            vendor_err,
        ] = rest[..]
        else {
            bail!("{text:?} is no completion");
        };
        Ok(Self {
            wr_id: *wr_id,
            status,
            opcode,
            byte_len,
            flags,
            imm,
            qp_num,
            src_qp,
            vendor_err,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent whose other side says the given bytes.
    fn agent(says: &[u8]) -> (Agent, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(says).unwrap();
        (Agent::connect(ours), theirs)
    }

    const SOON: Duration = Duration::from_millis(50);

    #[test]
    fn an_answer_with_bytes() {
        let (mut agent, _peer) = agent(b"0 ok hello=1 kernel=6.12\n1 ok len=3 rc=7\na\nb2 ok\n");
        let hello = agent.hello(SOON).unwrap().unwrap();
        assert_eq!(hello.text("kernel").unwrap(), "6.12");
        let output = agent.exec("echo", SOON).unwrap();
        assert_eq!((output.rc, output.text.as_str()), (7, "a\nb"));
        assert!(output.ok().unwrap_err().to_string().contains("status 7"));
        agent.reset().unwrap();
    }

    #[test]
    fn a_refusal_leaves_it_usable() {
        let (mut agent, _peer) = agent(b"1 err there is no qp 5\n2 ok\n");
        let error = agent.call("query", "qp=5", None, SOON).unwrap_err();
        let refused = error.downcast_ref::<Refused>().unwrap();
        assert_eq!(refused.text, "there is no qp 5");
        assert!(error.to_string().contains("\"query qp=5\""), "{error}");
        agent.reset().unwrap();
    }

    #[test]
    fn a_batch_ends_where_it_is_refused() {
        let requests = ["mr id=1", "mr id=2"].map(str::to_owned);
        let (mut agent, _peer) =
            agent(b"1 ok len=17\nok rkey=7\nok k=v\n2 ok len=18\nok\nerr that is it\n3 ok\n");
        let answers = agent.batch(&requests, SOON).unwrap();
        assert_eq!((answers.len(), answers[0].num("rkey").unwrap()), (2, 7));
        let error = agent.batch(&requests, SOON).unwrap_err();
        let refused = error.downcast_ref::<Refused>().unwrap();
        assert_eq!(
            (&*refused.request, &*refused.text),
            ("mr id=2", "that is it")
        );
        agent.reset().unwrap();
    }

    #[test]
    fn late_answers_end_it() {
        let (mut agent, mut peer) = agent(b"");
        let error = agent
            .call("poll", "cq=1", None, SOON)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no answer to request 1 \"poll cq=1\""),
            "{error}"
        );
        peer.write_all(b"1 ok n=0\n").unwrap();
        let error = agent.reset().unwrap_err().to_string();
        assert!(
            error.contains("\"reset\"") && error.contains("poll cq=1"),
            "{error}"
        );
    }

    #[test]
    fn garbled_answers_end_it() {
        for says in [&b"2 ok\n"[..], b"\xff\n", b"1 ok len=x\n", b"boot noise\n"] {
            let (mut agent, _peer) = agent(says);
            let error = agent.call("gids", "", None, SOON).unwrap_err();
            assert!(error.to_string().contains("request 1 \"gids\""), "{error}");
            assert!(error.downcast_ref::<Refused>().is_none());
            assert!(agent.reset().is_err());
        }
    }

    #[test]
    fn a_machine_that_went_away() {
        let (mut agent, peer) = agent(b"1 ok le");
        drop(peer);
        let error = agent.reset().unwrap_err().to_string();
        assert!(error.contains("the machine is gone"), "{error}");
    }

    #[test]
    fn gids_and_completions() {
        let gid = Gid::parse("1:00000000000000000000ffff0a000002:v2:eth0.5").unwrap();
        assert_eq!(gid.addr.to_string(), "::ffff:10.0.0.2");
        assert_eq!((gid.index, gid.v2, gid.ndev.as_str()), (1, true, "eth0.5"));
        assert_eq!(gid.hex(), "00000000000000000000ffff0a000002");
        let wc = Completion::parse("18446744073709551615:0:128:16:2:0xff:0x11:0x12:0").unwrap();
        assert_eq!(
            (wc.wr_id, wc.opcode, wc.imm, wc.src_qp),
            (u64::MAX, 128, 255, 18)
        );
        for text in [
            "",
            "1",
            "1:2:3:v2",
            "0:0:0:0:0:0:0:0:0:0",
            "0:0:x:0:0:0:0:0:0",
        ] {
            assert!(
                Gid::parse(text).is_err() && Completion::parse(text).is_err(),
                "{text}"
            );
        }
    }
}
