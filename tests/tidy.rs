//! House rules that a machine can check, over all files of the repository.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tree::{none, root};

/// Lines a source file may have without its tests.
const FILE_LINES: usize = 600;

/// Lines a function may have.
const FUNCTION_LINES: usize = 70;

/// Files that are longer, each with the reason.
const LONG_FILES: [(&str, &str); 0] = [];

/// Functions that are longer, each with the reason.
const LONG_FUNCTIONS: [(&str, &str); 0] = [];

/// Which crates of this workspace each may use: `crc <- wire <- proto <- engine -> {net, shm}`.
const ARROWS: [(&str, &[&str]); 14] = [
    ("transport/crc", &[]),
    ("transport/wire", &["crc"]),
    ("transport/proto", &["wire"]),
    ("transport/abi", &["wire", "proto"]),
    ("transport/shm", &["crc"]),
    ("transport/api", &["wire", "proto", "shm"]),
    ("transport/net", &["wire", "api", "xdp-prog"]),
    ("transport/engine", &["wire", "proto", "shm", "api", "net"]),
    ("transport/control", &["wire", "proto", "abi", "shm", "api"]),
    (
        "transport/daemon",
        &[
            "wire", "proto", "abi", "shm", "api", "control", "net", "engine",
        ],
    ),
    (
        "transport/verbs",
        &[
            "wire", "proto", "abi", "shm", "api", "control", "net", "engine",
        ],
    ),
    (
        "transport/fabric",
        &["wire", "proto", "shm", "api", "net", "engine"],
    ),
    ("transport/testnet", &[]),
    ("xdp-prog", &[]),
];

/// Roots of crates that forbid unsafe code.
const SAFE: [&str; 15] = [
    "transport/api/src/lib.rs",
    "transport/wire/src/lib.rs",
    "transport/proto/src/lib.rs",
    "transport/engine/src/lib.rs",
    "transport/abi/src/lib.rs",
    "transport/verbs/src/lib.rs",
    "transport/fabric/src/lib.rs",
    "transport/testnet/src/lib.rs",
    "transport/control/src/lib.rs",
    "transport/daemon/src/lib.rs",
    "tools/xroce/src/main.rs",
    "tools/xroced/src/main.rs",
    "tools/vm/src/lib.rs",
    "tools/bench-report/src/lib.rs",
    "tools/interop/src/main.rs",
];

/// Where unsafe code may be. Tests may count allocations.
const UNSAFE: [&str; 5] = [
    "transport/shm/src/",
    "transport/net/src/xdp/",
    "transport/crc/src/",
    "xdp-prog/src/lib.rs",
    "tests/counting/mod.rs",
];

/// All text files of ours: without what was captured from others.
fn files() -> BTreeMap<String, String> {
    let mut files = tree::files();
    files.retain(|name, _| !name.starts_with("tests/data/"));
    files
}

fn sources() -> BTreeMap<String, String> {
    let mut files = files();
    files.retain(|name, _| name.ends_with(".rs"));
    files
}

fn is_test(name: &str) -> bool {
    name.contains("tests/") || name.ends_with("tests.rs")
}

/// A file without the test module at its end.
fn without_tests(text: &str) -> &str {
    let end = text.find("#[cfg(test)]\nmod tests {");
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn files_and_functions_are_short() {
    let mut found = Vec::new();
    for (name, text) in sources().iter().filter(|(name, _)| !is_test(name)) {
        let code = without_tests(text);
        let lines = code.lines().count();
        if lines > FILE_LINES && LONG_FILES.iter().all(|(f, _)| f != name) {
            found.push(format!("{name}: {lines} lines"));
        }
        for (function, lines) in functions(code) {
            let excused = LONG_FUNCTIONS.iter().any(|(f, _)| *f == function);
            if lines > FUNCTION_LINES && !excused {
                found.push(format!("{name}: {function} has {lines} lines"));
            }
        }
    }
    none("too long", &found);
}

/// Functions with a body and their lines, found by the layout that rustfmt gives them.
fn functions(code: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let lines: Vec<&str> = code.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let head = line.trim_start();
        let Some(start) = head.find("fn ") else {
            continue;
        };
        let leads = ["", "pub", "pub(crate)", "pub(super)", "const", "unsafe"];
        if !head[..start].split(' ').all(|w| leads.contains(&w)) {
            continue;
        }
        let name: String = head[start + 3..]
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        // A declaration, of a trait, has no body.
        let head_end = lines[at..].iter().find(|l| l.ends_with(['{', ';', '}']));
        if head_end.is_some_and(|l| l.ends_with(';')) {
            continue;
        }
        let close = format!("{indent}}}");
        if let Some(n) = lines[at..].iter().position(|l| *l == close) {
            found.push((name, n + 1));
        }
    }
    found
}

