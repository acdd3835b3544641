//! What is wrong with a scenario, and where.

use std::fmt;

use toml::de::{DeTable, DeValue};

/// A value that cannot be, by the path of its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Keys and indices from the top, such as "workload", "0", "incast", "senders".
    pub path: Vec<String>,
    /// What is wrong and what would be right.
    pub what: String,
}

impl Problem {
    /// At a path written "workload.0.incast".
    pub(crate) fn at(path: &str, what: impl Into<String>) -> Self {
        Self {
            path: path.split('.').map(str::to_owned).collect(),
            what: what.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.join("."), self.what)
    }
}

impl std::error::Error for Problem {}

/// A value within its limits, or the problem.
pub(crate) fn within<T: PartialOrd + fmt::Display + Copy>(
    path: &str,
    value: T,
    (least, most): (T, T),
) -> Result<T, Problem> {
    if value >= least && value <= most {
        return Ok(value);
    }
    let what = format!("{value} is out of range, it must be {least} to {most}");
    Err(Problem::at(path, what))
}

/// The name closest to one that does not exist, if it is close at all.
pub(crate) fn nearest<'a>(
    given: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let near = |name: &'a str| (strsim::damerau_levenshtein(given, name), name);
    let (distance, name) = known.into_iter().map(near).min()?;
    (distance <= name.len().max(given.len()) / 3 + 1).then_some(name)
}

/// "`b`: did you mean `a`? Known are `a`, `c`".
pub(crate) fn unknown(what: &str, given: &str, known: &[&str]) -> String {
    let list = known.join(", ");
    match nearest(given, known.iter().copied()) {
        Some(name) => format!("unknown {what} \"{given}\": did you mean \"{name}\"? Known: {list}"),
        None => format!("unknown {what} \"{given}\". Known: {list}"),
    }
}

/// An error in the text of a scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScenarioError {
    /// Line, from 1; 0 if it is not in the text.
    pub line: usize,
    /// Path of the key, if there is one.
    pub key: Option<String>,
    /// What is wrong and what would be right.
    pub what: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        match &self.key {
            Some(key) => write!(f, "{key}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for ScenarioError {}

impl ScenarioError {
    /// What the parser or serde found.
    pub(crate) fn of_toml(text: &str, error: &toml::de::Error) -> Self {
        let message = error.message().replace('\n', " ");
        let start = error.span().map(|span| span.start);
        let (line, key) = match start {
            Some(at) => (line_of(text, at), key_of_line(text, at)),
            None => (0, None),
        };
        let (what, key) = match unknown_field(&message) {
            Some(what) => (what, None),
            None => (message, key),
        };
        Self { line, key, what }
    }

    /// A problem, with the line of the key or of the nearest one above it that is there.
    pub(crate) fn locate(text: &str, problem: &Problem) -> Self {
        let at = DeTable::parse(text)
            .ok()
            .and_then(|table| find(table.get_ref(), &problem.path));
        Self {
            line: at.map_or(0, |at| line_of(text, at)),
            key: Some(problem.path.join(".")),
            what: problem.what.clone(),
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    before.iter().filter(|b| **b == b'\n').count() + 1
}

/// The key to the left of a value.
fn key_of_line(text: &str, at: usize) -> Option<String> {
    let before = text.get(..at)?;
    let line = before.rsplit('\n').next()?;
    let key = line
        .rsplit(['{', ',', '['])
        .next()?
        .split('=')
        .next()?
        .trim();
    let is_key = !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_alphanumeric() || "_-.\"".contains(c));
    is_key.then(|| key.to_owned())
}

/// serde's "unknown field `x`, expected one of `a`, `b`", or what toml says of a table that stands for
/// a choice, with a guess at what was meant.
fn unknown_field(message: &str) -> Option<String> {
    if let Some(rest) = message.strip_prefix("unexpected keys in table: ") {
        let (given, known) = rest.split_once(", available keys: ")?;
        let known: Vec<&str> = known.split(", ").collect();
        return Some(unknown("key", given.split(", ").next()?, &known));
    }
    let (what, rest) = match message.strip_prefix("unknown field `") {
        Some(rest) => ("key", rest),
        None => ("name", message.strip_prefix("unknown variant `")?),
    };
    let (given, rest) = rest.split_once('`')?;
    let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    Some(unknown(what, given, &known))
}

/// Where a key is in the text; of one that is not there, the deepest that is.
fn find(table: &DeTable<'_>, path: &[String]) -> Option<usize> {
    let (first, rest) = path.split_first()?;
    let (key, value) = table.iter().find(|(k, _)| k.get_ref().as_ref() == first)?;
    let at = key.span().start;
    Some(inside(value.get_ref(), rest).unwrap_or(at))
}

fn inside(value: &DeValue<'_>, path: &[String]) -> Option<usize> {
    match value {
        DeValue::Table(table) => find(table, path),
        DeValue::Array(items) => {
            let (index, rest) = path.split_first()?;
            let item = items.get(index.parse::<usize>().ok()?)?;
            Some(inside(item.get_ref(), rest).unwrap_or_else(|| item.span().start))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_if_it_is_near() {
        assert_eq!(nearest("kmni", ["kmin", "kmax", "pmax"]), Some("kmin"));
        assert_eq!(nearest("zzzzzzzz", ["kmin", "kmax"]), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn problems_are_found_in_the_text() {
        let text = "a = 1\n[[w]]\nx = { y = 2 }\n[[w]]\nx = { y = 3 }\n";
        let line = |path: &str| ScenarioError::locate(text, &Problem::at(path, "bad")).line;
        assert_eq!(
            ["a", "w.0.x.y", "w.1.x.y", "w.1.x.z"].map(line),
            [1, 3, 5, 5]
        );
        assert_eq!(line("not.there"), 0);
        // An array of tables begins with its header.
        assert_eq!(line("w.1"), 4);
    }
}
