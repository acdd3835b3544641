//! Boots a machine and runs a script in it, or asks it what it has:
//! `cargo run -p xroce-vm --example boot -- [6.1|6.12 [SCRIPT]]`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use anyhow::{Result, bail};
use xroce_vm::{Cache, Kernel, Net, Vlan, Vm, VmConfig, prepare};

fn main() -> Result<()> {
    let kernel = match std::env::args().nth(1).as_deref() {
        None | Some("6.12") => Kernel::V6_12,
        Some("6.1") => Kernel::V6_1,
        Some(other) => bail!("{other}: 6.1 or 6.12"),
    };
    let cache = Cache::from_env()?;
    let image = prepare(&cache, kernel, &[], &mut |line| println!("{line}"))?;

    let dir = tempfile::tempdir()?;
    let net = Net::Dgram {
        local: dir.path().join("net.sock"),
        remote: dir.path().join("nobody.sock"),
    };
    let mut config = VmConfig::new(image, net, dir.path().to_owned());
    config.v4 = Some(("10.0.0.2".parse()?, 24));
    config.v6 = Some(("fd00::2".parse()?, 64));
    config.vlan = Some(Vlan {
        id: 5,
        v4: ("10.5.0.2".parse()?, 24),
        v6: ("fd05::2".parse()?, 64),
    });
    let mut vm = Vm::boot(&config)?;
    println!(
        "{} up after {:.1?} ({:?})",
        vm.release(),
        vm.boot_time(),
        vm.accel()
    );
    let script = std::env::args().nth(2);
    let script = script.as_deref().unwrap_or("rdma link; ip -br addr");
    let output = vm.agent().exec(script, Duration::from_secs(600))?;
    print!("{}", output.ok()?);
    for gid in vm.agent().gids()? {
        println!("gid {} {} on {}", gid.index, gid.addr, gid.ndev);
    }
    Ok(())
}
