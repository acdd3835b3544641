//! Memory of another process that stays where it is: read and written by system calls.
//!
//! For what can be in no memfd: files, shared mappings, memory that cannot be moved. Each access is
//! a system call (2.3 to 2.7 µs, 64 bytes or 4 KiB; a burst of eight in one would be 1 µs each), and
//! atomics are impossible: nothing orders them with those of the process itself.
//!
//! A page that the process has arranged to be filled by itself (userfaultfd, FUSE) holds up whoever
//! accesses it for as long as it likes. So this is for processes that are trusted not to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::region::{OutOfRange, Region};

/// The memory of a process, as the system shows it.
#[derive(Debug)]
pub(crate) struct Across {
    memory: File,
    address: u64,
}

impl Across {
    pub(crate) fn read(&self, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(dst, self.address + offset)
    }

    pub(crate) fn write(&self, offset: u64, src: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(src, self.address + offset)
    }
}

impl Region {
    /// `len` bytes from `address` of process `pid`, which stay there.
    ///
    /// It is the memory of the process that has this number now, for as long as the region lives;
    /// once that process is gone or runs another program, every access is refused
    /// ([`OutOfRange`]), as is one to pages that are not mapped or do not allow it.
    ///
    /// # Errors
    /// No such process, or no right to its memory (the same user and no Yama, or CAP_SYS_PTRACE);
    /// `len` is 0, or the range reaches past the last address.
    pub fn across(pid: u32, address: u64, len: u64) -> io::Result<Self> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        if len == 0 {
            return Err(invalid("a region of 0 bytes"));
        }
        // Offsets of files are signed.
        let end = address
            .checked_add(len)
            .filter(|&end| end <= i64::MAX.unsigned_abs());
        if end.is_none() {
            return Err(invalid("memory past the last address"));
        }
        let size =
            usize::try_from(len).map_err(|_| invalid("more memory than there are addresses"))?;
        let path = format!("/proc/{pid}/mem");
        let memory = File::options().read(true).write(true).open(path)?;
        Ok(Self::of_across(Across { memory, address }, size))
    }
}

impl Region {
    #[cold]
    pub(crate) fn read_across(
        &self,
        refused: OutOfRange,
        dst: &mut [u8],
    ) -> Result<(), OutOfRange> {
        match self.inside_across(&refused) {
            Some(across) => across.read(refused.offset, dst).map_err(|_| refused),
            None => Err(refused),
        }
    }

    #[cold]
    pub(crate) fn write_across(&self, refused: OutOfRange, src: &[u8]) -> Result<(), OutOfRange> {
        match self.inside_across(&refused) {
            Some(across) => across.write(refused.offset, src).map_err(|_| refused),
            None => Err(refused),
        }
    }

    /// The other process, if this is its memory and the access is inside.
    fn inside_across(&self, access: &OutOfRange) -> Option<&Across> {
        let end = access.offset.checked_add(access.len as u64)?;
        (end <= self.len() as u64).then(|| self.as_across())?
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::AtomicAtError;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn memory_of_a_process_is_read_and_written_where_it_is() {
        let there = Region::of_heap(vec![7; 10_000]).unwrap();
        let across = Region::across(std::process::id(), there.address(), 10_000).unwrap();
        assert_eq!((across.len(), across.is_file()), (10_000, false));
        across.write_at(9_000, b"written").unwrap();
        let mut seen = [0; 8];
        there.read_at(8_999, &mut seen).unwrap();
        assert_eq!(&seen, b"\x07written");
        there.write_at(4_090, &[9; 12]).unwrap();
        let mut seen = [0; 14];
        across.read_at(4_089, &mut seen).unwrap();
        assert_eq!(seen, [7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7]);
        // Its bounds, and no atomics.
        for (offset, len) in [(10_000, 1), (9_999, 2), (u64::MAX, 1)] {
            assert!(across.read_at(offset, &mut vec![0; len]).is_err());
            assert!(across.write_at(offset, &vec![0; len]).is_err());
        }
        let refused = across.fetch_add_at(0, 1);
        assert!(matches!(refused, Err(AtomicAtError::OutOfRange(_))));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn what_is_not_there_is_refused() {
        let me = std::process::id();
        // Nothing is mapped at the beginning.
        let nothing = Region::across(me, 4096, 4096).unwrap();
        assert!(nothing.read_at(0, &mut [0; 8]).is_err());
        assert!(nothing.write_at(0, &[0; 8]).is_err());
        assert!(Region::across(me, 4096, 0).is_err());
        assert!(Region::across(me, u64::MAX, 2).is_err());
        assert!(Region::across(me, 1 << 63, 2).is_err());
        assert!(Region::across(u32::MAX, 4096, 4096).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn a_process_that_is_gone_has_no_memory() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Once it answers, it is the program and not what began it.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let mut answer = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut answer)
            .unwrap();
        // Where its program is mapped.
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let first = maps.split('-').next().unwrap();
        let address = u64::from_str_radix(first, 16).unwrap();
        let across = Region::across(child.id(), address, 64).unwrap();
        let mut head = [0; 4];
        across.read_at(0, &mut head).unwrap();
        assert_eq!(&head, b"\x7fELF");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(across.read_at(0, &mut head).is_err());
    }
}
