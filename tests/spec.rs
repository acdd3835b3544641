//! The rule book (`docs/spec`) against the sources: what a comment cites is there, every rule has a
//! test that names it, and links lead somewhere.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

mod tree;

use std::collections::{BTreeMap, BTreeSet};

use tree::none;

/// What the numbers of rules begin with.
const PREFIXES: [&str; 11] = ["W", "R", "S", "C", "K", "UC", "UD", "Q", "CC", "E", "X"];

/// Rules that no test names, each with the reason.
const UNTESTED: [(&str, &str); 0] = [];

/// Where the rules are.
const BOOK: &str = "docs/spec";

/// Sources and documents.
fn files() -> BTreeMap<String, String> {
    let mut files = tree::files();
    files.retain(|name, _| name.ends_with(".rs") || name.ends_with(".md"));
    files
}

/// The words of a text; a name with an underscore is one.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// Whether a word is the number of a rule, there or not.
fn is_rule(word: &str) -> bool {
    let digits = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
    let prefix = &word[..word.len() - digits.len()];
    PREFIXES.contains(&prefix)
        && matches!(digits.len(), 1 | 2)
        && digits.bytes().all(|b| b.is_ascii_digit())
}

/// The numbers that stand behind the word "case" or "cases".
fn cases(text: &str) -> Vec<u32> {
    let mut found = Vec::new();
    let mut follows = false;
    for word in text.split_whitespace() {
        let number = word.trim_end_matches([',', ';', '.', ':', ')']).parse();
        follows = match number {
            Ok(number) if follows => {
                found.push(number);
                true
            }
            _ => {
                let word = word.trim_start_matches('(');
                matches!(word, "case" | "cases") || (follows && word == "and")
            }
        };
    }
    found
}

/// The documents of the repository that a text names: those in `docs`, and those in capitals. What
/// programs write has other names.
fn documents(text: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let is_ours = |word: &&str| {
        let stem = word.strip_suffix(".md").unwrap_or_default();
        let small = |c: char| c.is_ascii_lowercase();
        !stem.is_empty() && (stem.starts_with("docs/") || !stem.contains(small))
    };
    let words = text.split(move |c| !inside(c));
    words.map(|word| word.trim_end_matches('.')).filter(is_ours)
}

/// The comment of a line, if it has one.
fn comment(line: &str) -> Option<&str> {
    let (at, _) = line
        .match_indices("//")
        .find(|&(at, _)| line[..at].ends_with(' ') || line[..at].is_empty())?;
    Some(line[at..].trim_start_matches(['/', '!']))
}

/// Comments with the line each begins in. Lines one behind the other are one comment.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (at, line) in text.lines().enumerate() {
        let Some(comment) = comment(line) else {
            goes_on = false;
            continue;
        };
        if goes_on && let Some((_, text)) = found.last_mut() {
            text.push(' ');
            text.push_str(comment);
        } else {
            found.push((at + 1, comment.to_owned()));
        }
        goes_on = true;
    }
    found
}

/// Rules of the book with the file each is in and what it says.
fn rules(files: &BTreeMap<String, String>) -> BTreeMap<String, (String, String)> {
    let mut found = BTreeMap::new();
    for (name, text) in files.iter().filter(|(name, _)| name.starts_with(BOOK)) {
        for section in format!("\n{text}").split("\n### ").skip(1) {
            let (rule, _) = section.split_once(". ").unwrap_or_default();
            assert!(is_rule(rule), "{name}: {section:.40} is no rule");
            let section = section.split("\n#").next().unwrap_or_default();
            let before = found.insert(rule.to_owned(), (name.clone(), section.to_owned()));
            assert!(before.is_none(), "{rule} is there twice");
        }
    }
    assert!(found.len() > 100, "{} rules", found.len());
    found
}

/// Numbers of the rows of `docs/cases.md`.
fn rows(files: &BTreeMap<String, String>) -> BTreeSet<u32> {
    files["docs/cases.md"]
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
        .collect()
}

/// Whether a document is there: beside the file that names it, in `docs`, or by its path.
fn is_document(files: &BTreeMap<String, String>, by: &str, name: &str) -> bool {
    let folder = by.rsplit_once('/').map_or("", |(folder, _)| folder);
    [
        name.to_owned(),
        format!("docs/{name}"),
        format!("{folder}/{name}"),
    ]
    .iter()
    .any(|path| files.contains_key(path))
}

