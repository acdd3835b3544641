//! Debian's packages: which ones, how they are fetched and unpacked. Nothing is installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cache::{Cache, Lock, key, sha256};
use crate::command::{command, find_program, output};

/// Which Linux the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernel {
    /// The stable one of Debian 12.
    V6_1,
    /// The one of its backports.
    V6_12,
}

impl Kernel {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::V6_1, Self::V6_12];

    /// The package that depends on the newest build of this kernel.
    pub fn meta_package(self) -> &'static str {
        match self {
            Self::V6_1 => "linux-image-amd64",
            Self::V6_12 => "linux-image-6.12-amd64",
        }
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        })
    }
}

/// What the guest's programs come from, with the libraries they need; libibverbs-dev has the
/// headers for the agent.
pub(crate) const TOOLS: [&str; 26] = [
    "bash",
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "libbpf1",
    "libbsd0",
    "libc6",
    "libcap2",
    "libelf1",
    "libgcc-s1",
    "libibumad3",
    "libibverbs-dev",
    "libibverbs1",
    "libmd0",
    "libmnl0",
    "libnl-3-200",
    "libnl-route-3-200",
    "libpci3",
    "librdmacm1",
    "libtinfo6",
    "libudev1",
    "libxtables12",
    "perftest",
    "rdmacm-utils",
    "zlib1g",
];

/// One package as apt's lists have it.
#[derive(Clone, Debug, PartialEq)]
struct Package {
    name: String,
    version: String,
    sha256: String,
    depends: String,
}

/// Parses the stanzas of `apt-cache show`. Descriptions and what else there is are skipped.
fn parse(text: &str) -> Vec<Package> {
    let mut packages = Vec::new();
    for stanza in text.split("\n\n") {
        let fields: BTreeMap<&str, &str> = stanza
            .lines()
            .filter(|line| !line.starts_with([' ', '\t']))
            .filter_map(|line| line.split_once(": "))
            .collect();
        let field = |name| fields.get(name).map(|value| value.trim().to_owned());
        if let (Some(name), Some(version), Some(sha256)) =
            (field("Package"), field("Version"), field("SHA256"))
        {
            packages.push(Package {
                name,
                version,
                sha256,
                depends: field("Depends").unwrap_or_default(),
            });
        }
    }
    packages
}

/// Gets something with apt. If it fails, once more with fresh lists: they may name versions that
/// the archive no longer has, or be missing altogether.
fn with_apt<T>(
    say: &mut dyn FnMut(&str),
    get: impl Fn(&mut dyn FnMut(&str)) -> Result<T>,
) -> Result<T> {
    for program in ["apt-get", "apt-cache", "dpkg-deb"] {
        ensure!(
            find_program(program).is_some(),
            "{program} is missing: the guest is made of Debian's packages, by Debian's tools"
        );
    }
    let first = match get(say) {
        Ok(got) => return Ok(got),
        Err(error) => error,
    };
    say("apt-get update");
    let options = ["-q", "-o", LOCK, "-o", RETRIES, "update"];
    output(&mut command("apt-get", options)).with_context(|| format!("{first:#}"))?;
    get(say)
}

/// What apt's lists say of the packages.
fn show(names: &[&str]) -> Result<Vec<Package>> {
    let args = ["show", "--no-all-versions"].iter().chain(names);
    let text = output(&mut command("apt-cache", args))?;
    let known = parse(&String::from_utf8_lossy(&text));
    let find = |name: &&str| {
        let package = known.iter().find(|package| package.name == *name);
        package.cloned().with_context(|| {
            format!("apt knows no package {name}, which is part of Debian 12 and its updates")
        })
    };
    names.iter().map(find).collect()
}

/// Another apt-get may be at work.
const LOCK: &str = "DPkg::Lock::Timeout=300";
const RETRIES: &str = "Acquire::Retries=3";