#[test]
fn nothing_is_left_for_later() {
    // Written in two parts, so as not to find itself.
    let words = [
        concat!("tod", "o!("),
        concat!("unimple", "mented!("),
        concat!("#[ig", "nore"),
        concat!("dbg", "!("),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
    ];
    let mut found = Vec::new();
    for (name, text) in sources() {
        for word in words.iter().filter(|w| text.contains(**w)) {
            found.push(format!("{name}: {word}"));
        }
    }
    none("left for later", &found);
}

#[test]
fn crates_depend_in_one_direction() {
    let mut found = Vec::new();
    let files = files();
    let folders = ["transport/", "xdp-prog"];
    let is_manifest = |f: &&String| {
        f.ends_with("/Cargo.toml") && folders.iter().any(|folder| f.starts_with(folder))
    };
    for name in files.keys().filter(is_manifest) {
        let folder = name.strip_suffix("/Cargo.toml").unwrap();
        let Some((_, allowed)) = ARROWS.iter().find(|(f, _)| *f == folder) else {
            found.push(format!("{folder} is not in the list"));
            continue;
        };
        let mut section = "";
        for line in files[name].lines() {
            if line.starts_with('[') {
                section = line;
            }
            let Some(dependency) = line.strip_prefix("xroce-") else {
                continue;
            };
            let dependency = dependency.split([' ', '.', '=']).next().unwrap();
            if !section.contains("dev-") && !allowed.contains(&dependency) {
                found.push(format!("{folder} uses {dependency}"));
            }
        }
    }
    none("arrows between crates", &found);
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let files = sources();
    let mut found = Vec::new();
    for root in SAFE {
        if !files[root].contains("#![forbid(unsafe_code)]") {
            found.push(format!("{root} does not forbid it"));
        }
    }
    let words = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
    for (name, text) in &files {
        let code = |line: &str| !line.trim_start().starts_with("//");
        let used = text
            .lines()
            .any(|line| code(line) && words.iter().any(|w| line.contains(w)));
        let allowed = UNSAFE.iter().any(|place| name.contains(place));
        if used && !allowed && name != "tests/tidy.rs" {
            found.push(format!("{name} has it"));
        }
    }
    none("unsafe code", &found);
}

/// Names of the public fields of a struct.
fn fields(text: &str, name: &str) -> Vec<String> {
    let head = format!("pub struct {name} {{");
    let body = &text[text.find(&head).unwrap() + head.len()..];
    let body = &body[..body.find("\n}").unwrap()];
    body.lines()
        .filter_map(|line| line.trim().strip_prefix("pub "))
        .map(|field| field.split(':').next().unwrap().to_owned())
        .collect()
}

#[test]
fn every_counter_is_counted_somewhere() {
    let all = sources();
    let counters = [
        (
            "transport/proto/src/counters.rs",
            "Counters",
            "transport/proto/",
        ),
        (
            "transport/api/src/stats.rs",
            "EngineStats",
            "transport/engine/",
        ),
        (
            "transport/api/src/stats.rs",
            "PortStats",
            "transport/net/src/",
        ),
        (
            "transport/net/src/sim/wire.rs",
            "WireStats",
            "transport/net/src/sim/",
        ),
    ];
    let mut found = Vec::new();
    for (file, name, scope) in counters {
        let fields = fields(&all[file], name);
        assert!(fields.len() > 5, "{name}");
        for field in fields {
            let forms = [
                format!(".{field} += "),
                format!(".{field} = "),
                format!("&mut s.{field}"),
                format!("            {field}: "),
            ];
            let counted = all
                .iter()
                .filter(|(f, _)| f.starts_with(scope) && !is_test(f))
                .any(|(_, text)| {
                    let code = without_tests(text);
                    forms.iter().any(|form| code.contains(form.as_str()))
                });
            if !counted {
                found.push(format!("{name}::{field}"));
            }
        }
    }
    none("never counted", &found);
}

#[test]
fn the_readme_names_the_two_commands() {
    let readme = &files()["README.md"];
    for command in ["make demo", "make test"] {
        assert!(readme.contains(command), "README.md does not say {command}");
    }
}

#[test]
fn nothing_points_at_one_machine() {
    // In two parts, as above.
    let words = [
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/wo", "rk/"),
        concat!("/tmp/tar", "get"),
        concat!("index.crates", ".io"),
        concat!("static.crates", ".io"),
        concat!("artifac", "tory"),
        concat!("jfr", "og"),
        concat!("nex", "us."),
        concat!("replace", "-with"),
    ];
    let mut found = Vec::new();
    for (name, text) in files() {
        for (n, line) in text.lines().enumerate() {
            for word in words.iter().filter(|w| line.contains(**w)) {
                found.push(format!("{name}:{}: {word}", n + 1));
            }
            let url = line.find("://").map(|at| &line[at + 3..]);
            let host = url.and_then(|u| u.split(['/', '"', ' ', ')', '>', '`']).next());
            let public = ["github.com", "www.rfc-editor.org", "docs.kernel.org"];
            if let Some(host) = host
                && host.contains('.')
                && host.chars().any(|c| c.is_ascii_alphabetic())
                && !public.contains(&host)
            {
                found.push(format!("{name}:{}: host {host}", n + 1));
            }
        }
    }
    none("of one machine", &found);
}