#[test]
fn citations_name_what_is_there() {
    let files = files();
    let (rules, rows) = (rules(&files), rows(&files));
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, text) in &files {
        let texts = if name.ends_with(".rs") {
            comments(text)
        } else if name.starts_with("docs/") {
            text.lines()
                .enumerate()
                .map(|(at, line)| (at + 1, line.to_owned()))
                .collect()
        } else {
            continue;
        };
        for (line, text) in texts {
            let cited: Vec<&str> = words(&text).filter(|word| is_rule(word)).collect();
            let tried = cases(&text);
            seen += cited.len() + tried.len();
            let unknown = cited.iter().filter(|rule| !rules.contains_key(**rule));
            wrong.extend(unknown.map(|rule| format!("{name}:{line}: there is no rule {rule}")));
            let unknown = tried.iter().filter(|case| !rows.contains(case));
            wrong.extend(unknown.map(|case| format!("{name}:{line}: there is no case {case}")));
            let unknown = documents(&text).filter(|d| !is_document(&files, name, d));
            if name.ends_with(".rs") {
                wrong.extend(unknown.map(|d| format!("{name}:{line}: there is no document {d}")));
            }
        }
    }
    assert!(seen > 200, "{seen} citations");
    none("citations", &wrong);
}

/// Rules that the tests of a source name: in the comment above one, or at the start of its name.
fn named(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_above = |line: &&&str| line.starts_with("//") || line.starts_with("#[");
    for at in (0..lines.len()).filter(|&at| lines[at] == "#[test]") {
        let above = lines[..at].iter().rev().take_while(is_above);
        let below = lines[at..].iter().take_while(is_above);
        for text in above.chain(below).filter_map(|line| comment(line)) {
            found.extend(words(text).filter(|w| is_rule(w)).map(str::to_owned));
        }
        let head = lines[at..].iter().find_map(|l| l.split_once("fn "));
        let words = head.map_or("", |(_, name)| name).split('_');
        let words = words.map(str::to_ascii_uppercase);
        found.extend(words.take_while(|word| is_rule(word)));
    }
    found
}

#[test]
fn every_rule_has_a_test() {
    let files = files();
    let rules = rules(&files);
    let sources = files.iter().filter(|(name, _)| name.ends_with(".rs"));
    let named: BTreeSet<String> = sources.flat_map(|(_, text)| named(text)).collect();
    let mut wrong = Vec::new();
    for rule in rules.keys() {
        let excused = UNTESTED.iter().find(|(excused, _)| excused == rule);
        match (named.contains(rule), excused) {
            (false, None) => wrong.push(format!("no test names {rule}")),
            (true, Some(_)) => wrong.push(format!("{rule} has a test and an excuse")),
            (false, Some((_, reason))) => println!("{rule} has no test: {reason}"),
            (true, None) => {}
        }
    }
    none("rules", &wrong);
}

/// Targets of the links of a document.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    targets.filter_map(|rest| rest.split(')').next())
}

/// The link that GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_ascii_lowercase();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_of_the_book_lead_somewhere_and_each_rule_says_where_it_is_kept() {
    let files = files();
    let mut wrong = Vec::new();
    for (rule, (name, section)) in rules(&files) {
        let here = section
            .split_once("\n* Here: ")
            .map_or("", |(_, here)| here);
        if !links(here).any(|target| target.ends_with(".rs")) {
            wrong.push(format!("{name}: {rule} names no source"));
        }
        if !section.contains("\n* Source: ") {
            wrong.push(format!("{name}: {rule} does not say where it is from"));
        }
    }
    for (name, text) in files.iter().filter(|(name, _)| name.starts_with(BOOK)) {
        for target in links(text) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = match path.strip_prefix("../../") {
                Some(path) => path.to_owned(),
                None => match path.strip_prefix("../") {
                    Some(path) => format!("docs/{path}"),
                    None => format!("{BOOK}/{path}"),
                },
            };
            let Some(linked) = files.get(&path) else {
                wrong.push(format!("{name}: there is no {target}"));
                continue;
            };
            let mut headings = linked.lines().filter(|line| line.starts_with('#'));
            if !heading.is_empty() && !headings.any(|line| anchor(line) == heading) {
                wrong.push(format!("{name}: there is no heading for {target}"));
            }
        }
    }
    none("links", &wrong);
}

#[test]
fn what_is_a_citation() {
    assert!(is_rule("R12") && is_rule("CC5") && is_rule("UD7"));
    assert!(!is_rule("R") && !is_rule("R123") && !is_rule("D4") && !is_rule("u8"));
    assert_eq!(
        cases("as in cases 5, 6 and 8, or (case 12; of 7"),
        [5, 6, 8, 12]
    );
    assert_eq!(cases("certain cases (0, 1)"), []);
    assert_eq!(cases("(X8, case 56)"), [56]);
    assert_eq!(comment("let x = 1; // (R1)"), Some(" (R1)"));
    let text = "docs/a.md, `RC.md` and docs/b.md. Not report.md";
    assert_eq!(
        documents(text).collect::<Vec<_>>(),
        ["docs/a.md", "RC.md", "docs/b.md"]
    );
    assert_eq!(comment("\"http://x\""), None);
    let text = "/// Rules S1, S2.\n#[test]\n/// (K3)\nfn c4_c5_x() {}\n// R9\nfn r1_y() {}";
    let named: Vec<String> = named(text).into_iter().collect();
    assert_eq!(named, ["C4", "C5", "K3", "S1", "S2"]);
    assert_eq!(
        anchor("## What the peer's is, as a rule"),
        "what-the-peers-is-as-a-rule"
    );
}
