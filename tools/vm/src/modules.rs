//! Kernel modules: which ones are needed, and the tables by which modprobe finds them.
//!
//! The tables are those of depmod(8) in their text form, which busybox reads; what goes into them
//! stands in each module's `.modinfo`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::elf;
use crate::vmlinux::decompress;

/// What newer kernels have no module for any more: they do it in their library.
const GONE: [&str; 1] = ["crc32_generic"];

/// All modules of a kernel package, by name.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    paths: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
}

/// A module that goes into the image.
#[derive(Debug)]
pub(crate) struct Module {
    name: String,
    /// Below `/lib/modules/RELEASE`, always uncompressed.
    path: String,
    data: Vec<u8>,
    depends: Vec<String>,
    /// `softdep` lines: what to load before if it is there, for example another driver's help.
    soft: Vec<String>,
    aliases: Vec<String>,
}

/// `nvme-rdma.ko.xz` as the kernel calls it: `nvme_rdma`.
fn name_of(file: &str) -> Option<String> {
    let stem = [".ko", ".ko.xz", ".ko.zst"]
        .iter()
        .find_map(|end| file.strip_suffix(end))?;
    Some(canonical(stem.rsplit('/').next()?))
}

fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

impl Modules {
    /// Of `/lib/modules/RELEASE` in a package's tree.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let mut folders = vec![root.join("kernel")];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder)
                .with_context(|| format!("cannot read {}", folder.display()))?;
            for entry in entries {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(name) = path.to_str().and_then(name_of) {
                    modules.paths.insert(name, path);
                }
            }
        }
        let builtin = String::from_utf8(elf::read(&root.join("modules.builtin"))?)?;
        modules.builtin = builtin.lines().filter_map(name_of).collect();
        Ok(modules)
    }

    /// The wanted ones and what they need, each after what it depends on.
    pub(crate) fn closure(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut order = Vec::new();
        for name in wanted {
            if GONE.contains(name) && !self.has(name) {
                continue;
            }
            self.add(&canonical(name), &mut Vec::new(), &mut order)?;
        }
        Ok(order)
    }

    /// Whether there is one of this name, or it is in the kernel itself.
    pub(crate) fn has(&self, name: &str) -> bool {
        let name = canonical(name);
        self.paths.contains_key(&name) || self.builtin.contains(&name)
    }

    fn add(&self, name: &str, above: &mut Vec<String>, order: &mut Vec<Module>) -> Result<()> {
        if order.iter().any(|module| module.name == name) || self.builtin.contains(name) {
            return Ok(());
        }
        ensure!(
            !above.iter().any(|other| other == name),
            "modules depend on each other in a circle: {} {name}",
            above.join(" ")
        );
        let path = self.paths.get(name).with_context(|| match above.last() {
            Some(by) => format!("the kernel package has no module {name}, which {by} needs"),
            None => format!("the kernel package has no module {name}"),
        })?;
        let module = load(name, path)?;
        above.push(name.to_owned());
        for depends in &module.depends {
            self.add(depends, above, order)?;
        }
        above.pop();
        order.push(module);
        Ok(())
    }

    /// Names that the kernel has built in, as modprobe expects them.
    pub(crate) fn builtin_table(&self) -> String {
        let line = |name: &String| format!("kernel/{name}.ko\n");
        self.builtin.iter().map(line).collect()
    }
}

fn load(name: &str, path: &Path) -> Result<Module> {
    let packed = elf::read(path)?;
    let data = if elf::is_elf(&packed) {
        packed
    } else {
        decompress(&packed).with_context(|| path.display().to_string())?
    };
    let info = elf::section(&data, ".modinfo")
        .with_context(|| path.display().to_string())?
        .with_context(|| format!("{} has no .modinfo", path.display()))?;
    let info = Info::parse(info);
    let whole = path.display().to_string();
    let below = whole.find("/kernel/").map_or(0, |at| at + 1);
    let end = whole.find(".ko").map_or(whole.len(), |at| at + 3);
    Ok(Module {
        name: name.to_owned(),
        path: whole[below..end].to_owned(),
        depends: info.depends,
        soft: info.soft,
        aliases: info.aliases,
        data,
    })
}

/// What `.modinfo` says: `key=value` strings, each with a zero byte behind it.
#[derive(Debug, Default, PartialEq)]
struct Info {
    depends: Vec<String>,
    soft: Vec<String>,
    aliases: Vec<String>,
}