/// The package files, downloaded unless they are there and sound.
fn fetch(
    cache: &Cache,
    packages: Vec<Package>,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<(Package, PathBuf)>> {
    let folder = cache.dir().join("deb");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let place = |package: &Package| folder.join(format!("{}.deb", package.sha256));
    let sound =
        |package: &&Package| sha256(&place(package)).is_ok_and(|sha256| sha256 == package.sha256);
    let (_, missing): (Vec<&Package>, Vec<&Package>) = packages.iter().partition(sound);
    if !missing.is_empty() {
        let names: Vec<&str> = missing
            .iter()
            .map(|package| package.name.as_str())
            .collect();
        say(&format!("download {}", names.join(" ")));
        let part = cache.part()?;
        let wanted = missing.iter().map(|p| format!("{}={}", p.name, p.version));
        let options = ["-q", "-o", LOCK, "-o", RETRIES, "download"];
        let args = options.map(str::to_owned).into_iter().chain(wanted);
        output(command("apt-get", args).current_dir(part.path()))?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(part.path())? {
            let path = entry?.path();
            files.insert(sha256(&path)?, path);
        }
        for package in missing {
            let Package { name, version, .. } = package;
            let file = files.get(&package.sha256).with_context(|| {
                format!("{name} {version} as downloaded has not the SHA256 that apt's lists say")
            })?;
            fs::rename(file, place(package)).with_context(|| format!("cannot keep {name}"))?;
        }
    }
    let placed = packages.into_iter().map(|package| {
        let place = place(&package);
        (package, place)
    });
    Ok(placed.collect())
}

fn unpack(deb: &Path, into: &Path) -> Result<()> {
    output(command("dpkg-deb", ["-x"]).args([deb, into])).map(drop)
}

/// The tree with all of [`TOOLS`] unpacked.
pub(crate) fn tools(cache: &Cache, lock: &Lock, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    cache.folder(lock, &format!("tools-{}", key(TOOLS)), |folder| {
        let fetched = with_apt(say, |say| fetch(cache, show(&TOOLS)?, say))?;
        for (package, deb) in &fetched {
            say(&format!("unpack {} {}", package.name, package.version));
            unpack(deb, folder)?;
        }
        Ok(())
    })
}

/// A kernel of one's own, for trying newer ones: `XROCE_KERNEL_DEB` names the file of a
/// `linux-image-RELEASE` package, which then is taken for every kernel.
pub(crate) fn own_kernel() -> Option<PathBuf> {
    env::var_os("XROCE_KERNEL_DEB").map(PathBuf::from)
}

/// Unpacks a package file with a kernel; returns its release.
fn unpack_kernel(deb: &Path, into: &Path, say: &mut dyn FnMut(&str)) -> Result<String> {
    let deb = deb
        .canonicalize()
        .with_context(|| format!("XROCE_KERNEL_DEB {}", deb.display()))?;
    let mut asked = command("dpkg-deb", ["-f"]);
    let name = output(asked.arg(&deb).arg("Package"))?;
    let name = String::from_utf8_lossy(&name).trim().to_owned();
    say(&format!("unpack {name}"));
    unpack(&deb, into)?;
    // Where newer packages have them.
    let usr = into.join("usr/lib/modules");
    if usr.is_dir() {
        fs::create_dir_all(into.join("lib"))?;
        fs::rename(&usr, into.join("lib/modules"))?;
    }
    release(&name, into)
}

/// What `uname -r` says of the kernel in the package `name`.
fn release(name: &str, unpacked: &Path) -> Result<String> {
    match name.strip_prefix("linux-image-") {
        Some(release) if unpacked.join("lib/modules").join(release).is_dir() => {
            Ok(release.to_owned())
        }
        _ => bail!("{name} has no modules"),
    }
}

/// Unpacks the newest build of a kernel; returns its release.
pub(crate) fn kernel(
    cache: &Cache,
    kernel: Kernel,
    into: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<String> {
    if let Some(deb) = own_kernel() {
        return unpack_kernel(&deb, into, say);
    }
    let fetched = with_apt(say, |say| {
        let meta = show(&[kernel.meta_package()])?;
        fetch(cache, show(&[&real_kernel(&meta[0])?])?, say)
    })?;
    let (package, deb) = &fetched[0];
    let real = &package.name;
    say(&format!("unpack {real} {}", package.version));
    unpack(deb, into)?;
    release(real, into)
}

/// `linux-image-RELEASE` among the dependencies of a meta package.
fn real_kernel(meta: &Package) -> Result<String> {
    let name = meta
        .depends
        .split([',', '|'])
        .filter_map(|item| item.split_whitespace().next())
        .find(|name| name.starts_with("linux-image-") && **name != *meta.name);
    let name = name.with_context(|| format!("{} depends on no kernel", meta.name))?;
    // The cloud image has no rdma_rxe.
    ensure!(!name.contains("cloud"), "{name} has no rdma_rxe");
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "\
Package: linux-image-6.12-amd64
Version: 6.12.1-1
Depends: linux-image-6.12.1+deb12-amd64 (= 6.12.1-1), other
Description-en: Linux for 64-bit PCs (meta-package)
 SHA256: of something else
SHA256: 00ff

Package: half
Version: 1
";

    #[test]
    fn stanzas_of_apt() {
        let packages = parse(SHOWN);
        assert_eq!(packages.len(), 1);
        assert_eq!(packages[0].sha256, "00ff");
        assert_eq!(
            real_kernel(&packages[0]).unwrap(),
            "linux-image-6.12.1+deb12-amd64"
        );
    }

    #[test]
    fn a_meta_package_without_a_kernel() {
        let mut meta = parse(SHOWN).remove(0);
        meta.depends = "linux-headers (= 1)".to_owned();
        assert!(real_kernel(&meta).is_err());
    }
}
