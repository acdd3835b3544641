//! The files of this repository, for tests that read them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All text files but what is built or downloaded, by path from the root.
pub(crate) fn files() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            let is_ours = !matches!(name.as_str(), ".git" | "target" | "report");
            if path.is_dir() && is_ours {
                folders.push(path);
            } else if is_ours && let Ok(text) = fs::read_to_string(&path) {
                found.insert(name, text);
            }
        }
    }
    assert!(found.len() > 100, "{} files", found.len());
    found
}

/// Fails with what was found, if anything was.
pub(crate) fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}
