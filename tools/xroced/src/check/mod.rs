//! `--check`: what would happen, in plain words, and what is wrong.

mod device;
mod features;
mod host;
mod socket;

use std::io::Write;

use anyhow::Result;
use xroce_daemon::{Below, Limits};

use crate::options::Cli;
use crate::plan::Plan;

/// Lines for people, and what is wrong.
#[derive(Debug, Default)]
struct Findings {
    lines: Vec<String>,
    wrong: Vec<String>,
}

impl Findings {
    /// A heading.
    fn about(&mut self, text: impl Into<String>) {
        self.lines.push(text.into());
    }

    /// A line below it.
    fn say(&mut self, text: impl AsRef<str>) {
        self.lines.push(format!("  {}", text.as_ref()));
    }

    /// Something that prevents what is configured, with its remedy.
    fn wrong(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.say(format!("WRONG: {text}"));
        self.wrong.push(text);
    }
}

/// Explains; whether nothing is wrong.
///
/// # Errors
/// The configuration is none, or the output is closed.
pub(crate) fn run(cli: &Cli, out: &mut dyn Write) -> Result<bool> {
    let plan = Plan::new(&cli.all()?)?;
    crate::log::filter(plan.log.as_deref())?;
    let mut found = Findings::default();
    for device in &plan.daemon.devices {
        device::check(device, &mut found);
    }
    host::check_cores(&plan.daemon.devices, &mut found);
    let is_xdp = |below: &Below| matches!(below, Below::Xdp { .. });
    if plan.daemon.devices.iter().any(|d| is_xdp(&d.below)) {
        host::check_privileges(&plan.daemon.devices, &mut found);
    }
    socket::check(&plan, &mut found);
    host::check_descriptors(&plan.daemon, &mut found);
    limits(&plan.daemon.limits, &mut found);
    for line in &found.lines {
        writeln!(out, "{line}")?;
    }
    match found.wrong.len() {
        0 => writeln!(out, "nothing is wrong; xroced would start")?,
        1 => writeln!(out, "one thing is wrong; it is marked above")?,
        n => writeln!(out, "{n} things are wrong; they are marked above")?,
    }
    Ok(found.wrong.is_empty())
}

fn limits(limits: &Limits, found: &mut Findings) {
    found.about("limits of one process");
    let Limits {
        qps,
        queue_depth,
        cqs,
        cq_depth,
        srqs,
        mrs,
        mws,
        ahs,
        bytes,
        queue_bytes,
        wqes_per_poll,
    } = limits;
    found.say(format!(
        "{qps} queue pairs and {srqs} shared receive queues of up to {queue_depth} work requests"
    ));
    found.say(format!(
        "{cqs} completion queues of up to {cq_depth} entries"
    ));
    found.say(format!(
        "{mrs} memory regions of {bytes} bytes together, {mws} windows, {ahs} address handles"
    ));
    found.say(format!(
        "{queue_bytes} bytes for its queues here, {wqes_per_poll} work requests at a time"
    ));
}
