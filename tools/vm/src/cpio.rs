//! Writes the "newc" archive that the kernel unpacks as its first file system
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An archive in the making. Paths are relative to the root; folders appear as they are needed.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
    inode: u32,
}

impl Archive {
    /// A folder, with those above it. Twice is fine.
    pub(crate) fn folder(&mut self, path: &str) -> Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.names.contains(path) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, DIRECTORY | 0o755, (0, 0), b"")
    }

    /// A file; the first of a name stays.
    pub(crate) fn file(&mut self, path: &str, mode: u32, data: &[u8]) -> Result<()> {
        self.leaf(path, FILE | (mode & 0o7777), (0, 0), data)
    }

    /// A symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.leaf(path, LINK | 0o777, (0, 0), target.as_bytes())
    }

    /// A character device.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) -> Result<()> {
        self.leaf(path, CHARACTER | 0o600, (major, minor), b"")
    }

    /// The archive with its trailer.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, (0, 0), b"")?;
        Ok(self.bytes)
    }

    fn parents(&mut self, path: &str) -> Result<()> {
        match path.rsplit_once('/') {
            Some((parent, _)) => self.folder(parent),
            None => Ok(()),
        }
    }

    fn leaf(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) -> Result<()> {
        let path = path.trim_matches('/');
        if self.names.contains(path) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, mode, device, data)
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) -> Result<()> {
        let len = u32::try_from(data.len());
        ensure!(
            len.is_ok() && path.len() < 4096 && !path.contains('\0'),
            "{path} does not fit into a cpio archive"
        );
        self.names.insert(path.to_owned());
        self.inode += 1;
        let fields = [
            self.inode,
            mode,
            0, // user and group
            0,
            1, // links
            0, // time: the same input gives the same archive
            len.unwrap_or_default(),
            0, // device it is on
            0,
            device.0,
            device.1,
            u32::try_from(path.len() + 1)?,
            0, // check sum, of another format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode, device, data.
    type Entry = (String, u32, (u32, u32), Vec<u8>);

    /// Reads an archive back.
    fn read(mut bytes: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |n: usize| {
                let text = std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (len, name_len) = (field(6) as usize, field(11) as usize);
            let name = std::str::from_utf8(&bytes[110..110 + name_len - 1]).unwrap();
            let data = (110 + name_len).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert_eq!(data, bytes.len());
                return entries;
            }
            entries.push((
                name.to_owned(),
                field(1),
                (field(9), field(10)),
                bytes[data..data + len].to_vec(),
            ));
            bytes = &bytes[(data + len).next_multiple_of(4)..];
        }
    }

    #[test]
    fn folders_come_before_what_is_in_them() {
        let mut archive = Archive::default();
        archive.file("/usr/bin/a", 0o755, b"hello").unwrap();
        archive.device("dev/console", 5, 1).unwrap();
        archive.link("bin", "usr/bin").unwrap();
        archive.file("usr/bin/a", 0o600, b"again").unwrap();
        archive.folder("usr/bin").unwrap();
        let entries = read(&archive.finish().unwrap());
        let expected = [
            ("usr", 0o040_755, (0, 0), ""),
            ("usr/bin", 0o040_755, (0, 0), ""),
            ("usr/bin/a", 0o100_755, (0, 0), "hello"),
            ("dev", 0o040_755, (0, 0), ""),
            ("dev/console", 0o020_600, (5, 1), ""),
            ("bin", 0o120_777, (0, 0), "usr/bin"),
        ];
        let expected = expected.map(|(n, m, d, t)| (n.to_owned(), m, d, t.as_bytes().to_vec()));
        assert_eq!(entries, expected);
    }
}
