//! Runs scenarios on a kernel and collects what came of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use xroce_vm::{Accel, Image, Net, Vlan, Vm, VmConfig};

use crate::archive::{Archive, Place};
use crate::check;
use crate::clock;
use crate::fabric::{Fabric, MTU, Route, VLAN, VM_MAC, guest_neighbours, standard};
use crate::report::Row;
use crate::scenario::{Outcome, Programs, Scenario, Stage};

/// For commands that take no time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Seed of the faults unless told otherwise.
pub(crate) const SEED: u64 = 1;

/// Last words of a machine that died.
const CONSOLE: &str = "console.log";

/// What to run, and where results go.
pub(crate) struct Orders<'a> {
    /// Seed of the faults.
    pub seed: u64,
    /// Where captures of failures go.
    pub dir: &'a Path,
    /// Keep the captures of what passed too.
    pub keep: bool,
    /// How the machine runs.
    pub accel: Accel,
    /// Random programs.
    pub programs: Programs,
    /// Our end is a device of a daemon.
    pub daemon: bool,
}

/// All scenarios that the orders name, on one kernel.
///
/// # Errors
/// The machine or the network could not be made; a scenario that fails is a row that says so.
pub(crate) fn kernel(
    image: &Image,
    scenarios: &[Scenario],
    orders: &Orders<'_>,
) -> Result<(Vec<Row>, u64, Accel)> {
    let scratch = tempfile::Builder::new()
        .prefix("xroce-interop-")
        .tempdir()
        .context("folder for sockets and frames")?;
    let mut archive = Archive::create(scratch.path().join("all.pcap"))?;
    let mut stage = set_up(image, scratch.path(), orders)?;
    let accel = stage.vm.accel();
    let bar = progress(scenarios.len() as u64);
    let mut done: Vec<(Row, Place)> = Vec::new();
    for scenario in scenarios {
        bar.set_message(format!("{}, {}", scenario.name, scenario.direction.name()));
        let started = clock::now();
        let result = (scenario.run)(&mut stage, scenario);
        let record = match stage.record.take() {
            Some(record) => record,
            None => stage.fabric.finish()?,
        };
        let result = result.and_then(|outcome| standard::check(&record).map(|()| outcome));
        let place = archive.add(&record)?;
        let packets = record.frames.iter().filter(|f| f.packet.is_some()).count() as u64;
        let row = row(scenario, image, result, started, packets);
        if let Some(why) = &row.error {
            bar.println(format!(
                "FAILED {}, {}, {}, {} B: {why}",
                row.scenario, row.direction, row.network, row.path_mtu
            ));
            if stage.vm.agent().counters().is_err() {
                let console = orders.dir.join(CONSOLE);
                bar.println(format!(
                    "the machine does not answer any more ({}): starting another",
                    console.display()
                ));
                fs::write(&console, stage.vm.console()).context(CONSOLE)?;
                drop(stage);
                stage = set_up(image, scratch.path(), orders)?;
            }
        }
        done.push((row, place));
        bar.inc(1);
    }
    bar.finish_and_clear();
    drop(stage);
    let checked = verdicts(&mut archive, &mut done)?;
    keep(&mut archive, &mut done, orders)?;
    Ok((
        done.into_iter().map(|(row, _)| row).collect(),
        checked,
        accel,
    ))
}

fn set_up(image: &Image, dir: &Path, orders: &Orders<'_>) -> Result<Stage> {
    let fabric = Fabric::new(dir)?;
    let (ours, theirs) = fabric.sockets();
    let net = Net::Dgram {
        local: theirs.to_owned(),
        remote: ours.to_owned(),
    };
    let address = |v6, vlan| Route { v6, vlan }.ip(2);
    let (std::net::IpAddr::V4(v4), std::net::IpAddr::V6(v6)) =
        (address(false, false), address(true, false))
    else {
        unreachable!("the families are the ones asked for")
    };
    let (std::net::IpAddr::V4(tagged_v4), std::net::IpAddr::V6(tagged_v6)) =
        (address(false, true), address(true, true))
    else {
        unreachable!("the families are the ones asked for")
    };
    let mut vm = Vm::boot(&VmConfig {
        name: "rxe".to_owned(),
        netns: Some(fabric.netns.name().to_owned()),
        mac: VM_MAC,
        mtu: MTU.into(),
        v4: Some((v4, 24)),
        v6: Some((v6, 64)),
        vlan: Some(Vlan {
            id: VLAN,
            v4: (tagged_v4, 24),
            v6: (tagged_v6, 64),
        }),
        accel: orders.accel,
        ..VmConfig::new(image.clone(), net, dir.to_owned())
    })?;
    let command = guest_neighbours();
    vm.agent().exec(&command, PATIENCE)?.ok().context(command)?;
    Ok(Stage::new(
        vm,
        fabric,
        orders.seed,
        orders.programs,
        orders.daemon,
    ))
}

fn progress(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}");
    let bar = ProgressBar::new(len);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

fn row(
    scenario: &Scenario,
    image: &Image,
    result: Result<Outcome>,
    started: Instant,
    packets: u64,
) -> Row {
    let (outcome, error) = match result {
        Ok(outcome) => (outcome, None),
        Err(e) => (Outcome::default(), Some(format!("{e:#}"))),
    };
    Row {
        scenario: scenario.name.clone(),
        direction: scenario.direction.name(),
        kernel: image.release.clone(),
        network: scenario.route.name(),
        path_mtu: scenario.mtu.bytes(),
        passed: error.is_none(),
        error,
        retransmitted: outcome.retransmitted,
        figure: outcome.figure,
        notes: outcome.notes,
        packets,
        seconds: started.elapsed().as_secs_f64(),
        pcap: None,
    }
}

/// Frames that tshark or the ICRC check object to fail their scenarios.
fn verdicts(archive: &mut Archive, done: &mut [(Row, Place)]) -> Result<u64> {
    let findings = check::capture(archive.path()?)?;
    for (what, frames) in [
        ("wrong ICRCs", &findings.bad_icrc),
        ("packets that tshark calls malformed", &findings.malformed),
    ] {
        let frames: BTreeSet<u64> = frames.iter().copied().collect();
        for (row, place) in done.iter_mut() {
            let first = frames.range(place.frames.clone()).next();
            if let Some(frame) = first {
                let count = frames.range(place.frames.clone()).count();
                let why = format!(
                    "{count} {what}, the first in frame {}",
                    frame - place.frames.start + 1
                );
                row.passed = false;
                row.error = Some(match row.error.take() {
                    Some(before) => format!("{before}; {why}"),
                    None => why,
                });
            }
        }
    }
    Ok(findings.packets)
}

/// Writes the captures that are asked for, or needed.
fn keep(archive: &mut Archive, done: &mut [(Row, Place)], orders: &Orders<'_>) -> Result<()> {
    for (row, place) in done.iter_mut() {
        if row.passed && !orders.keep {
            continue;
        }
        let name = file_name(row);
        archive.extract(place, &orders.dir.join(&name))?;
        row.pcap = Some(name);
    }
    Ok(())
}

fn file_name(row: &Row) -> String {
    let text = format!(
        "{} {} {} {} {}",
        row.scenario,
        row.direction.replace('→', "to"),
        row.network,
        row.path_mtu,
        row.kernel
    );
    let words: Vec<String> = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    words.join("-") + ".pcap"
}

/// Makes the folder of the report, empty of captures of earlier runs.
pub(crate) fn folder(dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    for entry in fs::read_dir(dir)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "pcap") {
            fs::remove_file(path)?;
        }
    }
    Ok(dir.to_owned())
}
