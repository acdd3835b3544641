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

/// What the machine's kernel said, as far as it is of use.
const KERNEL_LOG: &str = "dmesg | tail -n 1000";

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
    /// How often everything runs.
    pub repeat: u32,
    /// A script for the machine, first of all.
    pub guest: Option<&'a str>,
}

/// End of the name of the file that tells a capture's packets and what became of them.
const STORY: &str = ".pcap.txt";

/// Name of the record of a scenario as a whole.
const WHOLE: &str = "";

/// A scenario that has run: what came of it, and where its records are.
struct Done {
    row: Row,
    places: Vec<(&'static str, Place)>,
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
    let bar = progress(scenarios.len() as u64 * u64::from(orders.repeat));
    let mut done: Vec<Done> = Vec::new();
    let all = (1..=orders.repeat).flat_map(|n| scenarios.iter().map(move |s| (n, s)));
    for (repetition, scenario) in all {
        bar.set_message(format!("{}, {}", scenario.name, scenario.direction.name()));
        let started = clock::now();
        let result = (scenario.run)(&mut stage, scenario);
        let mut records = std::mem::take(&mut stage.failed);
        match stage.record.take() {
            Some(record) => records.push((WHOLE, record)),
            // A failed repetition was the end of it.
            None if !records.is_empty() => {}
            None => records.push((WHOLE, stage.fabric.finish()?)),
        }
        let standard = records.iter().try_for_each(|(_, r)| standard::check(r));
        let result = result.and_then(|outcome| standard.map(|()| outcome));
        let packets = records.iter().flat_map(|(_, r)| &r.frames);
        let packets = packets.filter(|f| f.packet.is_some()).count() as u64;
        let mut row = row(scenario, image, result, started, packets);
        row.repetition = repetition;
        let mut places = Vec::new();
        for (name, record) in &records {
            places.push((*name, archive.add(record)?));
        }
        let mut one = Done { row, places };
        keep(&mut archive, &mut one, orders)?;
        for (name, record) in &records {
            if one.row.pcaps.contains(&file_name(&one.row, name)) {
                let file = file_name(&one.row, name).replace(".pcap", STORY);
                let story = record.story() + &kernel_log(&mut stage);
                fs::write(orders.dir.join(file), story).context("what the cable did")?;
            }
        }
        if one.row.error.is_some() {
            say_failed(&bar, &one.row);
            if stage.vm.agent().counters().is_err() {
                keep_console(&bar, &stage, orders)?;
                drop(stage);
                stage = set_up(image, scratch.path(), orders)?;
            }
        }
        done.push(one);
        bar.inc(1);
    }
    bar.finish_and_clear();
    drop(stage);
    let checked = verdicts(&mut archive, &mut done)?;
    for one in &mut done {
        keep(&mut archive, one, orders)?;
    }
    Ok((
        done.into_iter().map(|one| one.row).collect(),
        checked,
        accel,
    ))
}

fn say_failed(bar: &ProgressBar, row: &Row) {
    let why = row.error.as_deref().unwrap_or_default();
    bar.suspend(|| {
        eprintln!(
            "FAILED {}, {}, {}, {} B: {why}",
            row.scenario, row.direction, row.network, row.path_mtu
        );
    });
}

/// What a machine that does not answer any more has said last.
fn keep_console(bar: &ProgressBar, stage: &Stage, orders: &Orders<'_>) -> Result<()> {
    let console = orders.dir.join(CONSOLE);
    bar.suspend(|| {
        eprintln!(
            "the machine does not answer any more ({}): starting another",
            console.display()
        );
    });
    fs::write(&console, stage.vm.console()).context(CONSOLE)
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
    for command in [command.as_str()].into_iter().chain(orders.guest) {
        let output = vm.agent().exec(command, PATIENCE)?;
        output.ok().with_context(|| command.to_owned())?;
    }
    Ok(Stage::new(
        vm,
        fabric,
        orders.seed,
        orders.programs,
        orders.daemon,
    ))
}

/// The last that the machine's kernel said.
fn kernel_log(stage: &mut Stage) -> String {
    match stage.vm.agent().exec(KERNEL_LOG, PATIENCE) {
        Ok(output) => format!("\nThe machine's kernel:\n{}", output.text),
        Err(e) => format!("\nThe machine's kernel cannot be asked: {e:#}\n"),
    }
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
        peer_faults: outcome.peer_faults,
        packets,
        seconds: started.elapsed().as_secs_f64(),
        repetition: 1,
        pcaps: Vec::new(),
    }
}

/// Frames that tshark or the ICRC check object to fail their scenarios.
fn verdicts(archive: &mut Archive, done: &mut [Done]) -> Result<u64> {
    let findings = check::capture(archive.path()?)?;
    for (what, frames) in [
        ("wrong ICRCs", &findings.bad_icrc),
        ("packets that tshark calls malformed", &findings.malformed),
    ] {
        let frames: BTreeSet<u64> = frames.iter().copied().collect();
        for Done { row, places } in done.iter_mut() {
            for (name, place) in places {
                let Some(frame) = frames.range(place.frames.clone()).next() else {
                    continue;
                };
                let count = frames.range(place.frames.clone()).count();
                let why = format!(
                    "{count} {what}, the first in frame {} of {}",
                    frame - place.frames.start + 1,
                    file_name(row, name)
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

/// Writes the captures that are asked for, or needed: of a scenario that failed in one of its
/// repetitions, those of that.
fn keep(archive: &mut Archive, one: &mut Done, orders: &Orders<'_>) -> Result<()> {
    let Done { row, places } = one;
    let in_parts = places.iter().any(|(name, _)| *name != WHOLE);
    for (name, place) in places.iter() {
        let needed = if *name == WHOLE {
            !row.passed && !in_parts
        } else {
            true
        };
        let file = file_name(row, name);
        if (needed || orders.keep) && !row.pcaps.contains(&file) {
            archive.extract(place, &orders.dir.join(&file))?;
            row.pcaps.push(file);
        }
    }
    Ok(())
}

/// Of the capture of a row, or of the part of this name.
fn file_name(row: &Row, part: &str) -> String {
    let repetition = match row.repetition {
        1 => String::new(),
        n => format!("run {n}"),
    };
    let text = format!(
        "{} {} {} {} {} {repetition} {part}",
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
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = name.ends_with(".pcap") || name.ends_with(STORY);
        if ours {
            fs::remove_file(path)?;
        }
    }
    Ok(dir.to_owned())
}