impl Info {
    fn parse(section: &[u8]) -> Self {
        let mut info = Self::default();
        for entry in section.split(|byte| *byte == 0) {
            let entry = String::from_utf8_lossy(entry);
            match entry.split_once('=') {
                Some(("depends", list)) => {
                    let names = list.split(',').filter(|name| !name.is_empty());
                    info.depends.extend(names.map(canonical));
                }
                Some(("softdep", line)) => info.soft.push(line.to_owned()),
                Some(("alias", alias)) => info.aliases.push(alias.to_owned()),
                _ => {}
            }
        }
        info
    }
}

impl Module {
    /// Path below `/lib/modules/RELEASE`, and contents.
    pub(crate) fn file(&self) -> (&str, &[u8]) {
        (&self.path, &self.data)
    }
}

/// `modules.dep`: a module, then all it needs, what comes first in loading last.
pub(crate) fn dep_table(modules: &[Module]) -> String {
    let by_name = |name: &String| modules.iter().find(|module| module.name == *name);
    let mut table = String::new();
    for module in modules {
        let mut needs = BTreeSet::new();
        let mut open: Vec<&Module> = vec![module];
        while let Some(next) = open.pop() {
            let below = next.depends.iter().filter_map(by_name);
            open.extend(below.filter(|module| needs.insert(&module.name)));
        }
        let _ = write!(table, "{}:", module.path);
        // They stand in loading order already.
        for other in modules.iter().rev() {
            if needs.contains(&other.name) {
                let _ = write!(table, " {}", other.path);
            }
        }
        table.push('\n');
    }
    table
}

/// `modules.alias`: other names under which the kernel asks for a module.
pub(crate) fn alias_table(modules: &[Module]) -> String {
    let mut table = String::new();
    for module in modules {
        for alias in &module.aliases {
            let _ = writeln!(table, "alias {alias} {}", module.name);
        }
    }
    table
}

/// `modules.softdep`.
pub(crate) fn soft_table(modules: &[Module]) -> String {
    let mut table = String::new();
    for module in modules {
        for line in &module.soft {
            let _ = writeln!(table, "softdep {} {line}", module.name);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, depends: &[&str]) -> Module {
        Module {
            name: name.to_owned(),
            path: format!("kernel/{name}.ko"),
            data: Vec::new(),
            depends: depends.iter().map(|name| (*name).to_owned()).collect(),
            soft: vec!["pre: crc".to_owned()],
            aliases: vec![format!("rdma-link-{name}")],
        }
    }

    #[test]
    fn names_as_the_kernel_has_them() {
        let name = |file| name_of(file).unwrap_or_default();
        assert_eq!(name("kernel/a/nvme-rdma.ko.xz"), "nvme_rdma");
        assert_eq!(name("rdma_rxe.ko"), "rdma_rxe");
        assert_eq!(name("modules.order"), "");
    }

    #[test]
    fn modinfo() {
        let info = Info::parse(b"depends=ib_core,udp-tunnel\0license=GPL\0alias=x\0depends=\0\0=");
        assert_eq!(info.depends, ["ib_core", "udp_tunnel"]);
        assert_eq!(info.aliases, ["x"]);
    }

    /// In loading order, as `closure` gives them.
    #[test]
    fn tables() {
        let modules = [
            module("core", &[]),
            module("tunnel", &[]),
            module("rxe", &["tunnel", "core"]),
            module("nvme", &["rxe"]),
        ];
        assert_eq!(
            dep_table(&modules),
            "kernel/core.ko:\n\
             kernel/tunnel.ko:\n\
             kernel/rxe.ko: kernel/tunnel.ko kernel/core.ko\n\
             kernel/nvme.ko: kernel/rxe.ko kernel/tunnel.ko kernel/core.ko\n"
        );
        assert!(alias_table(&modules).contains("alias rdma-link-rxe rxe\n"));
        assert!(soft_table(&modules).contains("softdep nvme pre: crc\n"));
    }

    #[test]
    fn a_missing_module_is_named() {
        let modules = Modules::default();
        let error = modules.closure(&["rdma-rxe"]).unwrap_err().to_string();
        assert_eq!(error, "the kernel package has no module rdma_rxe");
    }

    #[test]
    fn built_in_ones_are_not_looked_for() {
        let builtin = ["virtio_pci".to_owned()].into();
        let modules = Modules {
            builtin,
            ..Modules::default()
        };
        assert!(modules.closure(&["virtio-pci"]).unwrap().is_empty());
        assert_eq!(modules.builtin_table(), "kernel/virtio_pci.ko\n");
    }
}
