//! Which ports the command line asks for: one for each interface, queue or address.

use std::net::IpAddr;

use anyhow::{Result, bail};

use super::args::{Backend, PortArgs, SeveralArgs};
use super::message::MAX_PORTS;

/// The ports in order; the n-th of one side talks to the n-th of the other.
///
/// # Errors
/// The lists do not fit together.
pub(crate) fn ports(args: &PortArgs, several: &SeveralArgs) -> Result<Vec<PortArgs>> {
    let devices: Vec<Option<&str>> = match &args.dev {
        None => vec![None],
        Some(list) => list.split(',').map(|d| Some(d.trim())).collect(),
    };
    let queues = match &several.queues {
        None => vec![args.queue],
        Some(list) => list.0.clone(),
    };
    if args.backend() == Backend::Udp && queues.len() > 1 {
        bail!("--queues is for AF_XDP: over UDP give several addresses with --local");
    }
    let mut places: Vec<(Option<&str>, u32)> = Vec::new();
    for &dev in &devices {
        places.extend(queues.iter().map(|&queue| (dev, queue)));
    }
    if places.len() == 1 && args.backend() == Backend::Udp {
        places = places.repeat(args.local.len().max(1));
    }
    let mut different = places.clone();
    different.sort_unstable();
    different.dedup();
    if different.len() != places.len() && args.backend() == Backend::Xdp {
        bail!("the same queue twice: --dev and --queues give each queue of an interface once");
    }
    if places.len() > MAX_PORTS as usize {
        bail!("{} ports, more than {MAX_PORTS}", places.len());
    }
    let cores = cores(args, several, places.len())?;
    let one = |(n, (dev, queue)): (usize, (Option<&str>, u32))| {
        Ok(PortArgs {
            dev: dev.map(str::to_owned),
            queue,
            local: address(&args.local, n, places.len())?,
            core: cores.get(n).copied().flatten(),
            ..args.clone()
        })
    };
    places.iter().copied().enumerate().map(one).collect()
}

/// The address of port `n`: its own, or that of all.
fn address(all: &[IpAddr], n: usize, ports: usize) -> Result<Vec<IpAddr>> {
    match all {
        [] => Ok(Vec::new()),
        [one] => Ok(vec![*one]),
        all if all.len() == ports => Ok(all.get(n).copied().into_iter().collect()),
        all => bail!(
            "{} addresses for {ports} ports: give --local one address, or one for each port",
            all.len()
        ),
    }
}

fn cores(args: &PortArgs, several: &SeveralArgs, ports: usize) -> Result<Vec<Option<usize>>> {
    let Some(list) = &several.cores else {
        if args.core.is_some() && ports > 1 {
            bail!("{ports} ports on one core: give each its own with --cores");
        }
        return Ok(vec![args.core; ports]);
    };
    if list.0.len() != ports {
        bail!(
            "{} cores for {ports} ports: give --cores one for each port",
            list.0.len()
        );
    }
    Ok(list
        .0
        .iter()
        .map(|&core| usize::try_from(core).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        port: PortArgs,
        #[command(flatten)]
        several: SeveralArgs,
    }

    fn of(line: &str) -> Result<Vec<PortArgs>> {
        let words = ["perf"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words)?;
        ports(&line.port, &line.several)
    }

    /// "DEV QUEUE ADDRESS CORE" of each port.
    fn told(line: &str) -> Vec<String> {
        let told = |p: &PortArgs| {
            let dev = p.dev.as_deref().unwrap_or("-");
            let address = p
                .address()
                .map_or_else(|| "-".to_owned(), |a| a.to_string());
            let core = p.core.map_or_else(|| "-".to_owned(), |c| c.to_string());
            format!("{dev} {} {address} {core}", p.queue)
        };
        of(line).unwrap().iter().map(told).collect()
    }

    #[test]
    fn lists_become_ports() {
        assert_eq!(told(""), ["- 0 - -"]);
        assert_eq!(told("--local 10.0.0.1 --core 3"), ["- 0 10.0.0.1 3"]);
        assert_eq!(told("--dev eth0,eth1"), ["eth0 0 - -", "eth1 0 - -"]);
        assert_eq!(
            told("--dev a,b --queues 0-1 --cores 4,5,6,7"),
            ["a 0 - 4", "a 1 - 5", "b 0 - 6", "b 1 - 7"]
        );
        assert_eq!(
            told("--dev a --queues 2,0 --local 10.0.0.1"),
            ["a 2 10.0.0.1 -", "a 0 10.0.0.1 -"]
        );
        assert_eq!(
            told("--dev a --queues 0,1 --local 10.0.0.1,10.0.0.2"),
            ["a 0 10.0.0.1 -", "a 1 10.0.0.2 -"]
        );
        // Over UDP an address is a port.
        assert_eq!(
            told("--local 10.0.0.1,10.0.0.2"),
            ["- 0 10.0.0.1 -", "- 0 10.0.0.2 -"]
        );
    }

    #[test]
    fn lists_that_do_not_fit_say_why() {
        for (line, words) in [
            ("--queues 0-1", "--local"),
            ("--dev a,a", "the same queue twice"),
            ("--dev a --queues 0,0", "the same queue twice"),
            (
                "--dev a,b --local 10.0.0.1,10.0.0.2,10.0.0.3",
                "3 addresses for 2 ports",
            ),
            (
                "--dev a --local 10.0.0.1,10.0.0.2",
                "2 addresses for 1 ports",
            ),
            ("--dev a,b --cores 1", "1 cores for 2 ports"),
            ("--dev a,b --core 1", "--cores"),
            ("--dev a,b,c --queues 0-31", "96 ports, more than 64"),
        ] {
            let error = of(line).unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
