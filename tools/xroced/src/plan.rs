//! What is to be done, from what the user says.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use xroce_control::SOCKET_DEFAULT;
use xroce_daemon::{Below, DaemonConfig, DeviceConfig, Limits};
use xroce_engine::PollMode;

use crate::options::{DevArg, DeviceTable, Options, PollArg, UdpArg};

/// Receive chunks of an AF_XDP device: more than the windows of a few queue pairs.
const RING_SIZE: u32 = 4096;
/// Longest time to drain, s: longer than any retry takes.
const DRAIN_MAX: u64 = 3600;
/// Bytes of the path of a socket; the kernel has 108 with the zero.
const PATH_MAX: usize = 107;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub daemon: DaemonConfig,
    pub metrics: Option<SocketAddr>,
    pub log: Option<String>,
}

impl Plan {
    /// What `options` come to.
    ///
    /// # Errors
    /// A value that cannot be, with its flag and what can.
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let devices = devices(options)?;
        ensure!(
            !devices.is_empty(),
            "no device: give --dev IF for AF_XDP, --udp ADDR for a socket, or a [[device]] in --config"
        );
        let socket = options.socket.clone();
        let socket = socket.unwrap_or_else(|| SOCKET_DEFAULT.into());
        let length = socket.as_os_str().len();
        ensure!(
            length <= PATH_MAX,
            "--socket: the path has {length} bytes, a socket's may have {PATH_MAX}"
        );
        let mut daemon = DaemonConfig::new(socket, devices);
        if let Some(mode) = options.mode {
            daemon.mode = mode.0;
        }
        daemon.group = options.group.as_deref().map(group).transpose()?;
        let number = |flag: &str, given: Option<u32>, default: u32| {
            let n = given.unwrap_or(default);
            ensure!(n != 0, "--{flag} 0: nobody could attach; give 1 or more");
            Ok(n)
        };
        daemon.sessions = number("sessions", options.sessions, daemon.sessions)?;
        daemon.sessions_per_user = number(
            "sessions-per-user",
            options.sessions_per_user,
            daemon.sessions_per_user,
        )?;
        daemon.limits = limits(options);
        if let Some(seconds) = options.drain {
            ensure!(
                seconds <= DRAIN_MAX,
                "--drain {seconds}: the limit is {DRAIN_MAX} s"
            );
            daemon.drain = Duration::from_secs(seconds);
        }
        Ok(Self {
            daemon,
            metrics: options.metrics,
            log: options.log.clone(),
        })
    }
}

fn limits(options: &Options) -> Limits {
    let usual = Limits::default();
    Limits {
        qps: options.limit_qps.unwrap_or(usual.qps),
        queue_depth: options.limit_queue_depth.unwrap_or(usual.queue_depth),
        cqs: options.limit_cqs.unwrap_or(usual.cqs),
        cq_depth: options.limit_cq_depth.unwrap_or(usual.cq_depth),
        srqs: options.limit_srqs.unwrap_or(usual.srqs),
        mrs: options.limit_mrs.unwrap_or(usual.mrs),
        mws: options.limit_mws.unwrap_or(usual.mws),
        ahs: options.limit_ahs.unwrap_or(usual.ahs),
        bytes: options.limit_bytes.unwrap_or(usual.bytes),
        queue_bytes: options.limit_queue_bytes.unwrap_or(usual.queue_bytes),
        wqes_per_poll: options.limit_wqes_per_poll.unwrap_or(usual.wqes_per_poll),
    }
}

/// The number of a group.
fn group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = nix::unistd::Group::from_name(name);
    let found = found.with_context(|| format!("--group {name}"))?;
    let found = found.ok_or_else(|| {
        anyhow!("--group {name}: there is no such group; make it (groupadd --system {name})")
    })?;
    Ok(found.gid.as_raw())
}

/// All devices: of `--dev`, of `--udp`, of the tables.
fn devices(options: &Options) -> Result<Vec<DeviceConfig>> {
    let ring_size = options.ring_size.unwrap_or(RING_SIZE);
    let mut devices = Vec::new();
    for dev in &options.dev {
        devices.push(DeviceConfig::new(xdp(dev, ring_size)?));
    }
    for udp in &options.udp {
        devices.push(DeviceConfig::new(socket(udp)));
    }
    let cores = options.core.len();
    ensure!(
        cores == 0 || cores == devices.len(),
        "--core: {cores} cores for {} devices; give one for each, or none",
        devices.len()
    );
    for (device, core) in devices.iter_mut().zip(&options.core) {
        device.core = Some(*core);
    }
    for device in &mut devices {
        device.poll = mode(options.poll);
    }
    for (table, n) in options.device.iter().zip(1..) {
        let device = of_table(table, options.poll, ring_size);
        devices.push(device.with_context(|| format!("[[device]] number {n}"))?);
    }
    Ok(devices)
}

fn of_table(table: &DeviceTable, poll: Option<PollArg>, ring_size: u32) -> Result<DeviceConfig> {
    let ring_size = table.ring_size.unwrap_or(ring_size);
    let below = match (&table.dev, &table.udp) {
        (Some(dev), None) => xdp(dev, ring_size)?,
        (None, Some(udp)) => socket(udp),
        (None, None) => bail!("it has neither dev nor udp: give one"),
        (Some(_), Some(_)) => bail!("it has both dev and udp: give one"),
    };
    let mut device = DeviceConfig::new(below);
    if let Some(name) = &table.name {
        ensure!(!name.is_empty(), "name: it is empty");
        device.name.clone_from(name);
    }
    device.poll = mode(table.poll.or(poll));
    device.core = table.core;
    Ok(device)
}

