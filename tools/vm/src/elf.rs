//! What ELF files say about themselves, and which libraries a set of programs needs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use object::elf::{DT_NEEDED, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, StringTable};

/// Whether it begins like one.
pub(crate) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// File names of the libraries that must be there for it to start: its DT_NEEDED entries, and the
/// dynamic linker.
pub(crate) fn needed(bytes: &[u8]) -> Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let mut names = Vec::new();
    for segment in header.program_headers(endian, bytes)? {
        if segment.p_type(endian) == PT_INTERP
            && let Some(path) = segment.interpreter(endian, bytes)?
        {
            let path = String::from_utf8_lossy(path).into_owned();
            names.push(path.rsplit('/').next().unwrap_or_default().to_owned());
        }
    }
    let sections = header.sections(endian, bytes)?;
    let Some((entries, strings)) = sections.dynamic(endian, bytes)? else {
        return Ok(names);
    };
    let strings: StringTable<'_> = sections.strings(endian, bytes, strings)?;
    for entry in entries.iter().filter(|e| e.tag(endian) == DT_NEEDED) {
        let name = entry.string(endian, strings)?;
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    Ok(names)
}

/// A section's contents; `None` if there is none of the name.
pub(crate) fn section<'a>(bytes: &'a [u8], name: &str) -> Result<Option<&'a [u8]>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    match sections.section_by_name(endian, name.as_bytes()) {
        Some((_, section)) => Ok(Some(section.data(endian, bytes)?)),
        None => Ok(None),
    }
}

/// The libraries of a tree of packages, by file name.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    paths: BTreeMap<String, PathBuf>,
}

impl Libraries {
    /// Those in the given folders; the first of a name counts.
    pub(crate) fn of(folders: &[PathBuf]) -> Result<Self> {
        let mut paths = BTreeMap::new();
        for folder in folders.iter().filter(|folder| folder.is_dir()) {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.contains(".so") && entry.path().is_file() {
                    paths.entry(name).or_insert_with(|| entry.path());
                }
            }
        }
        Ok(Self { paths })
    }

    /// All that the programs need, directly or through each other: file name and place.
    pub(crate) fn closure<'a>(
        &self,
        programs: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<BTreeMap<String, PathBuf>> {
        let mut found = BTreeMap::new();
        let mut open: Vec<(String, String)> = Vec::new();
        for (program, bytes) in programs {
            self.want(program, bytes, &mut open)?;
        }
        while let Some((library, by)) = open.pop() {
            if found.contains_key(&library) {
                continue;
            }
            let path = self.paths.get(&library).with_context(|| {
                format!("{library}, which {by} needs, is in none of the guest's packages")
            })?;
            let bytes = read(path)?;
            self.want(&library, &bytes, &mut open)?;
            found.insert(library, path.clone());
        }
        Ok(found)
    }

    /// One by its file name.
    pub(crate) fn one(&self, name: &str) -> Result<&Path> {
        let path = self.paths.get(name).map(PathBuf::as_path);
        path.with_context(|| format!("{name} is in none of the guest's packages"))
    }

    fn want(&self, by: &str, bytes: &[u8], open: &mut Vec<(String, String)>) -> Result<()> {
        let names = needed(bytes).with_context(|| format!("{by} is no sound ELF file"))?;
        open.extend(names.into_iter().map(|name| (name, by.to_owned())));
        Ok(())
    }
}

/// A file with its name in the error.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test itself is an ELF file with a dynamic linker and libraries.
    fn own() -> Vec<u8> {
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_program_tells_what_it_needs() {
        let names = needed(&own()).unwrap();
        assert!(names.iter().any(|name| name.starts_with("ld-linux")));
        assert!(names.iter().any(|name| name == "libc.so.6"), "{names:?}");
        assert!(section(&own(), ".text").unwrap().is_some());
        assert!(section(&own(), ".no such").unwrap().is_none());
    }

    #[test]
    fn a_missing_library_is_named_with_who_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let libraries = Libraries::of(&[dir.path().to_path_buf()]).unwrap();
        let error = libraries.closure([("prog", &own()[..])]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(".so") && text.contains("which prog needs"),
            "{text}"
        );
    }

    #[test]
    fn libraries_of_libraries_are_found() {
        // libraries stand for each other: each is the test's own file, in which all are named.
        let dir = tempfile::tempdir().unwrap();
        for name in needed(&own()).unwrap() {
            fs::write(dir.path().join(name), own()).unwrap();
        }
        let libraries = Libraries::of(&[dir.path().to_path_buf()]).unwrap();
        let found = libraries.closure([("prog", &own()[..])]).unwrap();
        // The dynamic linker is named twice, as interpreter and as library.
        let names: std::collections::BTreeSet<_> = needed(&own()).unwrap().into_iter().collect();
        assert!(found.keys().eq(&names));
    }

    #[test]
    fn garbage_is_no_elf_file() {
        assert!(needed(b"#!/bin/sh").is_err());
        assert!(needed(&own()[..100]).is_err());
    }
}
