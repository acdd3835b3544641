//! Runs the programs of the host that this crate builds on.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

/// The clock of time limits on programs and machines; nothing in here is simulated.
#[expect(
    clippy::disallowed_methods,
    reason = "waits for real programs, outside the simulation"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs it to the end and returns its standard output; an error holds what it said.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let shown = shown(command);
    let result = command.stdin(Stdio::null()).output();
    let output = match result {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let program = command.get_program().display();
            bail!("{program} is not installed, or not in PATH ({shown})")
        }
        other => other.with_context(|| format!("cannot run {shown}"))?,
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}\n{}", output.status, last_lines(&said, 10));
    }
    Ok(output.stdout)
}

/// As it would be typed, cut where it becomes long.
fn shown(command: &Command) -> String {
    let words: Vec<String> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(|word| word.display().to_string())
        .collect();
    let mut line = words.join(" ");
    if let Some((at, _)) = line.char_indices().nth(200) {
        line.truncate(at);
        line.push('…');
    }
    line
}

/// The end of a long text.
pub(crate) fn last_lines(text: &str, n: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}

/// Where a program is; the folders of root's PATH too.
pub(crate) fn find_program(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(&name))
        .find(|path| path.is_file())
}

/// Shorthand for a command with arguments.
pub(crate) fn command<A: AsRef<OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = Command::new(program);
    // Messages and sort orders as the code expects them.
    command.env("LC_ALL", "C").args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_said_is_in_the_error() {
        let error = output(&mut command("sh", ["-c", "echo no >&2; exit 3"])).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("exit status: 3") && error.ends_with("no"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output(&mut command("xroce-no-such", [""; 0])).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("xroce-no-such is not installed")
        );
    }

    #[test]
    fn the_end_of_a_text() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
    }
}
