//! D8: xroce and rdma_rxe between the same two virtual machines, by `xroce-interop rate`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::Lab;
use super::rows::{
    D8_READ_1M, D8_READ_64, D8_SEND_1M, D8_SEND_64, D8_WRITE_1M, D8_WRITE_64, Kind, Table, one_line,
};

/// Rows by operation and size.
static ROWS: [(&str, u32, &Kind); 6] = [
    ("send", 64, &D8_SEND_64),
    ("write", 64, &D8_WRITE_64),
    ("read", 64, &D8_READ_64),
    ("send", 1 << 20, &D8_SEND_1M),
    ("write", 1 << 20, &D8_WRITE_1M),
    ("read", 1 << 20, &D8_READ_1M),
];

/// A row of its rate.json: messages a second, by round.
#[derive(Deserialize, Debug)]
struct Rate {
    operation: String,
    size: u32,
    rxe: Vec<f64>,
    xroce: Vec<f64>,
}

/// Measures all of D8; the rows say why if that cannot be.
pub(crate) fn measure(lab: &mut Lab) {
    let rates = program()
        .and_then(|program| run(&program, lab))
        .and_then(|text| {
            serde_json::from_str::<Vec<Rate>>(&text).map_err(|e| format!("rate.json: {e}"))
        });
    match rates {
        Ok(rates) => rates.iter().for_each(|rate| add(&mut lab.table, rate)),
        Err(why) => ROWS.iter().for_each(|r| lab.table.note(r.2, why.clone())),
    }
}

/// Where `make interop-build` has put it.
fn program() -> Result<PathBuf, String> {
    if !rustix::process::geteuid().is_root() {
        return Err(String::from("needs root"));
    }
    // Cargo gives `target/tmp`.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = target.with_file_name("release").join("xroce-interop");
    if !program.exists() {
        return Err(String::from("needs make interop-build"));
    }
    Ok(program)
}

fn run(program: &Path, lab: &Lab) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut child = Command::new(program)
        .args(["rate", "--rounds", &lab.options.rounds.min(50).to_string()])
        .arg("--report")
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let mut last = String::from("it failed");
    if let Some(pipe) = child.stderr.take() {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            last = one_line(&line);
            lab.progress.says(&format!("D8: {last}"));
        }
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err(last);
    }
    fs::read_to_string(folder.path().join("rate.json")).map_err(|e| format!("rate.json: {e}"))
}

fn add(table: &mut Table, rate: &Rate) {
    let is = |r: &&(&str, u32, &Kind)| r.0 == rate.operation && r.1 == rate.size;
    let Some((_, size, kind)) = ROWS.iter().find(is) else {
        return;
    };
    // Small messages are counted, large ones weighed.
    let weight = if *size < 1 << 20 {
        1.0
    } else {
        f64::from(*size)
    };
    for (ours, rxe) in rate.xroce.iter().zip(&rate.rxe) {
        table.add(kind, ours * weight, Some(rxe * weight));
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::*;

    #[test]
    fn its_file_becomes_rows() {
        let text = r#"[{"operation": "send", "size": 64, "rxe": [5.0], "xroce": [20.0], "target": 3.0},
            {"operation": "read", "size": 1048576, "rxe": [60.0, 61.0], "xroce": [63.0, 62.0], "target": 2.0},
            {"operation": "fly", "size": 64, "rxe": [], "xroce": [], "target": 2.0}]"#;
        let rates: Vec<Rate> = serde_json::from_str(text).unwrap();
        let mut table = Table::new();
        rates.iter().for_each(|rate| add(&mut table, rate));
        let rows = table.into_rows();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].ratio().unwrap().median, 4.0);
        assert_eq!(rows[1].samples.len(), 2);
        assert_eq!(rows[1].samples[0].ours, 63.0 * 1048576.0);
    }
}
