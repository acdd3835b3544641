//! A virtual machine running Linux with `rdma_rxe`, the RoCEv2 implementation of the kernel, for
//! tests that want a peer nobody here wrote.
//!
//! Three steps, each of which can be repeated at little cost:
//!
//! 1. [`prepare`] fetches Debian's kernel and tool packages into a [`Cache`] and builds from them
//!    what a machine boots: an ELF `vmlinux` and an initramfs. Nothing is installed on the host.
//! 2. [`Vm::boot`] starts QEMU with it: by KVM where that works, by emulation elsewhere.
//! 3. [`Vm::agent`] does inside what the test asks for: runs programs, makes queue pairs, posts
//!    work and reports completions.
//!
//! ```no_run
//! use xroce_vm::{Cache, Kernel, Net, Vm, VmConfig, prepare};
//! # fn main() -> anyhow::Result<()> {
//! let cache = Cache::from_env()?;
//! let image = prepare(&cache, Kernel::V6_12, &[], &mut |line| eprintln!("{line}"))?;
//! let net = Net::Tap { ifname: "tap0".to_owned() };
//! let mut vm = Vm::boot(&VmConfig::new(image, net, "/run/xroce".into()))?;
//! for gid in vm.agent().gids()? {
//!     eprintln!("{} {}", gid.index, gid.addr);
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod accel;
mod agent;
mod boot;
mod cache;
mod command;
mod cpio;
mod elf;
mod image;
mod modules;
mod packages;
mod protocol;
mod qemu;
mod vmlinux;

pub use accel::Accel;
pub use agent::{Agent, Completion, Gid, Output};
pub use boot::Vm;
pub use cache::Cache;
pub use image::{Extra, Image, prepare};
pub use packages::Kernel;
pub use protocol::{Answer, Refused};
pub use qemu::{Net, Vlan, VmConfig};
