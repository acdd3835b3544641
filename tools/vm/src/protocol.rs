//! The line protocol between [`Agent`](crate::Agent) and the program in the guest.
//!
//! A request is `SEQ VERB k=v k=v …[ len=N]\n` and N bytes, its answer `SEQ ok k=v …[ len=N]\n`
//! and N bytes, or `SEQ err TEXT\n`.

use anyhow::{Context as _, Result, bail, ensure};

/// No answer has more bytes in its line, or behind it.
pub(crate) const MAX_LINE: usize = 1 << 20;
pub(crate) const MAX_PAYLOAD: usize = 64 << 20;

/// What the agent answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Keys and values in the order of the line; a key may come more than once.
    pub fields: Vec<(String, String)>,
    /// The bytes behind the line.
    pub payload: Vec<u8>,
}

impl Answer {
    /// The value of a key; the first if there are more.
    pub fn text(&self, key: &str) -> Result<&str> {
        let value = self.all(key).next();
        value.with_context(|| format!("the answer has no {key}="))
    }

    /// The same as a number.
    pub fn num(&self, key: &str) -> Result<u64> {
        number(self.text(key)?).with_context(|| key.to_owned())
    }

    /// The same as a number that has to fit 32 bits: keys, QPNs, PSNs.
    pub fn num32(&self, key: &str) -> Result<u32> {
        let value = self.num(key)?;
        value.try_into().with_context(|| format!("{key}={value}"))
    }

    /// All values of a key.
    pub fn all<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        let fields = self.fields.iter().filter(move |(k, _)| k == key);
        let values: Vec<&str> = fields.map(|(_, value)| value.as_str()).collect();
        values.into_iter()
    }
}

/// Decimal, or hex after `0x`.
pub(crate) fn number(text: &str) -> Result<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .with_context(|| format!("{text:?} is no number"))
}

/// The agent understood the request and did not do it.
///
/// Errors of [`Agent::call`](crate::Agent::call) that can be downcast to it leave the agent ready
/// for the next request; after all others it is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What was asked for.
    pub request: String,
    /// Why not; names the errno where a call failed.
    pub text: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the agent refuses {:?}: {}", self.request, self.text)
    }
}

impl std::error::Error for Refused {}

/// The first line of an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Head {
    /// Fields, and how many bytes follow.
    Ok(Vec<(String, String)>, usize),
    Err(String),
}

/// Parses the line (without its end) that answers request `seq`.
pub(crate) fn parse_head(line: &[u8], seq: u64) -> Result<Head> {
    let line = std::str::from_utf8(line).context("bytes that are no text")?;
    let (number, rest) = line.split_once(' ').context("no sequence number")?;
    let number: u64 = number.parse().context("no sequence number")?;
    ensure!(number == seq, "an answer to request {number}");
    let (verdict, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    match verdict {
        "err" => return Ok(Head::Err(rest.to_owned())),
        "ok" => {}
        _ => bail!("neither ok nor err"),
    }
    let mut fields = Vec::new();
    let mut len = 0;
    for word in rest.split(' ').filter(|word| !word.is_empty()) {
        let (key, value) = word
            .split_once('=')
            .with_context(|| format!("{word:?} is no key=value"))?;
        if key == "len" {
            len = value.parse().context("the payload's length")?;
            ensure!(len <= MAX_PAYLOAD, "a payload of {len} bytes");
        }
        fields.push((key.to_owned(), value.to_owned()));
    }
    Ok(Head::Ok(fields, len))
}

/// The request's bytes.
pub(crate) fn request(seq: u64, verb: &str, args: &str, payload: Option<&[u8]>) -> Result<Vec<u8>> {
    let mut line = format!("{seq} {verb}");
    if !args.is_empty() {
        line.push(' ');
        line.push_str(args);
    }
    if let Some(payload) = payload {
        // The agent reads bytes behind these only, and would take them for the next request.
        let takes = ["exec", "spawn", "put", "batch"].contains(&verb);
        ensure!(takes, "{verb} takes no payload");
        ensure!(
            payload.len() <= MAX_PAYLOAD,
            "a payload of {} bytes",
            payload.len()
        );
        line.push_str(&format!(" len={}", payload.len()));
    }
    ensure!(
        line.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
        "a request has to be one line of ASCII: {line:?}"
    );
    line.push('\n');
    let mut bytes = line.into_bytes();
    bytes.extend_from_slice(payload.unwrap_or_default());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(own).collect()
    }

    #[test]
    fn answers() {
        let parse =
            |line: &str| parse_head(line.as_bytes(), 7).map_err(|error| format!("{error:#}"));
        let ok = fields(&[("n", "2"), ("wc", "1:0"), ("wc", "2:0")]);
        assert_eq!(parse("7 ok n=2 wc=1:0 wc=2:0").unwrap(), Head::Ok(ok, 0));
        let ok = fields(&[("len", "5"), ("rc", "0")]);
        assert_eq!(parse("7 ok len=5 rc=0").unwrap(), Head::Ok(ok, 5));
        assert_eq!(parse("7 ok").unwrap(), Head::Ok(vec![], 0));
        assert_eq!(parse("7 err no qp 3").unwrap(), Head::Err("no qp 3".into()));
        assert_eq!(parse("6 ok").unwrap_err(), "an answer to request 6");
        assert_eq!(parse("7 oh").unwrap_err(), "neither ok nor err");
        assert_eq!(parse("7 ok a").unwrap_err(), "\"a\" is no key=value");
        assert!(
            parse("7 ok len=-1")
                .unwrap_err()
                .starts_with("the payload's length")
        );
        assert!(
            parse("7 ok len=99999999999")
                .unwrap_err()
                .starts_with("a payload of")
        );
        assert!(parse("").is_err() && parse("7").is_err() && parse("x ok").is_err());
        assert!(parse_head(b"7 ok \xff", 7).is_err());
    }

    #[test]
    fn values() {
        let answer = Answer {
            fields: fields(&[("qpn", "0x11"), ("wc", "a"), ("wc", "b"), ("n", "x")]),
            payload: vec![],
        };
        assert_eq!(answer.num32("qpn").unwrap(), 17);
        assert_eq!(answer.all("wc").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            answer.num("z").unwrap_err().to_string(),
            "the answer has no z="
        );
        assert!(format!("{:#}", answer.num("n").unwrap_err()).contains("\"x\" is no number"));
        assert!(number("0x").is_err() && number("").is_err() && number("-1").is_err());
    }

    #[test]
    fn requests() {
        let bytes = request(3, "exec", "timeout=5", Some(b"ls\n")).unwrap();
        assert_eq!(bytes, b"3 exec timeout=5 len=3\nls\n");
        assert_eq!(request(4, "gids", "", None).unwrap(), b"4 gids\n");
        assert!(request(5, "gids", "a=1\n6 reset", None).is_err());
        assert!(request(5, "gids", "", Some(b"x")).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_at_most(line in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse_head(&line, 7);
        }

        #[test]
        fn damaged_answers_too(at in 0usize..26, byte: u8) {
            let mut line = b"7 ok n=1 wc=1:0:128:16 len=3".to_vec();
            line[at] = byte;
            let _ = parse_head(&line, 7);
        }
    }
}
