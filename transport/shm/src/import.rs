//! Regions of memory that another process made.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};

use rustix::fs::{SealFlags, Stat, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use crate::region::{Backing, Region};

/// The type of file system that memfds of huge pages are on (`HUGETLBFS_MAGIC`).
const HUGETLBFS: i64 = 0x9584_58f6;

/// What offsets in files and lengths of pieces are multiples of, in bytes.
const PAGE: u64 = 4096;

/// Memory of another process that was not mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Nothing to map.
    #[error("a region of 0 bytes")]
    Empty,
    /// More than there are addresses.
    #[error("{len} bytes at offset {offset} of a file are more than this process can map")]
    TooLong {
        /// Offset in the file.
        offset: u64,
        /// Length asked for.
        len: u64,
    },
    /// A file of a kind that has no seals, so no memfd.
    #[error("the descriptor is not of a memfd")]
    NotMemfd(#[source] io::Error),
    /// The file could be made shorter, and an access then would kill this process.
    #[error("the memfd has no F_SEAL_SHRINK: its seals are {seals:#x}")]
    NotSealed {
        /// The seals it has (`F_SEAL_*`).
        seals: u32,
    },
    /// The memfd is sealed against writing.
    #[error("the memfd cannot be written: its seals are {seals:#x}")]
    ReadOnly {
        /// The seals it has (`F_SEAL_*`).
        seals: u32,
    },
    /// The file is too short.
    #[error("{len} bytes at offset {offset} of a memfd of {size} bytes")]
    TooShort {
        /// Offset in the file.
        offset: u64,
        /// Length asked for.
        len: u64,
        /// Size of the file.
        size: u64,
    },
    /// A piece that has to begin or end at a page.
    #[error("a piece of {len} bytes at offset {offset}: not whole pages")]
    NotPages {
        /// Offset in the file.
        offset: u64,
        /// Length asked for.
        len: u64,
    },
    /// A piece of several that is on huge pages.
    #[error("a memfd of huge pages cannot be one of several pieces, nor begin in its middle")]
    HugePages,
    /// The system refused.
    #[error("the memory cannot be mapped")]
    System(#[from] io::Error),
}

/// A part of a memfd.
#[derive(Debug)]
pub struct Piece {
    /// The memfd.
    pub fd: OwnedFd,
    /// Where the part begins in the file, in bytes; a multiple of 4096.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// A piece after all checks.
struct Checked {
    len: usize,
    /// Bytes that a mapping of it takes.
    mapped: usize,
    huge: bool,
}

impl Piece {
    fn check(&self) -> Result<Checked, ImportError> {
        let (offset, len) = (self.offset, self.len);
        if len == 0 {
            return Err(ImportError::Empty);
        }
        if !offset.is_multiple_of(PAGE) {
            return Err(ImportError::NotPages { offset, len });
        }
        let seals = fcntl_get_seals(&self.fd).map_err(|e| ImportError::NotMemfd(e.into()))?;
        let held = seals.bits();
        if !seals.contains(SealFlags::SHRINK) {
            return Err(ImportError::NotSealed { seals: held });
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(ImportError::ReadOnly { seals: held });
        }
        // After the seal was seen: from now on the size only grows.
        let stat: Stat = fstat(&self.fd).map_err(io::Error::from)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > size) {
            return Err(ImportError::TooShort { offset, len, size });
        }
        let huge = fstatfs(&self.fd).map_err(io::Error::from)?.f_type == HUGETLBFS;
        // A mapping of huge pages is unmapped by whole huge pages only.
        let unit = if huge {
            u64::try_from(stat.st_blksize).unwrap_or(PAGE)
        } else {
            PAGE
        };
        let too_long = |_| ImportError::TooLong { offset, len };
        let limit = isize::MAX.unsigned_abs() as u64;
        let mapped = len.checked_next_multiple_of(unit);
        let mapped = mapped.filter(|&m| m <= limit).unwrap_or(u64::MAX);
        if mapped == u64::MAX {
            return Err(ImportError::TooLong { offset, len });
        }
        Ok(Checked {
            len: usize::try_from(len).map_err(too_long)?,
            mapped: usize::try_from(mapped).map_err(too_long)?,
            huge,
        })
    }
}

impl Region {
    /// The first `len` bytes of a memfd that another process made, mapped for reading and writing.
    ///
    /// The memfd is sealed against shrinking (`F_SEAL_SHRINK`), or the other process could take
    /// memory away under an access and so kill this one (SIGBUS). Memfds of huge pages are fine,
    /// with a reservation: the other process can punch holes into any memfd, a hole of ordinary
    /// pages reads as zero, one of huge pages needs a huge page again, and an access when the
    /// system has none left is a SIGBUS after all. Whoever serves clients that may do that on
    /// purpose does not reserve huge pages for them, or looks after the pool.
    ///
    /// Pages are not faulted in beforehand (no `MAP_POPULATE`): a file may be long and empty, and
    /// its pages would be allocated at the expense of this process rather than of its maker. The
    /// first access to each page so costs a fault.
    ///
    /// # Errors
    /// [`ImportError`]; the descriptor is closed.
    pub fn from_client(fd: OwnedFd, len: u64) -> Result<Self, ImportError> {
        let piece = Piece { fd, offset: 0, len };
        let checked = piece.check()?;
        Self::of_piece(piece, &checked)
    }

    /// Parts of memfds that another process made, one after the other in one region.
    ///
    /// Each as for [`Self::from_client`]; all but the last are whole pages, and of several none is
    /// on huge pages. The region keeps no descriptor.
    ///
    /// # Errors
    /// [`ImportError`]; the descriptors are closed.
    pub fn from_pieces(mut pieces: Vec<Piece>) -> Result<Self, ImportError> {
        let Some(last) = pieces.pop() else {
            return Err(ImportError::Empty);
        };
        let checked = last.check()?;
        if pieces.is_empty() {
            return Self::of_piece(last, &checked);
        }
        let mut all: Vec<(Piece, Checked)> = Vec::with_capacity(pieces.len() + 1);
        for piece in pieces {
            let checked = piece.check()?;
            let (offset, len) = (piece.offset, piece.len);
            if checked.mapped != checked.len {
                return Err(ImportError::NotPages { offset, len });
            }
            all.push((piece, checked));
        }
        all.push((last, checked));
        Self::of_many(all)
    }

    fn of_piece(piece: Piece, checked: &Checked) -> Result<Self, ImportError> {
        if checked.huge && piece.offset != 0 {
            return Err(ImportError::HugePages);
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let (fd, at) = (&piece.fd, piece.offset);
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(null_mut(), checked.len, prot, MapFlags::SHARED, fd, at) };
        let base = pointer(base.map_err(io::Error::from)?)?;
        // SAFETY: just mapped; `check` saw the seal and a size of at least `offset + len`. The
        // kernel mapped whole pages, of the size that `check` rounded to.
        Ok(unsafe { Self::of_mapping(base, checked.len, checked.mapped, Backing::Mapped) })
    }

    fn of_many(all: Vec<(Piece, Checked)>) -> Result<Self, ImportError> {
        let (mut len, mut mapped) = (0usize, 0usize);
        for (piece, checked) in &all {
            if checked.huge {
                return Err(ImportError::HugePages);
            }
            let too_long = ImportError::TooLong {
                offset: piece.offset,
                len: piece.len,
            };
            len = mapped + checked.len;
            mapped = mapped
                .checked_add(checked.mapped)
                .filter(|&all| all <= isize::MAX.unsigned_abs())
                .ok_or(too_long)?;
        }
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base =
            unsafe { mmap_anonymous(null_mut(), mapped, ProtFlags::empty(), MapFlags::PRIVATE) };
        let base = pointer(base.map_err(io::Error::from)?)?;
        // SAFETY: just mapped. It is for reading and writing when the loop below has mapped a
        // sealed piece over each part; before, the region is not given out, and unmaps it if
        // anything fails.
        let region = unsafe { Self::of_mapping(base, len, mapped, Backing::Mapped) };
        let mut at = 0u64;
        for (piece, checked) in &all {
            let to = region.pointer(at, checked.len).map_err(io::Error::other)?;
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            let (address, fd) = (to.as_ptr().cast(), &piece.fd);
            // SAFETY: replaces a part of the mapping just made, whose pages nothing refers to.
            unsafe { mmap(address, checked.len, prot, flags, fd, piece.offset) }
                .map_err(io::Error::from)?;
            at += checked.mapped as u64;
        }
        Ok(region)
    }
}

fn pointer(mapped: *mut std::ffi::c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(mapped.cast()).ok_or_else(|| io::Error::other("memory mapped at address 0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("test", flags).unwrap();
        ftruncate(&fd, len).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn both_sides_see_the_same_memory() {
        let ours = Region::anonymous(10_000).unwrap();
        ours.write_at(9_999, &[7]).unwrap();
        let theirs = Region::from_client(ours.fd().unwrap().try_clone().unwrap(), 10_000).unwrap();
        assert_eq!(theirs.len(), 10_000);
        let mut byte = [0];
        theirs.read_at(9_999, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        theirs.fetch_add_at(8, 5).unwrap();
        assert_eq!(ours.fetch_add_at(8, 0), Ok(5));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn what_could_kill_this_process_is_refused() {
        let shrink = SealFlags::SHRINK;
        let import = |fd, len| Region::from_client(fd, len).unwrap_err();
        assert!(matches!(import(memfd(4096, shrink), 0), ImportError::Empty));
        let refused = import(memfd(4096, SealFlags::GROW), 4096);
        assert!(matches!(refused, ImportError::NotSealed { seals: 4 }));
        let refused = import(memfd(4096, shrink | SealFlags::WRITE), 4096);
        assert!(matches!(refused, ImportError::ReadOnly { seals: 10 }));
        let refused = import(memfd(4096, shrink), 4097);
        assert_eq!(
            refused.to_string(),
            "4097 bytes at offset 0 of a memfd of 4096 bytes"
        );
        let refused = import(memfd(4096, shrink), u64::MAX);
        assert!(matches!(refused, ImportError::TooShort { .. }));
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = import(plain.into(), 1);
        assert!(matches!(refused, ImportError::NotMemfd(_)));
        // Opened for reading only: the system refuses the mapping.
        let fd = memfd(4096, shrink);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let refused = import(std::fs::File::open(path).unwrap().into(), 1);
        assert!(matches!(refused, ImportError::System(_)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn a_long_empty_file_takes_no_memory() {
        let file = memfd(1 << 40, SealFlags::SHRINK);
        let region = Region::from_client(file.try_clone().unwrap(), 1 << 40).unwrap();
        region.write_at((1 << 40) - 1, &[1]).unwrap();
        let blocks = fstat(file).unwrap().st_blocks;
        assert!(blocks <= 8192, "{blocks} blocks of 512 bytes");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn pieces_lie_one_after_the_other() {
        let a = Region::anonymous(3 * 4096).unwrap();
        let b = Region::anonymous(4096).unwrap();
        a.write_at(2 * 4096 - 1, &[1, 2]).unwrap();
        b.write_at(0, &[3]).unwrap();
        let piece = |from: &Region, offset, len| Piece {
            fd: from.fd().unwrap().try_clone().unwrap(),
            offset,
            len,
        };
        let pieces = vec![
            piece(&a, 4096, 4096),
            piece(&b, 0, 4096),
            piece(&a, 8192, 9),
        ];
        let region = Region::from_pieces(pieces).unwrap();
        assert_eq!(region.len(), 8201);
        let mut seen = [0; 2];
        region.read_at(4095, &mut seen).unwrap();
        assert_eq!(seen, [1, 3]);
        region.read_at(8191, &mut seen).unwrap();
        assert_eq!(seen, [0, 2]);
        let refused = Region::from_pieces(vec![piece(&a, 0, 5), piece(&b, 0, 4096)]);
        assert!(matches!(refused, Err(ImportError::NotPages { len: 5, .. })));
        let refused = Region::from_pieces(vec![piece(&a, 5, 5)]);
        assert!(matches!(refused, Err(ImportError::NotPages { .. })));
        assert!(matches!(
            Region::from_pieces(vec![]),
            Err(ImportError::Empty)
        ));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn huge_pages_are_mapped_whole() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let made = memfd_create("huge", flags).and_then(|fd| {
            ftruncate(&fd, 2 << 20)?;
            fcntl_add_seals(&fd, SealFlags::SHRINK)?;
            Ok(fd)
        });
        // Without a pool of huge pages the mapping is refused, and nothing else can be tried.
        match made.map(|fd| Region::from_client(fd, 5000)) {
            Ok(Ok(region)) => {
                region.write_at(4999, &[1]).unwrap();
                drop(region);
            }
            Ok(Err(ImportError::System(why))) => println!("no huge pages: {why}"),
            Ok(Err(other)) => panic!("{other}"),
            Err(why) => println!("no huge pages: {why}"),
        }
    }
}
