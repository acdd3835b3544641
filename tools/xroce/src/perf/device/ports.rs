//! Which ports the command line asks for: one for each interface, queue or address; or a device of
//! the daemon.

use std::net::IpAddr;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::perf::args::{Backend, DaemonArgs, PortArgs, SeveralArgs};
use crate::perf::device::port;
use crate::perf::device::verbs::Verbs;
use crate::perf::parse::Numbers;
use crate::perf::peer::message::MAX_PORTS;

/// The ports in order; the n-th of one side talks to the n-th of the other. A device of the daemon is
/// one port.
///
/// # Errors
/// The lists differ in length, an option does not go with the backend, or the interface does not exist.
pub(crate) fn ports(
    args: &PortArgs,
    several: &SeveralArgs,
    daemon: &DaemonArgs,
) -> Result<Vec<PortArgs>> {
    let verbs = daemon.verbs();
    if let Some(Verbs::Daemon { .. }) = verbs {
        only_of_ports(args, several)?;
        let mut device = args.clone();
        device.verbs = verbs;
        return Ok(vec![device]);
    }
    let all = own_ports(args, several)?;
    for port in &all {
        port::check(port)?;
    }
    let with = |port| PortArgs {
        verbs: verbs.clone(),
        ..port
    };
    Ok(all.into_iter().map(with).collect())
}

/// Refuses what only a port of this process has a use for.
fn only_of_ports(args: &PortArgs, several: &SeveralArgs) -> Result<()> {
    let number = |n: Option<u32>| n.map(|n| n.to_string());
    let list = |list: &Option<Numbers>| {
        let numbers = list.as_ref()?.0.iter().map(u32::to_string);
        Some(numbers.collect::<Vec<_>>().join(","))
    };
    let given = [
        ("--backend", args.backend.and_then(name)),
        ("--dev", args.dev.clone()),
        ("--queue", number(args.queue)),
        ("--queues", list(&several.queues)),
        ("--ring", number(args.ring)),
        ("--xdp-mode", args.xdp_mode.and_then(name)),
        ("--vlan", number(args.vlan.map(u32::from))),
    ];
    for (option, value) in given {
        if let Some(value) = value {
            bail!(
                "{option} {value} is for a port of this process; with --daemon the daemon has the \
                 port: leave {option} away, --device says which device of the daemon and --local which \
                 of its addresses"
            );
        }
    }
    if let Some(cores) = list(&several.cores) {
        bail!(
            "--cores {cores} is for several ports of this process; with --daemon there is one thread, \
             and the daemon has the engine's: use --core with one core"
        );
    }
    if args.local.len() > 1 {
        bail!(
            "{} addresses with --daemon: one device is one port, give --local one address of it",
            args.local.len()
        );
    }
    Ok(())
}

/// The name of a value on the command line.
fn name(value: impl ValueEnum) -> Option<String> {
    Some(value.to_possible_value()?.get_name().to_owned())
}

fn own_ports(args: &PortArgs, several: &SeveralArgs) -> Result<Vec<PortArgs>> {
    let devices: Vec<Option<&str>> = match &args.dev {
        None => vec![None],
        Some(list) => list.split(',').map(|d| Some(d.trim())).collect(),
    };
    let queues = match &several.queues {
        None => vec![args.queue()],
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
            queue: Some(queue),
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
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        port: PortArgs,
        #[command(flatten)]
        several: SeveralArgs,
        #[command(flatten)]
        daemon: DaemonArgs,
    }

    fn of(line: &str) -> Result<Vec<PortArgs>> {
        let words = ["perf"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words)?;
        match line.daemon.daemon {
            None => own_ports(&line.port, &line.several),
            Some(_) => ports(&line.port, &line.several, &line.daemon),
        }
    }

    /// "DEV QUEUE ADDRESS CORE" of each port.
    fn told(line: &str) -> Vec<String> {
        let told = |p: &PortArgs| {
            let dev = p.dev.as_deref().unwrap_or("-");
            let address = p
                .address()
                .map_or_else(|| "-".to_owned(), |a| a.to_string());
            let core = p.core.map_or_else(|| "-".to_owned(), |c| c.to_string());
            format!("{dev} {} {address} {core}", p.queue())
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

    #[test]
    fn a_device_of_the_daemon_is_one_port() {
        let device = |line: &str| match of(line).unwrap().as_slice() {
            [one] => (one.address(), one.verbs.clone()),
            all => panic!("{} ports", all.len()),
        };
        for (line, socket, name) in [
            ("--daemon", xroce_control::SOCKET_DEFAULT, None),
            ("--daemon x/s --device udp:1", "x/s", Some("udp:1")),
        ] {
            let (local, verbs) = device(line);
            assert_eq!(local, None);
            let Some(Verbs::Daemon { socket: at, device }) = verbs else {
                panic!("no device of the daemon");
            };
            assert_eq!((at.as_path(), device.as_deref()), (Path::new(socket), name));
        }
        // What queue pairs do and where the thread runs is not the port's.
        let (local, _) = device(
            "--daemon --local 10.0.0.1 --core 0 --poll busy --sl 3 --traffic-class 2 --flow-label 7 \
             --hop-limit 3 --rate-limit 1G",
        );
        assert_eq!(local.unwrap().to_string(), "10.0.0.1");
    }

    #[test]
    fn what_only_a_port_has_is_refused_with_the_daemon() {
        for (line, words) in [
            ("--backend udp", "--backend udp is for a port"),
            ("--dev eth0", "--dev eth0 is for a port"),
            ("--queue 0", "--queue 0 is for a port"),
            ("--queues 0-1", "--queues 0,1 is for a port"),
            ("--ring 1024", "--ring 1024 is for a port"),
            ("--xdp-mode auto", "--xdp-mode auto is for a port"),
            ("--vlan 7", "--vlan 7 is for a port"),
            ("--cores 0,1", "use --core with one"),
            ("--local 10.0.0.1,10.0.0.2", "give --local one address"),
        ] {
            let error = of(&format!("--daemon s {line}")).unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
