//! Hardware virtualisation or emulation, and the memory of which works here.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::command::{command, output};
use crate::qemu::{QEMU, VmConfig};

/// How a machine's instructions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// KVM if the image comes up with it, otherwise emulation. `/dev/kvm` alone tells little:
    /// inside some virtual machines it is there and a kernel crawls or dies under it. What was
    /// found is kept beside the image until the host boots again or its QEMU changes.
    Auto,
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's emulation.
    Tcg,
}

/// What this host is, as far as it can change the answer.
#[derive(Debug)]
pub(crate) struct Memory {
    file: PathBuf,
    key: String,
}

impl Memory {
    pub(crate) fn of(config: &VmConfig) -> Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let version = output(&mut command(QEMU, ["--version"]))?;
        let version = String::from_utf8_lossy(&version).into_owned();
        let version = version.lines().next().unwrap_or_default();
        let cpu = config.cpu.as_deref().unwrap_or("host");
        let folder = config
            .image
            .kernel
            .parent()
            .unwrap_or_else(|| Path::new("."));
        Ok(Self {
            file: folder.join("accel"),
            key: format!("{} | {version} | {cpu}", boot.trim()),
        })
    }

    /// What was found before.
    pub(crate) fn recall(&self) -> Option<Accel> {
        let text = fs::read_to_string(&self.file).ok()?;
        match text.strip_prefix(self.key.as_str())? {
            "\nkvm\n" => Some(Accel::Kvm),
            "\ntcg\n" => Some(Accel::Tcg),
            _ => None,
        }
    }

    /// Keeps it. Best effort: the next run can find out anew.
    pub(crate) fn keep(&self, accel: Accel) {
        let word = if accel == Accel::Kvm { "kvm" } else { "tcg" };
        let _ = fs::write(&self.file, format!("{}\n{word}\n", self.key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_the_host_that_gave_it() {
        let dir = tempfile::tempdir().unwrap();
        let memory = |key: &str| Memory {
            file: dir.path().join("accel"),
            key: key.to_owned(),
        };
        assert_eq!(memory("a").recall(), None);
        memory("a").keep(Accel::Kvm);
        assert_eq!(memory("a").recall(), Some(Accel::Kvm));
        assert_eq!(memory("b").recall(), None);
        memory("b").keep(Accel::Tcg);
        assert_eq!(memory("b").recall(), Some(Accel::Tcg));
        assert_eq!(memory("").recall(), None);
    }
}
