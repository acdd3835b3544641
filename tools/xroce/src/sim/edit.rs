//! Values given on the command line or by a sweep, put into a scenario.

use std::fmt;

use toml::{Table, Value};
use xroce_fabric::Setup;
use xroce_fabric::scenario::{Scenario, ScenarioError};

/// A key by its path, and a value for it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Assignment {
    /// Keys and indices from the top, with dots between.
    pub key: String,
    /// Its value.
    pub value: Value,
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, plain(&self.value))
    }
}

/// A value without the quotes of a string.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Assignment {
    /// From "key=value".
    ///
    /// # Errors
    /// There is no "=".
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (key, text) = split(text)?;
        let value = value(text);
        Ok(Self { key, value })
    }
}

/// "key=rest".
///
/// # Errors
/// There is no "=", or nothing before it.
pub(crate) fn split(text: &str) -> Result<(String, &str), String> {
    let (key, rest) = text.split_once('=').unwrap_or_default();
    let key = key.trim();
    if key.is_empty() {
        return Err(format!(
            "\"{text}\" is not KEY=VALUE, such as ecn.kmin=20KB"
        ));
    }
    Ok((key.to_owned(), rest.trim()))
}

/// What TOML makes of a text, and what it does not know is a string: 20KB needs no quotes.
pub(crate) fn value(text: &str) -> Value {
    let parsed = format!("v = {text}").parse::<Table>();
    let single = parsed.ok().filter(|t| t.len() == 1);
    let value = single.and_then(|mut t| t.remove("v"));
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Sets a key, making the tables it is in.
///
/// # Errors
/// Something on the way is no table, or an array without this element.
pub(crate) fn set(table: &mut Table, assignment: &Assignment) -> Result<(), String> {
    let mut keys: Vec<&str> = assignment.key.split('.').collect();
    let last = keys.pop().unwrap_or_default();
    let no = |what: &str| format!("{}: {what}", assignment.key);
    let mut here: Option<&mut Value> = None;
    for key in keys {
        let next = match here {
            None => table
                .entry(key)
                .or_insert_with(|| Value::Table(Table::new())),
            Some(Value::Table(t)) => t.entry(key).or_insert_with(|| Value::Table(Table::new())),
            Some(Value::Array(items)) => {
                let index = key.parse::<usize>().ok();
                let found = index.and_then(|i| items.get_mut(i));
                found.ok_or_else(|| no(&format!("there is no element {key}")))?
            }
            Some(_) => return Err(no(&format!("what {key} is in is no table"))),
        };
        here = Some(next);
    }
    match here {
        None => drop(table.insert(last.to_owned(), assignment.value.clone())),
        Some(Value::Table(t)) => drop(t.insert(last.to_owned(), assignment.value.clone())),
        Some(Value::Array(items)) => {
            let index = last.parse::<usize>().ok();
            let found = index.and_then(|i| items.get_mut(i));
            let slot = found.ok_or_else(|| no(&format!("there is no element {last}")))?;
            *slot = assignment.value.clone();
        }
        Some(_) => return Err(no(&format!("what {last} is in is no table"))),
    }
    Ok(())
}

/// A scenario with some values replaced.
///
/// # Errors
/// As [`Scenario::load`], but without lines where they would not be those of the file.
pub(crate) fn load(
    text: &str,
    assignments: &[Assignment],
    seed: Option<u64>,
) -> Result<(Scenario, Setup), ScenarioError> {
    // Its own mistakes first, with their lines.
    Scenario::parse(text)?;
    let mut table = text.parse::<Table>().unwrap_or_default();
    let bad = |what: String| ScenarioError {
        line: 0,
        key: None,
        what,
    };
    for assignment in assignments {
        set(&mut table, assignment).map_err(bad)?;
    }
    let text = toml::to_string(&table).map_err(|e| bad(e.to_string()))?;
    Scenario::load(&text, seed).map_err(|e| ScenarioError { line: 0, ..e })
}
