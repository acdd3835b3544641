//! The table of a run in hand-written documents, between two marks.

use std::fs;
use std::path::Path;

use crate::ReportError;

/// Lines between which the table stands.
pub const MARKS: [&str; 2] = ["<!-- bench: begin -->", "<!-- bench: end -->"];

/// `text` with `content` between the marks; `None` unless both are there once, in order.
#[must_use]
pub fn replace_between(text: &str, content: &str) -> Option<String> {
    let (head, rest) = text.split_once(MARKS[0])?;
    let (old, tail) = rest.split_once(MARKS[1])?;
    let again = |part: &str| MARKS.iter().any(|mark| part.contains(mark));
    if again(head) || again(old) || again(tail) {
        return None;
    }
    let [begin, end] = MARKS;
    Some(format!(
        "{head}{begin}\n\n{}\n\n{end}{tail}",
        content.trim_matches('\n')
    ))
}

/// Replaces what stands between the marks of a document, and nothing else.
///
/// # Errors
/// It cannot be read or written, or has not the two marks.
pub fn update(path: &Path, content: &str) -> Result<(), ReportError> {
    let io = |source| ReportError::Io {
        path: path.to_owned(),
        source,
    };
    let text = fs::read_to_string(path).map_err(io)?;
    let new = replace_between(&text, content).ok_or_else(|| ReportError::NoMarks {
        path: path.to_owned(),
        begin: MARKS[0],
        end: MARKS[1],
    })?;
    fs::write(path, new).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let [begin, end] = MARKS;
        let text = format!("before\n{begin}\nold\n{end}\nafter\n");
        let new = replace_between(&text, "new\n").unwrap();
        assert_eq!(new, format!("before\n{begin}\n\nnew\n\n{end}\nafter\n"));
        assert_eq!(replace_between(&new, "new").unwrap(), new);
        for wrong in [
            String::from("nothing"),
            format!("{begin} alone"),
            format!("{end}\n{begin}"),
            format!("{text}{text}"),
            format!("{begin}{begin}{end}"),
            format!("{text}{end}"),
        ] {
            assert_eq!(replace_between(&wrong, "new"), None, "{wrong}");
        }
    }

    #[test]
    fn a_document_without_marks_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.md");
        fs::write(&path, "text").unwrap();
        let e = update(&path, "new").unwrap_err().to_string();
        assert!(e.contains("a.md: it needs the lines"), "{e}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        let e = update(&dir.path().join("b.md"), "new").unwrap_err();
        assert!(e.to_string().contains("b.md: No such file"));
    }
}
