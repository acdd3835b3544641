//! iperf3 TCP between two places.

use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration as StdDuration;

use serde_json::Value;

/// Ends the server, whatever happens.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bits a second that arrive. `at_server` and `at_client` make a command for a program there.
pub(crate) fn tcp(
    at_server: impl Fn(&str) -> Command,
    at_client: impl Fn(&str) -> Command,
    server: &str,
    seconds: f64,
) -> Result<f64, String> {
    // `ip netns exec` would only say that it failed.
    match Command::new("iperf3").arg("--version").output() {
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(String::from("needs iperf3")),
        _ => {}
    }
    let mut command = at_server("iperf3");
    command.args(["-s", "-1", "-B", server]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(Stdio::null()).spawn();
    let _server = Server(child.map_err(|e| format!("iperf3: {e}"))?);
    let seconds = format!("{:.0}", seconds.max(1.0).ceil());
    let mut said = String::new();
    // The server may not listen yet.
    for _ in 0..40 {
        sleep(StdDuration::from_millis(50));
        let mut client = at_client("iperf3");
        client.args(["-J", "-t", &seconds, "-c", server]);
        let output = client.output().map_err(|e| format!("iperf3: {e}"))?;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if let Some(rate) = report["end"]["sum_received"]["bits_per_second"].as_f64() {
            return Ok(rate);
        }
        said = report["error"].as_str().unwrap_or("no report").to_owned();
        if !said.contains("connect") {
            break;
        }
    }
    Err(format!("iperf3: {said}"))
}
