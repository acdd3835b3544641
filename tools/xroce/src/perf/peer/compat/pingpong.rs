//! A conversation with `ibv_rc_pingpong`, as either side: one message each way, "done" from the
//! client, then traffic; the TCP connection is closed before that begins.

use anyhow::{Result, bail};
use xroce_proto::memory::Access;
use xroce_wire::newtypes::PathMtu;

use super::bandwidth::Receives;
use super::job::Job;
use super::latency;
use super::line::{Line, Role};
use super::message::{ADDRESS_LEN, Address, DONE};
use super::report::{Latency, Report, Row};
use super::session::{Session, peer_gid};
use crate::perf::args::Poll;
use crate::perf::client::own_path_mtu;
use crate::perf::device::Device;
use crate::perf::measure::flow::{Attributes, Flow, RemoteAreas};
use crate::perf::peer::message::QpData;
use crate::perf::plan::{Op, Repair, Shape, Step, Test};

/// Names of the messages.
const ADDRESS: &str = "address";
const LAST: &str = "done";

/// Does `job` as `role`.
///
/// # Errors
/// One line that says what is wrong.
pub(super) fn run<D: Device>(
    job: &Job,
    role: Role,
    poll: Poll,
    device: &mut D,
    line: &mut Line,
) -> Result<Report> {
    // It is not negotiated.
    let path_mtu = own_path_mtu(device, job.mtu)?;
    let mut report = Report::new(job, role, line, device);
    report.path_mtu = path_mtu.bytes();
    let size = job.max_size();
    let mut flow = Flow::with_memory(device, u64::from(size.next_multiple_of(8)), 1, poll)?;
    let shape = Shape {
        qps: 1,
        depth: 1,
        receives: job.rx_depth,
        slots: 1,
        stride: size,
        round: None,
    };
    let own = flow.start_step(shape, Access::empty())?;
    let Some(&QpData { qpn, psn }) = own.first() else {
        bail!("no queue pair");
    };
    let receives = Receives::post(&mut flow, 1, size, job.iterations, job.rx_depth)?;
    let gid = flow.device().local().into();
    let address = Address { qpn, psn, gid };
    let step = Step {
        op: Op::Send,
        test: Test::Lat,
        size,
        qps: 1,
        depth: 1,
        rate: None,
    };
    Session::new(flow, line, role, own, job.patience).finish(|session| {
        introduce(session, address, path_mtu, job.repair)?;
        session.may_leave = true;
        let found = latency::run(session, step, 1, job.iterations, Some(receives))?;
        let mut row = Row::new(size, job.iterations);
        row.latency = Some(Latency::of(&found, step.op));
        report.rows.push(row);
        session.linger()?;
        report.count(&mut session.flow)
    })?;
    Ok(report)
}

/// Exchanges addresses and connects.
fn introduce<D: Device>(
    session: &mut Session<'_, D>,
    own: Address,
    path_mtu: PathMtu,
    repair: Repair,
) -> Result<()> {
    let own = own.encode();
    if session.role == Role::Client {
        let theirs = session.swap(ADDRESS, &own)?;
        connect(session, &theirs, path_mtu, repair)?;
        return Ok(session.line.send(LAST, &DONE)?);
    }
    let theirs = session.receive(ADDRESS)?;
    // Before the answer: the client's first message may follow at once.
    connect(session, &theirs, path_mtu, repair)?;
    session.line.send(ADDRESS, &own)?;
    let last: [u8; DONE.len()] = session.receive(LAST)?;
    if last != DONE {
        let got = last.escape_ascii();
        bail!("the peer sent \"{got}\" where \"done\" was expected");
    }
    Ok(())
}

fn connect<D: Device>(
    session: &mut Session<'_, D>,
    theirs: &[u8; ADDRESS_LEN],
    path_mtu: PathMtu,
    repair: Repair,
) -> Result<()> {
    let Address { qpn, psn, gid } = Address::parse(theirs)?;
    let flow = &mut session.flow;
    let gid = peer_gid(gid, flow.device(), "-g")?;
    let path = flow.device().path(gid)?;
    flow.set_peer(vec![RemoteAreas::default()], path_mtu, path);
    let attributes = Attributes {
        reads_in: 1,
        reads_out: 1,
        rnr_retry: 7,
        sends: true,
        repair,
    };
    flow.connect_step(&session.own, &[QpData { qpn, psn }], attributes)
}
