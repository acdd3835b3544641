//! Right programs compile, and every wrong one is in the list that is tried (`src/wrong.rs`).

#[path = "compile_pass/connected.rs"]
mod connected;
#[path = "compile_pass/shared.rs"]
mod shared;

use std::fs;

/// Most of what they show is that this test was built.
#[test]
fn right_programs_compile() {
    connected::main();
    shared::main();
}

#[test]
fn every_wrong_program_is_tried() {
    let list = include_str!("../src/wrong.rs");
    let mut count = 0;
    for entry in fs::read_dir("tests/compile_fail").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "rs") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(list.contains(&format!("\"{name}\"")), "{name}");
            count += 1;
        }
    }
    assert!(count >= 12, "{count}");
}
