//! Builds what a machine boots.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cache::{Cache, Lock, key, sha256};
use crate::command::{command, find_program, output};
use crate::cpio::Archive;
use crate::elf::{self, Libraries};
use crate::modules::{self, Modules};
use crate::packages::{self, Kernel};
use crate::vmlinux;

const INIT: &str = include_str!("../guest/init");

/// How images are made. In the names of what is made, so that another way makes another image.
const HOW: &str = concat!(include_str!("image.rs"), include_str!("cpio.rs"));

/// The agent's source. It travels in the program, which may run without its repository.
const AGENT: [(&str, &str); 9] = [
    ("agent.h", include_str!("../guest/agent.h")),
    ("agent.c", include_str!("../guest/agent.c")),
    ("process.c", include_str!("../guest/process.c")),
    ("file.c", include_str!("../guest/file.c")),
    ("objects.c", include_str!("../guest/objects.c")),
    ("memory.c", include_str!("../guest/memory.c")),
    ("state.c", include_str!("../guest/state.c")),
    ("post.c", include_str!("../guest/post.c")),
    ("newer.c", include_str!("../guest/newer.c")),
];

/// Loaded at the start, in this order. crc32_generic comes first: without it `rdma link add` says
/// "No such file or directory".
const LOADED: [&str; 8] = [
    "crc32_generic",
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "rdma_rxe",
    "rdma_ucm",
    "ib_uverbs",
    "8021q",
];

/// There for modprobe.
const LOADABLE: [&str; 20] = [
    "act_bpf",
    "act_gact",
    "act_mirred",
    "act_police",
    "act_skbedit",
    "bridge",
    "cls_bpf",
    "cls_flower",
    "cls_matchall",
    "cls_u32",
    "dummy",
    "ifb",
    "null_blk",
    "nvme-rdma",
    "nvmet-rdma",
    "sch_ingress",
    "sch_netem",
    "sch_prio",
    "sch_tbf",
    "veth",
];

/// Programs of the packages that go into the image; the rest is busybox.
const PROGRAMS: [&str; 31] = [
    "bin/bash",
    "bin/busybox",
    "bin/ip",
    "sbin/bridge",
    "sbin/tc",
    "usr/bin/cmtime",
    "usr/bin/ib_atomic_bw",
    "usr/bin/ib_atomic_lat",
    "usr/bin/ib_read_bw",
    "usr/bin/ib_read_lat",
    "usr/bin/ib_send_bw",
    "usr/bin/ib_send_lat",
    "usr/bin/ib_write_bw",
    "usr/bin/ib_write_lat",
    "usr/bin/ibv_asyncwatch",
    "usr/bin/ibv_devices",
    "usr/bin/ibv_devinfo",
    "usr/bin/ibv_rc_pingpong",
    "usr/bin/ibv_srq_pingpong",
    "usr/bin/ibv_uc_pingpong",
    "usr/bin/ibv_ud_pingpong",
    "usr/bin/ibv_xsrq_pingpong",
    "usr/bin/mckey",
    "usr/bin/nstat",
    "usr/bin/rdma",
    "usr/bin/rdma_client",
    "usr/bin/rdma_server",
    "usr/bin/rping",
    "usr/bin/rstream",
    "usr/bin/ucmatose",
    "usr/bin/udaddy",
];

const MULTIARCH: &str = "usr/lib/x86_64-linux-gnu";
const LINKER: &str = "ld-linux-x86-64.so.2";
/// Opened by name, so that no NEEDED entry tells of it.
const PROVIDERS: &str = "usr/lib/x86_64-linux-gnu/libibverbs";
const DRIVER: &str = "etc/libibverbs.d/rxe.driver";
/// rping ends threads, for which glibc opens it.
const LIBGCC: &str = "libgcc_s.so.1";
/// How many of a kind the cache keeps: initramfs of a kernel, some 20 MB each, for tests with
/// different extra files take turns; and what they are made of.
const KEPT_IMAGES: usize = 4;
const KEPT_PARTS: usize = 2;

/// What a machine boots.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel, an ELF file.
    pub kernel: PathBuf,
    /// The initramfs, an uncompressed cpio archive.
    pub initrd: PathBuf,
    /// The kernel's release, as `uname -r` says it.
    pub release: String,
}

/// A file of the host that goes into the image. Libraries that an ELF file needs go along, from
/// the guest's packages.
#[derive(Clone, Debug)]
pub struct Extra {
    /// Where it goes, an absolute path.
    pub guest: String,
    /// Where it is.
    pub host: PathBuf,
    /// Its permissions.
    pub mode: u32,
}

