//! What can be wrong with a file of results.

use std::io;
use std::path::PathBuf;

/// Why a run could not be read or written. Each names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is longer than any run.
    #[error("{}: {bytes} bytes, a run has at most {most}", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// It is not JSON.
    #[error("{}: not JSON: {why}", path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// What and where, by the parser.
        why: String,
    },
    /// It is JSON, but of something else.
    #[error("{}: not a run of `make bench`: no number \"schema\" at the top", path.display())]
    NotARun {
        /// The file.
        path: PathBuf,
    },
    /// Another version of xroce wrote it.
    #[error("{}: schema {found}, this xroce reads schema {known}: {}", path.display(),
        if found > known { "use a newer xroce" } else { "run the benches again, or use the xroce of that time" })]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u64,
        /// The one that is known.
        known: u64,
    },
    /// A field is missing, of another type, or has a value that cannot be.
    #[error("{}: field {field}: {why}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The way to it: `rows[3].samples[0].ours`.
        field: String,
        /// What is wrong.
        why: String,
    },
    /// A document without the marks between which the table stands.
    #[error("{}: it needs the lines {begin:?} and {end:?}, in this order and once", path.display())]
    NoMarks {
        /// The document.
        path: PathBuf,
        /// The first mark.
        begin: &'static str,
        /// The second.
        end: &'static str,
    },
}
