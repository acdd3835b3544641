//! `xroce decode FILE`: every RoCE packet of a capture, one line each.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

/// Print the RoCE packets of a capture file.
#[derive(Args, Clone, Debug)]
pub(crate) struct DecodeArgs {
    /// Capture to read: pcap or pcapng.
    pub(crate) file: PathBuf,
    /// One JSON object per line instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    /// Counts per opcode and per connection instead of packets.
    #[arg(long)]
    pub(crate) summary: bool,
}

/// Runs the command. A reader that goes away (`| head`) is no error.
///
/// # Errors
/// The file is missing, empty, no capture, or damaged so that nothing after it can be read. What
/// was readable has been written by then; the error is one line that says what and where.
pub(crate) fn run(args: &DecodeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let _ = (args, out);
    anyhow::bail!("decode is not built yet")
}
