//! All frames of a run in one file, by scenario; each one's own capture can be taken out again.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::fabric::record::{Record, write_pcap};

/// Bytes of the header of a pcap file.
const HEADER: u64 = 24;

/// Where the frames of a scenario are.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Frame numbers, from 1.
    pub frames: Range<u64>,
    bytes: Range<u64>,
}

/// The file, growing.
pub(crate) struct Archive {
    path: PathBuf,
    file: BufWriter<File>,
    frames: u64,
    bytes: u64,
}

impl Archive {
    /// An empty file at `path`.
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        write_pcap(&mut file, std::iter::empty())?;
        Ok(Self {
            path,
            file,
            frames: 1,
            bytes: HEADER,
        })
    }

    /// Appends the frames of a scenario.
    pub(crate) fn add(&mut self, record: &Record) -> Result<Place> {
        let mut bytes = Vec::new();
        write_pcap(&mut bytes, record.frames.iter())?;
        let body = bytes.get(24..).unwrap_or_default();
        self.file.write_all(body).context("archive of frames")?;
        let place = Place {
            frames: self.frames..self.frames + record.frames.len() as u64,
            bytes: self.bytes..self.bytes + body.len() as u64,
        };
        self.frames = place.frames.end;
        self.bytes = place.bytes.end;
        Ok(place)
    }

    /// The whole file, everything written.
    pub(crate) fn path(&mut self) -> Result<&Path> {
        self.file.flush().context("archive of frames")?;
        Ok(&self.path)
    }

    /// Writes the frames of one scenario to a file of its own.
    pub(crate) fn extract(&mut self, place: &Place, to: &Path) -> Result<()> {
        let mut from = BufReader::new(File::open(self.path()?)?);
        let mut out =
            BufWriter::new(File::create(to).with_context(|| format!("creating {}", to.display()))?);
        write_pcap(&mut out, std::iter::empty())?;
        from.seek(SeekFrom::Start(place.bytes.start))?;
        let len = place.bytes.end - place.bytes.start;
        std::io::copy(&mut from.take(len), &mut out)?;
        Ok(out.flush()?)
    }
}
