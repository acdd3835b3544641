//! Wrong programs do not compile, and say why; right ones do.

#[path = "compile_pass/connected.rs"]
mod connected;
#[path = "compile_pass/shared.rs"]
mod shared;

#[test]
fn wrong_programs_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}

/// Most of what they show is that this test was built.
#[test]
fn right_programs_compile() {
    connected::main();
    shared::main();
}
