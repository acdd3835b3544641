//! The folder with what was downloaded and built.
//!
//! Whatever is in it under its final name is whole: everything is made under a temporary name and
//! renamed at the end, so that an interrupted run leaves nothing that a later one would trust.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// Temporary names begin with it; what an interrupted run left is removed by the next.
const PART: &str = ".part-";
/// A file whose time tells when its folder was last asked for.
const USED: &str = "used";

/// A folder that keeps packages and images between runs.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// Keeps other runs out of the cache until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Cache {
    /// The folder of this user: `$XROCE_CACHE`, else `$XDG_CACHE_HOME/xroce`, else
    /// `~/.cache/xroce`.
    pub fn from_env() -> Result<Self> {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dir = var("XROCE_CACHE")
            .map(PathBuf::from)
            .or_else(|| var("XDG_CACHE_HOME").map(|dir| Path::new(&dir).join("xroce")))
            .or_else(|| var("HOME").map(|dir| Path::new(&dir).join(".cache/xroce")))
            .context("no place for the cache: set XROCE_CACHE or HOME")?;
        Self::at(&dir)
    }

    /// A given folder, made if it is not there.
    pub fn at(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)
            .and_then(|()| dir.canonicalize())
            .map(|dir| Self { dir })
            .with_context(|| format!("cannot make the cache folder {}", dir.display()))
    }

    /// The folder itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits until no other run is at work in the cache, and clears away what one that was
    /// interrupted left.
    pub(crate) fn lock(&self, say: &mut dyn FnMut(&str)) -> Result<Lock> {
        let path = self.dir.join("lock");
        let file =
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            say("waiting for another run that fills the cache");
            flock(&file, FlockOperation::LockExclusive)
                .with_context(|| format!("cannot lock {}", path.display()))?;
        }
        for entry in fs::read_dir(&self.dir)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PART) {
                fs::remove_dir_all(entry.path())
                    .with_context(|| format!("cannot remove {}", entry.path().display()))?;
            }
        }
        Ok(Lock { _file: file })
    }

    /// The folder `name`: as it is, or as `build` fills it.
    pub(crate) fn folder(
        &self,
        _lock: &Lock,
        name: &str,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let whole = self.dir.join(name);
        if !whole.is_dir() {
            let part = self.part()?;
            build(part.path())?;
            fs::rename(part.keep(), &whole)
                .with_context(|| format!("cannot make {}", whole.display()))?;
        }
        Ok(whole)
    }

    /// Notes that a folder is in use, and of those whose names begin like it keeps the `n` that
    /// were in use last.
    pub(crate) fn keep(&self, family: &str, used: &Path, n: usize) -> Result<()> {
        fs::write(used.join(USED), "").with_context(|| used.display().to_string())?;
        let mut others = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(family) && entry.path() != used {
                let time = fs::metadata(entry.path().join(USED)).and_then(|used| used.modified());
                others.push((time.ok(), entry.path()));
            }
        }
        others.sort();
        let surplus = (others.len() + 1).saturating_sub(n);
        for (_, path) in &others[..surplus] {
            fs::remove_dir_all(path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// A folder for work in progress, removed when dropped.
    pub(crate) fn part(&self) -> Result<TempDir> {
        // Readable by others: apt-get downloads as a user of its own.
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        tempfile::Builder::new()
            .prefix(PART)
            .permissions(permissions)
            .tempdir_in(&self.dir)
            .with_context(|| format!("cannot make a folder in {}", self.dir.display()))
    }
}

/// A short name for a set of things: whatever changes one of them changes the name.
pub(crate) fn key<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize()[..8])
}

/// Lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a file, as hex digits.
pub(crate) fn sha256(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let mut part = vec![0; 1 << 20];
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    loop {
        match file.read(&mut part) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(n) => hash.update(&part[..n]),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        (dir, cache)
    }

    #[test]
    fn a_folder_that_failed_is_not_there() {
        let (_dir, cache) = cache();
        let lock = cache.lock(&mut |_| ()).unwrap();
        let failed = cache.folder(&lock, "a", |dir| {
            fs::write(dir.join("half"), "x")?;
            anyhow::bail!("interrupted")
        });
        assert!(failed.is_err());
        assert!(!cache.dir().join("a").exists());
        let whole = cache.folder(&lock, "a", |dir| Ok(fs::write(dir.join("all"), "x")?));
        assert!(whole.unwrap().join("all").is_file());
        let again = cache.folder(&lock, "a", |_| anyhow::bail!("built twice"));
        assert!(again.is_ok());
    }

    #[test]
    fn what_an_interrupted_run_left_is_cleared_away() {
        let (_dir, cache) = cache();
        let left = cache.part().unwrap().keep();
        drop(cache.lock(&mut |_| ()).unwrap());
        assert!(!left.exists());
    }

    #[test]
    fn two_runs_wait_for_each_other() {
        let (_dir, cache) = cache();
        let lock = cache.lock(&mut |_| ()).unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        let other = cache.clone();
        let thread = std::thread::spawn(move || {
            let lock = other.lock(&mut |line| tx.send(line.to_owned()).unwrap());
            lock.map(drop)
        });
        assert!(rx.recv().unwrap().starts_with("waiting"));
        drop(lock);
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn keys_tell_parts_apart() {
        assert_ne!(key(["ab", "c"]), key(["a", "bc"]));
        assert_eq!(key(["ab", "c"]).len(), 16);
    }

    #[test]
    fn folders_in_use_are_kept() {
        let (dir, cache) = cache();
        let names = ["6.1-a", "6.1-b", "6.1-c", "6.1-d", "6.12-e"];
        for name in names {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let used = |name| {
            // Times of files are as coarse as the kernel's tick.
            std::thread::sleep(std::time::Duration::from_millis(20));
            cache.keep("6.1-", &cache.dir().join(name), 4).unwrap();
        };
        for name in ["6.1-a", "6.1-b", "6.1-c", "6.1-d", "6.1-a"] {
            used(name);
        }
        fs::create_dir(dir.path().join("6.1-f")).unwrap();
        used("6.1-f");
        let left = |name: &&str| dir.path().join(name).exists();
        let left: Vec<_> = names.into_iter().filter(left).collect();
        assert_eq!(left, ["6.1-a", "6.1-c", "6.1-d", "6.12-e"]);
    }
}
