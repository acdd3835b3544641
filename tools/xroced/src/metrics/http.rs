//! As much HTTP as a scrape needs: one GET per connection, answered and closed.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};

use xroce_engine::clock;
use xroce_proto::time::{Duration, Instant};

/// From being accepted to being closed: a client that is slower is given up.
const DEADLINE: Duration = Duration::from_millis(3000);
/// Bytes of a request, at most.
const REQUEST_MAX: usize = 8192;
/// Headers of a request, at most.
const HEADERS_MAX: usize = 64;
/// What the metrics are written in.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Answers one request.
pub(super) fn serve(mut stream: TcpStream, page: impl FnOnce() -> String) {
    let until = clock::now() + DEADLINE;
    // Whoever hangs up or is too slow gets nothing, and nobody else notices.
    let _ = try_serve(&mut stream, until, page);
}

/// Tells somebody to come back.
pub(super) fn refuse(mut stream: TcpStream) {
    let text = "too many scrapes at once\n";
    let _ = answer(&mut stream, clock::now() + DEADLINE, 503, PLAIN, text);
}

fn try_serve(stream: &mut TcpStream, until: Instant, page: impl FnOnce() -> String) -> Result<()> {
    stream.set_nonblocking(false)?;
    let (status, kind, body) = match request(stream, until)? {
        Some((method, _)) if method != "GET" && method != "HEAD" => {
            (405, PLAIN, "only GET\n".to_owned())
        }
        Some((_, path)) if path == "/metrics" => (200, OPEN_METRICS, page()),
        Some((_, path)) if path == "/" => (200, PLAIN, "xroced: see /metrics\n".to_owned()),
        Some(_) => (404, PLAIN, "there is only /metrics\n".to_owned()),
        None => (400, PLAIN, "not a request of HTTP/1\n".to_owned()),
    };
    answer(stream, until, status, kind, &body)
}

/// What is left, for a socket that takes no zero.
fn left(until: Instant) -> Result<std::time::Duration> {
    match until.since(clock::now()).as_nanos() {
        0 => Err(Error::from(ErrorKind::TimedOut)),
        ns => Ok(std::time::Duration::from_nanos(ns)),
    }
}

/// Method and path; `None`: what came is no request.
fn request(stream: &mut TcpStream, until: Instant) -> Result<Option<(String, String)>> {
    let mut bytes = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) => {
                let (method, target) = (request.method, request.path);
                let path = target.map(|t| t.split('?').next().unwrap_or(t).to_owned());
                return Ok(method.map(str::to_owned).zip(path));
            }
            Ok(httparse::Status::Partial) if bytes.len() < REQUEST_MAX => {}
            Ok(httparse::Status::Partial) | Err(_) => return Ok(None),
        }
        stream.set_read_timeout(Some(left(until)?))?;
        let mut more = [0; 1024];
        let came = stream.read(&mut more)?;
        if came == 0 {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        bytes.extend(more.iter().take(came));
    }
}

fn answer(
    stream: &mut TcpStream,
    until: Instant,
    status: u16,
    kind: &str,
    body: &str,
) -> Result<()> {
    let name = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "Service Unavailable",
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} {name}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    for mut part in [head.as_bytes(), body.as_bytes()] {
        while !part.is_empty() {
            stream.set_write_timeout(Some(left(until)?))?;
            let sent = stream.write(part)?;
            if sent == 0 {
                return Err(Error::from(ErrorKind::WriteZero));
            }
            part = part.get(sent..).unwrap_or_default();
        }
    }
    stream.shutdown(Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn asked(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(request).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        serve(server, || "a 1\n".to_owned());
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_scrape_is_answered_and_anything_else_is_told_what_there_is() {
        for (request, status, body) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 200, "a 1\n"),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", 200, "a 1\n"),
            ("GET / HTTP/1.1\r\n\r\n", 200, "/metrics"),
            ("GET /x HTTP/1.1\r\n\r\n", 404, "/metrics"),
            ("POST /metrics HTTP/1.1\r\n\r\n", 405, "GET"),
            ("\u{1}\u{2}\r\n\r\n", 400, "HTTP"),
        ] {
            let text = asked(request.as_bytes());
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
            assert!(text.ends_with(body) || text.contains(body), "{text}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(REQUEST_MAX));
        let text = asked(long.as_bytes());
        assert!(text.is_empty() || text.contains(" 400 "), "{text}");
    }

    #[test]
    fn who_hangs_up_in_the_middle_gets_nothing() {
        assert_eq!(asked(b"GET /met"), "");
    }
}