fn xdp(dev: &DevArg, ring_size: u32) -> Result<Below> {
    ensure!(
        ring_size.is_power_of_two() && (64..=16384).contains(&ring_size),
        "ring-size {ring_size}: give a power of two from 64 to 16384"
    );
    Ok(Below::Xdp {
        ifname: dev.ifname.clone(),
        queue: dev.queue,
        ring_size,
    })
}

fn socket(udp: &UdpArg) -> Below {
    Below::Udp {
        addr: udp.addr,
        ifname: udp.ifname.clone(),
    }
}

const fn mode(poll: Option<PollArg>) -> PollMode {
    match poll {
        Some(PollArg::Busy) => PollMode::Busy,
        Some(PollArg::Adaptive) | None => PollMode::Adaptive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Cli;
    use clap::{CommandFactory, Parser};

    fn cli(text: &str) -> Options {
        let args = std::iter::once("xroced").chain(text.split_whitespace());
        Cli::try_parse_from(args).unwrap().options
    }

    fn plan(flags: &str, file: &str) -> Result<Plan> {
        let file = toml::from_str(file).map_err(anyhow::Error::from)?;
        Plan::new(&cli(flags).over(file))
    }

    #[test]
    fn the_file_has_the_names_of_the_flags_and_every_limit_is_among_them() {
        let command = Cli::command();
        let flags: Vec<&str> = command
            .get_arguments()
            .filter_map(|a| a.get_long())
            .collect();
        let limits = serde_json::to_value(Limits::default()).unwrap();
        for (n, limit) in (1..).zip(limits.as_object().unwrap().keys()) {
            let flag = format!("limit-{}", limit.replace('_', "-"));
            assert!(flags.contains(&flag.as_str()), "{flag}");
            let made = plan("--udp 127.0.0.1", &format!("{flag} = {n}")).unwrap();
            let made = serde_json::to_value(made.daemon.limits).unwrap();
            assert_eq!(made[limit], n, "{flag}");
        }
        let refused = toml::from_str::<Options>("nonsense = 1")
            .unwrap_err()
            .to_string();
        for flag in flags {
            let known = refused.contains(&format!("`{flag}`"));
            let only_flag = ["config", "check"].contains(&flag);
            assert_ne!(known, only_flag, "{flag}: {refused}");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = "udp = [\"127.0.0.9\"]\ncore = [3]\nsocket = \"/run/a\"\nmode = \"0600\"\n\
            sessions = 7\nlog = \"debug\"\n";
        let plan = plan("--udp 127.0.0.1 --sessions 8 --poll busy", file).unwrap();
        let daemon = plan.daemon;
        assert_eq!(daemon.devices.len(), 1);
        assert_eq!(daemon.devices[0].name, "udp:127.0.0.1");
        assert_eq!(daemon.devices[0].poll, PollMode::Busy);
        assert_eq!(daemon.devices[0].core, None);
        assert_eq!(daemon.sessions, 8);
        assert_eq!(daemon.mode, 0o600);
        assert_eq!(daemon.socket.to_str(), Some("/run/a"));
        assert_eq!(plan.log.as_deref(), Some("debug"));
    }

    #[test]
    fn tables_describe_devices_one_by_one() {
        let file = "poll = \"busy\"\n[[device]]\ndev = \"eth1:2\"\ncore = 4\nring-size = 128\n\
            [[device]]\nudp = \"fe80::1%eth1\"\nname = \"link\"\npoll = \"adaptive\"\n";
        let devices = plan("", file).unwrap().daemon.devices;
        assert_eq!(devices[0].name, "eth1:2");
        assert_eq!(
            (devices[0].core, devices[0].poll),
            (Some(4), PollMode::Busy)
        );
        let ring = matches!(
            devices[0].below,
            Below::Xdp {
                queue: 2,
                ring_size: 128,
                ..
            }
        );
        assert!(ring, "{devices:?}");
        assert_eq!(
            (devices[1].name.as_str(), devices[1].poll),
            ("link", PollMode::Adaptive)
        );
        let below = Below::Udp {
            addr: "fe80::1".parse().unwrap(),
            ifname: Some("eth1".to_owned()),
        };
        assert_eq!(devices[1].below, below);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name_and_what_can() {
        for (flags, file, words) in [
            ("", "", &["no device", "--dev", "--udp"][..]),
            (
                "--udp 127.0.0.1 --core 1 --core 2",
                "",
                &["2 cores for 1 devices"],
            ),
            (
                "--dev eth1",
                "ring-size = 100",
                &["ring-size 100", "64 to 16384"],
            ),
            ("--udp ::1 --sessions 0", "", &["--sessions 0", "1 or more"]),
            ("--udp ::1 --drain 9999", "", &["--drain 9999", "3600"]),
            (
                "--udp ::1 --group nonsense-x",
                "",
                &["nonsense-x", "groupadd"],
            ),
            ("--udp ::1", "scoket = \"/x\"", &["scoket", "socket"]),
            ("--udp ::1", "mode = \"0999\"", &["0999", "octal"]),
            ("", "dev = [\"eth1:x\"]", &["eth1:x", "queue"]),
            (
                "",
                "[[device]]\nname = \"x\"",
                &["number 1", "neither dev nor udp"],
            ),
            ("", "[[device]]\nudp = \"::1\"\ndev = \"e\"", &["both"]),
            (
                "",
                "[[device]]\nudp = \"::1\"\nqueue = 1",
                &["queue", "expected"],
            ),
        ] {
            let error = plan(flags, file).expect_err(file);
            let text = format!("{error:#}");
            let missing: Vec<_> = words.iter().filter(|w| !text.contains(**w)).collect();
            assert!(missing.is_empty(), "{text:?} lacks {missing:?}");
        }
    }
}