/// The rows of the collection of cases (docs/cases.md).
const CASES: [u32; 95] = [
    1, 2, 3, 4, 5, 7, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20, 21, 22, 24, 26, 28, 29, 30, 32, 33,
    35, 36, 38, 40, 41, 43, 44, 46, 47, 50, 51, 52, 53, 54, 55, 56, 58, 60, 61, 62, 64, 65, 67, 68,
    69, 70, 73, 75, 77, 78, 79, 80, 81, 82, 84, 85, 88, 90, 91, 93, 94, 95, 96, 97, 98, 103, 104,
    109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127,
    128, 129, 130, 131,
];

/// Names of the tests that a text has between `before` and whatever ends a name.
fn case_tests(text: &str, before: &str) -> BTreeSet<String> {
    let starts = ["case_", "netns_case_"].map(|start| format!("{before}{start}"));
    starts
        .iter()
        .flat_map(|start| text.match_indices(start))
        .map(|(at, _)| {
            let name = &text[at + before.len()..];
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            name[..end.unwrap_or(name.len())].to_string()
        })
        .collect()
}

/// `case_18_and_68_x` is about 18 and 68.
fn case_numbers(test: &str) -> Vec<u32> {
    let (_, rest) = test.split_once("case_").unwrap_or_default();
    let words = rest.split('_').filter(|w| *w != "and");
    words.map_while(|w| w.parse().ok()).collect()
}

#[test]
fn every_collected_case_is_tried_or_says_why_not() {
    let document = fs::read_to_string(root().join("docs/cases.md")).unwrap();
    let tests: BTreeSet<String> = sources()
        .values()
        .flat_map(|text| case_tests(text, "fn "))
        .collect();
    let mut wrong = Vec::new();
    for number in CASES {
        let start = format!("| {number} | ");
        let Some(row) = document.lines().find(|l| l.starts_with(&start)) else {
            wrong.push(format!("case {number} has no row"));
            continue;
        };
        let named = case_tests(row, "`");
        let last = row.split('|').nth(3).unwrap_or_default().trim();
        if named.is_empty() && last.len() < 20 {
            wrong.push(format!("case {number} has neither test nor reason"));
        }
        let there = tests.iter().filter(|t| case_numbers(t).contains(&number));
        wrong.extend(
            there
                .filter(|t| !named.contains(*t))
                .map(|t| format!("the row of case {number} lacks {t}")),
        );
    }
    let named = case_tests(&document, "`");
    wrong.extend(
        named
            .difference(&tests)
            .map(|t| format!("there is no test {t}")),
    );
    none("cases", &wrong);
}

/// What a text has between pairs of `quote`.
fn quoted(text: &str, quote: char) -> impl Iterator<Item = &str> {
    text.split(quote).skip(1).step_by(2)
}

#[test]
fn the_table_of_capabilities_is_full_and_true() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (document, interop) = (read("docs/capabilities.md"), read("docs/interop.md"));
    let all = sources();
    let exists = |name: &str| {
        let function = format!("fn {name}(");
        root().join(name).exists() || all.values().any(|text| text.contains(&function))
    };
    let mut wrong = Vec::new();
    let mut rows = 0;
    let is_row = |l: &&str| l.starts_with("| ") && !l.starts_with("| what |");
    for row in document.lines().filter(is_row) {
        rows += 1;
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        if cells.len() != 4 || cells.iter().any(|c| c.is_empty()) {
            wrong.push(format!("{row}: four cells, and none empty"));
            continue;
        }
        let (tests, scenarios) = (&cells[1..3].join(" "), cells[3]);
        let unknown = quoted(tests, '`').filter(|name| !exists(name));
        wrong.extend(unknown.map(|name| format!("{}: there is no {name}", cells[0])));
        if cells[1..3].iter().any(|c| quoted(c, '`').next().is_none()) {
            wrong.push(format!("{}: a column names no test", cells[0]));
        }
        let scenario = |name: &&str| interop.contains(*name);
        let unknown = quoted(scenarios, '"').filter(|name| !scenario(name));
        wrong.extend(unknown.map(|name| format!("{}: no scenario {name}", cells[0])));
    }
    assert!(rows > 40, "{rows} rows");
    none("capabilities", &wrong);
}
