use super::*;
use crate::{Piece, Region};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn at<T>(of: &[T]) -> (u64, u64) {
    let address = of.as_ptr().expose_provenance() as u64;
    (address, size_of_val(of) as u64)
}

fn adopt_slice<T>(of: &[T]) -> Adopted {
    let (address, len) = at(of);
    adopt_here(address, len, &GUARDS).unwrap()
}

/// Memory of the test that asks.
fn adopt_here(address: u64, len: u64, guards: &[Faults]) -> Result<Adopted, AdoptError> {
    // SAFETY: each test keeps its memory until its end, gives no file to a writer but itself, and
    // looks at what it wrote through a file by `black_box`. Neither glibc's allocator nor a test
    // relies on `MADV_DONTNEED`, and no test forks without a new program.
    unsafe { adopt_guarded(address, len, guards) }
}

/// What another process would see.
fn view(adopted: &Adopted) -> Region {
    let piece = |p: &AdoptedPiece| Piece {
        fd: p.fd.try_clone().unwrap(),
        offset: p.offset,
        len: p.len,
    };
    Region::from_pieces(adopted.pieces().iter().map(piece).collect()).unwrap()
}

fn seen(adopted: &Adopted) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(adopted.len()).unwrap()];
    view(adopted).read_at(adopted.lead(), &mut bytes).unwrap();
    bytes
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn a_large_vector_is_shared_both_ways_and_can_grow() {
    let mut data: Vec<u8> = (0..1 << 20).map(|i: u32| i.to_le_bytes()[1]).collect();
    let adopted = adopt_slice(&data);
    assert_eq!(adopted.pieces().len(), 1);
    assert_eq!(seen(&adopted), data);
    view(&adopted)
        .write_at(adopted.lead() + 77, &[200])
        .unwrap();
    assert_eq!(std::hint::black_box(&data)[77], 200);
    data[78] = 201;
    assert_eq!(seen(&adopted)[78], 201);
    // glibc lengthens the mapping of a large block; the room in the memfd takes it.
    let before = data.clone();
    data.resize(64 << 20, 9);
    assert_eq!(data[..1 << 20], before);
    assert!(data[1 << 20..].iter().all(|b| *b == 9));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn small_blocks_and_their_neighbours_stay_usable() {
    let mut blocks: Vec<Box<[u8; 100]>> = (0..500u32)
        .map(|n| Box::new([n.to_le_bytes()[0]; 100]))
        .collect();
    let adopted: Vec<_> = blocks
        .iter()
        .step_by(37)
        .map(|b| adopt_slice(&b[..]))
        .collect();
    for (n, block) in (0u32..).zip(&blocks) {
        assert_eq!(**block, [n.to_le_bytes()[0]; 100]);
    }
    for (adopted, block) in adopted.iter().zip(blocks.iter().step_by(37)) {
        assert_eq!(seen(adopted), &block[..]);
    }
    blocks.truncate(250);
    for _ in 0..20 {
        let more: Vec<Vec<u8>> = (1..400).map(|n| vec![3; n * 7]).collect();
        assert!(more.iter().all(|v| v.iter().all(|b| *b == 3)));
        assert!(vec![0u8; 3000].iter().all(|b| *b == 0));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn a_buffer_on_the_stack_is_shared_with_either_guard() {
    for kinds in [[Faults::All], [Faults::User]] {
        let space = std::hint::black_box([5u8; 256 << 10]);
        let (address, len) = at(&space[..20_000]);
        match adopt_here(address, len, &kinds) {
            Ok(adopted) => assert!(seen(&adopted) == space[..20_000]),
            Err(AdoptError::NoGuard(why)) => println!("{kinds:?}: {why}"),
            Err(other) => panic!("{other}"),
        }
        assert!(std::hint::black_box(&space).iter().all(|b| *b == 5));
    }
}

/// Two threads count in all words of a memory that is adopted meanwhile.
fn increments_survive(kinds: &[Faults]) {
    let words: Vec<AtomicU64> = (0..8 << 20).map(|_| AtomicU64::new(0)).collect();
    let (address, len) = at(&words);
    let stop = AtomicBool::new(false);
    let (adopted, written) = std::thread::scope(|scope| {
        let count = |first: usize| {
            let (words, stop) = (&words, &stop);
            move || {
                let (mut n, mut written) = (first, 0u64);
                while !stop.load(Ordering::Relaxed) {
                    words[n % words.len()].fetch_add(1, Ordering::Relaxed);
                    n += 4099;
                    written += 1;
                }
                written
            }
        };
        let threads = [scope.spawn(count(0)), scope.spawn(count(2051))];
        let adopted = adopt_here(address, len, kinds);
        std::thread::sleep(std::time::Duration::from_millis(20));
        stop.store(true, Ordering::Relaxed);
        (adopted, threads.map(|t| t.join().unwrap()).iter().sum())
    });
    let total: u64 = words.iter().map(|w| w.load(Ordering::Relaxed)).sum();
    assert_eq!(total, written, "writes are lost");
    println!("{kinds:?}: {written} writes, none lost");
    match adopted {
        Ok(adopted) => {
            let bytes = seen(&adopted);
            let there = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|w| u64::from_ne_bytes(*w));
            assert!(there.eq(words.iter().map(|w| w.load(Ordering::Relaxed))));
        }
        Err(AdoptError::NoGuard(why)) => println!("{kinds:?}: {why}"),
        Err(other) => panic!("{other}: {:?}", std::error::Error::source(&other)),
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn no_write_of_another_thread_is_lost() {
    increments_survive(&[Faults::All]);
    increments_survive(&[Faults::User]);
}

/// An anonymous mapping for tests: `pages` pages, never unmapped.
fn pages(pages: usize, prot: ProtFlags) -> u64 {
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let made = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), pages * 4096, prot, MapFlags::PRIVATE)
    };
    made.unwrap().expose_provenance() as u64
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn pages_never_touched_can_be_adopted() {
    let start = pages(16, ProtFlags::READ | ProtFlags::WRITE);
    let adopted = adopt_here(start, 16 * PAGE, &GUARDS).unwrap();
    assert_eq!(seen(&adopted), vec![0; 16 * 4096]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn what_is_adopted_is_found_again_and_gaps_are_filled() {
    let start = pages(8, ProtFlags::READ | ProtFlags::WRITE);
    let first = adopt_here(start + 2 * PAGE + 5, 2 * PAGE, &GUARDS).unwrap();
    assert_eq!((first.lead(), first.len()), (5, 2 * PAGE));
    let [piece] = first.pieces() else { panic!() };
    assert_eq!(
        (piece.offset, piece.address, piece.len),
        (0, start + 2 * PAGE, 3 * PAGE)
    );
    let inner = adopt_here(start + 3 * PAGE, 1, &GUARDS).unwrap();
    let [inner] = inner.pieces() else { panic!() };
    assert!(Arc::ptr_eq(&inner.fd, &piece.fd));
    assert_eq!((inner.offset, inner.len), (PAGE, PAGE));
    // Both sides of it are missing.
    let all = adopt_here(start, 8 * PAGE, &GUARDS).unwrap();
    let lens: Vec<u64> = all.pieces().iter().map(|p| p.len / PAGE).collect();
    assert_eq!(lens, [2, 3, 3]);
    assert!(Arc::ptr_eq(&all.pieces()[1].fd, &piece.fd));
    view(&all).write_at(5 * PAGE - 4, &[7; 8]).unwrap();
    assert_eq!(view(&first).len(), 3 * 4096);
    let mut end = [0; 4];
    view(&first).read_at(3 * PAGE - 4, &mut end).unwrap();
    assert_eq!(end, [7; 4]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn what_cannot_be_adopted_is_named() {
    let refused = |address, len| adopt_here(address, len, &GUARDS).unwrap_err();
    assert!(matches!(refused(4096, 0), AdoptError::Empty));
    assert!(matches!(
        refused(u64::MAX - 5, 9),
        AdoptError::TooLong { .. }
    ));
    assert!(matches!(refused(4096, 9), AdoptError::Unmapped(4096)));
    let read_only = pages(2, ProtFlags::READ);
    assert!(matches!(refused(read_only, 9), AdoptError::Mapping(m) if m.permissions == "r--p"));
    let code = (pages as fn(_, _) -> _ as *const ()).expose_provenance() as u64;
    assert!(refused(code, 1).to_string().contains("xroce_shm"));
    let shared = Region::anonymous(4096).unwrap();
    let why = refused(shared.address(), 1).to_string();
    assert!(why.contains("rw-s /memfd:xroce (deleted)"), "{why}");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn without_a_guard_nothing_is_adopted() {
    let start = pages(1, ProtFlags::READ | ProtFlags::WRITE);
    let refused = adopt_here(start, 1, &[]).unwrap_err();
    assert!(matches!(refused, AdoptError::NoGuard(_)));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn another_process_sees_the_same_bytes() {
    let data: Vec<u8> = (0..3 << 20).map(|i: u32| (i % 253) as u8).collect();
    let adopted = adopt_slice(&data);
    let [piece] = adopted.pieces() else { panic!() };
    let child = std::process::Command::new("head")
        .arg(format!("--bytes={}", piece.len))
        .stdin(piece.fd.try_clone().unwrap())
        .output()
        .unwrap();
    let lead = usize::try_from(adopted.lead()).unwrap();
    assert!(child.status.success());
    assert!(child.stdout[lead..lead + data.len()] == data);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd and no userfaultfd")]
fn the_memfd_cannot_shrink() {
    let start = pages(1, ProtFlags::READ | ProtFlags::WRITE);
    let adopted = adopt_here(start, 1, &GUARDS).unwrap();
    let fd = &adopted.pieces()[0].fd;
    assert!(ftruncate(fd, 0).is_err());
    assert!(fcntl_add_seals(fd, SealFlags::WRITE).is_err());
}
