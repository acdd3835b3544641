//! `xroce perf --compat`: the other side is not xroce but one of the programs everybody has,
//! perftest (`ib_send_bw` and its relatives) or `ibv_rc_pingpong`, unmodified.
//!
//! [`message`] has their messages, [`mod@line`] the socket, [`order`] which message comes when. A
//! conversation ([`perftest`], [`pingpong`]) is one function for both roles; [`session`] moves
//! engine and socket together, and [`bandwidth`] and [`latency`] are the traffic.

mod bandwidth;
mod job;
mod latency;
mod line;
mod message;
mod order;
mod perftest;
mod pingpong;
mod report;
mod session;

use std::io::Write;
use std::net::TcpStream;

use anyhow::{Context, Result};

use crate::perf::args::{Compat, Poll, PortArgs};
use crate::perf::device::{self, Device, User};

pub(crate) use job::Job;
pub(crate) use line::Line;
use line::Role;

/// Does `job` with the server at the other end of `stream`.
///
/// # Errors
/// One line that says what is wrong.
pub(crate) fn client(
    job: &Job,
    port: &PortArgs,
    stream: TcpStream,
    out: &mut dyn Write,
) -> Result<()> {
    let mut line = Line::new(stream)?;
    let near = Some(line.local());
    let visitor = Client {
        job,
        poll: port.poll,
        line: &mut line,
        out,
    };
    device::open(port, near, visitor)
}

struct Client<'a> {
    job: &'a Job,
    poll: Poll,
    line: &'a mut Line,
    out: &'a mut dyn Write,
}

impl User for Client<'_> {
    fn run<D: Device>(self, mut device: D) -> Result<()> {
        converse(
            self.job,
            Role::Client,
            self.poll,
            &mut device,
            self.line,
            self.out,
        )
    }
}

/// Does `job` with the client at the other end of `line`.
///
/// # Errors
/// One line that says what is wrong.
pub(crate) fn serve<D: Device>(
    job: &Job,
    poll: Poll,
    device: &mut D,
    line: &mut Line,
    out: &mut dyn Write,
) -> Result<()> {
    converse(job, Role::Server, poll, device, line, out)
}

fn converse<D: Device>(
    job: &Job,
    role: Role,
    poll: Poll,
    device: &mut D,
    line: &mut Line,
    out: &mut dyn Write,
) -> Result<()> {
    let report = match job.program {
        Compat::Perftest => perftest::run(job, role, poll, device, line),
        Compat::Pingpong => pingpong::run(job, role, poll, device, line),
    }?;
    let text = if job.json {
        serde_json::to_string(&report)?
    } else {
        report.table()
    };
    writeln!(out, "{text}").context("cannot write the results")?;
    out.flush().context("cannot write the results")
}