/// Fetches and builds what is not in the cache yet; `say` gets a line for each step taken.
///
/// Packages stay as they are until the list of them changes; `rm -r` of the cache gets newer ones.
/// Another agent, another init or other extra files make a new initramfs.
pub fn prepare(
    cache: &Cache,
    kernel: Kernel,
    extra: &[Extra],
    say: &mut dyn FnMut(&str),
) -> Result<Image> {
    let lock = cache.lock(say)?;
    let tools = packages::tools(cache, &lock, say).context("the guest's tools")?;
    let built = build_kernel(cache, &lock, kernel, say)
        .with_context(|| format!("the guest's kernel {kernel}"))?;
    let agent = build_agent(cache, &lock, &tools, say).context("the guest's agent")?;
    let release = fs::read_to_string(built.join("release"))?;

    let mut parts = vec![INIT.to_owned(), HOW.to_owned()];
    for folder in [&tools, &built, &agent] {
        parts.push(folder.display().to_string());
    }
    for file in extra {
        ensure!(
            file.guest.starts_with('/'),
            "{} is no absolute path",
            file.guest
        );
        let sha256 = sha256(&file.host)?;
        parts.push(format!("{} {:o} {sha256}", file.guest, file.mode));
    }
    let family = format!("initrd-{release}-");
    let name = format!("{family}{}", key(parts));
    let folder = cache.folder(&lock, &name, |folder| {
        say(&format!("build the initramfs for {release}"));
        let archive = build_initrd(&tools, &built, &agent, &release, extra)?;
        let path = folder.join("initrd.cpio");
        fs::write(&path, archive).with_context(|| format!("cannot write {}", path.display()))
    })?;
    cache.keep(&family, &folder, KEPT_IMAGES)?;
    cache.keep(&format!("kernel-{kernel}-"), &built, KEPT_PARTS)?;
    cache.keep("tools-", &tools, KEPT_PARTS)?;
    cache.keep("agent-", &agent, KEPT_PARTS)?;
    Ok(Image {
        kernel: built.join("vmlinux"),
        initrd: folder.join("initrd.cpio"),
        release,
    })
}

/// The kernel and its modules, unpacked and reduced to what the image needs.
fn build_kernel(
    cache: &Cache,
    lock: &Lock,
    kernel: Kernel,
    say: &mut dyn FnMut(&str),
) -> Result<PathBuf> {
    let wanted = [&LOADED[..], &LOADABLE[..]].concat();
    let how = [include_str!("modules.rs"), include_str!("vmlinux.rs")];
    let which = match packages::own_kernel() {
        Some(deb) => sha256(&deb).with_context(|| format!("XROCE_KERNEL_DEB {}", deb.display()))?,
        None => kernel.to_string(),
    };
    let name = format!("kernel-{which}-{}", key(wanted.iter().chain(&how)));
    cache.folder(lock, &name, |folder| {
        let tree = cache.part()?;
        let release = packages::kernel(cache, kernel, tree.path(), say)?;
        let packed = elf::read(&tree.path().join(format!("boot/vmlinuz-{release}")))?;
        say(&format!("extract vmlinux {release} and its modules"));
        fs::write(folder.join("vmlinux"), vmlinux::extract(&packed)?)?;
        let all = Modules::of(&tree.path().join("lib/modules").join(&release))?;
        let used = all.closure(&wanted)?;
        let root = folder.join("modules");
        for (path, data) in used.iter().map(modules::Module::file) {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&root))?;
            fs::write(&path, data)?;
        }
        fs::write(root.join("modules.dep"), modules::dep_table(&used))?;
        fs::write(root.join("modules.alias"), modules::alias_table(&used))?;
        fs::write(root.join("modules.softdep"), modules::soft_table(&used))?;
        fs::write(root.join("modules.builtin"), all.builtin_table())?;
        let loaded = LOADED.iter().filter(|name| all.has(name));
        let loaded: String = loaded.flat_map(|name| [name, "\n"]).collect();
        fs::write(folder.join("loaded"), loaded)?;
        fs::write(folder.join("release"), &release)?;
        Ok(())
    })
}

