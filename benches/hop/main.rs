//! Congestion and loss over real frames: engines over AF_XDP on veth pairs, joined by a hop in the
//! kernel whose phantom queue marks and drops (`xroce_net::xdp::hop`). The table of
//! docs/congestion.md; the same goes to `target/bench`. No timing is asserted.
//!
//! `cargo bench --bench hop -- [--rounds N] [--seconds S]`, as root.
#![allow(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench talks, in figures for people"
)]

#[cfg(feature = "xdp")]
mod lab;
#[cfg(feature = "xdp")]
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "xdp")]
mod tables;

use std::process::ExitCode;

#[cfg(feature = "xdp")]
fn main() -> ExitCode {
    match tables::run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(feature = "xdp"))]
fn main() -> ExitCode {
    eprintln!("built without AF_XDP: nothing to measure");
    ExitCode::SUCCESS
}