/// Compiles the agent against the libraries that will be in the guest.
fn build_agent(
    cache: &Cache,
    lock: &Lock,
    tools: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<PathBuf> {
    let tree = tools.display().to_string();
    let sources = AGENT.iter().flat_map(|(name, text)| [*name, *text]);
    let name = format!("agent-{}", key(sources.chain([tree.as_str()])));
    cache.folder(lock, &name, |folder| {
        ensure!(
            find_program("gcc").is_some(),
            "gcc is missing: install the packages gcc and libc6-dev (scripts/setup.sh interop)"
        );
        say("compile the agent");
        let libraries = tools.join(MULTIARCH);
        let mut gcc = command("gcc", ["-O2", "-Wall", "-o"]);
        gcc.arg(folder.join("agent"));
        gcc.arg("-I").arg(tools.join("usr/include"));
        for (name, text) in AGENT {
            let path = folder.join(name);
            fs::write(&path, text)?;
            if name.ends_with(".c") {
                gcc.arg(path);
            }
        }
        gcc.arg("-L").arg(&libraries).arg("-libverbs");
        // What libibverbs itself needs is found there too.
        let folders = [&libraries, &tools.join("lib/x86_64-linux-gnu")];
        for folder in folders {
            gcc.arg(format!("-Wl,-rpath-link,{}", folder.display()));
        }
        output(&mut gcc).map(drop)
    })
}

fn build_initrd(
    tools: &Path,
    kernel: &Path,
    agent: &Path,
    release: &str,
    extra: &[Extra],
) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.device("dev/console", 5, 1)?;
    archive.device("dev/null", 1, 3)?;
    for name in ["bin", "sbin", "lib", "lib64"] {
        archive.folder(&format!("usr/{name}"))?;
        archive.link(name, &format!("usr/{name}"))?;
    }
    archive.file("init", 0o755, INIT.as_bytes())?;
    let loaded = fs::read_to_string(kernel.join("loaded"))?;
    archive.file("init.modules", 0o644, loaded.as_bytes())?;
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/bash\n")?;
    archive.file("etc/group", 0o644, b"root:x:0:\n")?;
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n")?;
    archive.link("usr/bin/sh", "bash")?;
    // Where the kernel looks for it when it wants a module.
    archive.link("usr/sbin/modprobe", "/usr/bin/busybox")?;

    // Path in the guest, mode, contents.
    let mut files: Vec<(String, u32, Vec<u8>)> = Vec::new();
    for file in extra {
        files.push((file.guest.clone(), file.mode, elf::read(&file.host)?));
    }
    for program in PROGRAMS {
        let guest = match program.strip_prefix("usr/") {
            Some(_) => program.to_owned(),
            None => format!("usr/{program}"),
        };
        files.push((guest, 0o755, elf::read(&tools.join(program))?));
    }
    files.push((
        "usr/bin/xroce-agent".to_owned(),
        0o755,
        elf::read(&agent.join("agent"))?,
    ));
    files.push((DRIVER.to_owned(), 0o644, elf::read(&tools.join(DRIVER))?));
    files.push(provider(tools)?);

    let folders = [tools.join("lib/x86_64-linux-gnu"), tools.join(MULTIARCH)];
    let libraries = Libraries::of(&folders)?;
    let programs = files.iter().filter(|(_, _, data)| elf::is_elf(data));
    let mut found =
        libraries.closure(programs.map(|(name, _, data)| (name.as_str(), &data[..])))?;
    found.insert(LIBGCC.to_owned(), libraries.one(LIBGCC)?.to_owned());
    for (name, path) in found {
        files.push((format!("{MULTIARCH}/{name}"), 0o755, elf::read(&path)?));
    }
    for (path, mode, data) in files {
        archive.file(&path, mode, &data)?;
    }
    archive.link(
        &format!("usr/lib64/{LINKER}"),
        &format!("/{MULTIARCH}/{LINKER}"),
    )?;
    add_modules(&mut archive, kernel, release)?;
    archive.finish()
}

/// rxe's part of libibverbs, whose file name tells the version of the interface.
fn provider(tools: &Path) -> Result<(String, u32, Vec<u8>)> {
    for entry in fs::read_dir(tools.join(PROVIDERS))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("librxe-") {
            return Ok((
                format!("{PROVIDERS}/{name}"),
                0o644,
                elf::read(&entry.path())?,
            ));
        }
    }
    anyhow::bail!("ibverbs-providers has no librxe")
}

fn add_modules(archive: &mut Archive, kernel: &Path, release: &str) -> Result<()> {
    let root = kernel.join("modules");
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let below = path.strip_prefix(&root)?.display();
            let guest = format!("usr/lib/modules/{release}/{below}");
            archive.file(&guest, 0o644, &elf::read(&path)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_has_all_of_its_files() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        for entry in fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(
                name == "init" || AGENT.iter().any(|(n, _)| *n == name),
                "{name}"
            );
        }
    }
}
