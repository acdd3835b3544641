//! Packets as pcapng.

use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};
use xroce_api::message::{CaptureStats, Direction};
use xroce_control::capture::Header;

use super::CaptureArgs;
use super::session::Session;

/// What whoever reads the file has to know of it.
const SYNTHETIC: &str = "IP and UDP headers are synthetic: the kernel keeps the real ones of a UDP \
     socket to itself. Addresses, source port, lengths and what was told of traffic class and hop \
     limit are right; an unknown hop limit is 64, checksums of UDP are 0, and the IPv4 \
     identification is the one that the ICRC fits. RoCE begins behind them and is as sent and \
     received.";
/// Time stamps are in units of 10^-9 s.
const NANOSECONDS: u8 = 9;
/// The most that headers in front of a UDP payload add.
const HEADERS_MAX: u32 = 48;

/// A pcapng file being written.
pub(super) struct PcapNgFile<'o> {
    writer: PcapNgWriter<&'o mut dyn Write>,
    last_ns: u64,
}

fn failed(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

impl<'o> PcapNgFile<'o> {
    /// Writes what stands in front of packets.
    pub(super) fn begin(
        out: &'o mut dyn Write,
        args: &CaptureArgs,
        session: &Session,
    ) -> io::Result<Self> {
        let tool = concat!("xroce ", env!("CARGO_PKG_VERSION"));
        let mut options = vec![SectionHeaderOption::UserApplication(tool.into())];
        if !session.ethernet {
            options.push(SectionHeaderOption::Comment(SYNTHETIC.into()));
        }
        let section = SectionHeaderBlock {
            // Of the two the library writes, the one in which it writes 64-bit time stamps of
            // statistics the way the format has them.
            endianness: Endianness::Big,
            options,
            ..SectionHeaderBlock::default()
        };
        let mut writer = PcapNgWriter::with_section_header(out, section).map_err(failed)?;
        let mut options = vec![
            InterfaceDescriptionOption::IfName(session.device.clone().into()),
            InterfaceDescriptionOption::IfDescription(session.port.clone().into()),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        if let Some(filters) = args.filters() {
            let text = format!("filtered by the daemon: {filters}");
            options.push(InterfaceDescriptionOption::Comment(text.into()));
        }
        let (linktype, more) = if session.ethernet {
            (DataLink::ETHERNET, 0)
        } else {
            (DataLink::RAW, HEADERS_MAX)
        };
        let interface = InterfaceDescriptionBlock {
            linktype,
            snaplen: args.snaplen + more,
            options,
        };
        writer.write_pcapng_block(interface).map_err(failed)?;
        let last_ns = 0;
        Ok(Self { writer, last_ns })
    }

    /// Writes a packet that had `len` bytes.
    pub(super) fn packet(&mut self, header: &Header, len: u32, bytes: &[u8]) -> io::Result<()> {
        let way = match header.direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        let mut options = vec![EnhancedPacketOption::Flags(way)];
        if header.lost != 0 {
            options.push(EnhancedPacketOption::DropCount(header.lost.into()));
        }
        self.last_ns = header.ts_ns;
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(header.ts_ns),
            original_len: len,
            data: bytes.into(),
            options,
        };
        let written = self.writer.write_pcapng_block(packet);
        written.map(drop).map_err(failed)
    }

    /// Writes what was counted.
    pub(super) fn end(&mut self, stats: &CaptureStats) -> io::Result<()> {
        let counted = InterfaceStatisticsBlock {
            interface_id: 0,
            timestamp: self.last_ns,
            options: vec![
                InterfaceStatisticsOption::IsbIfRecv(stats.seen),
                InterfaceStatisticsOption::IsbFilterAccept(
                    stats.seen.saturating_sub(stats.filtered),
                ),
                InterfaceStatisticsOption::IsbOsDrop(stats.dropped),
                InterfaceStatisticsOption::IsbUsrDeliv(stats.captured),
            ],
        };
        let written = self.writer.write_pcapng_block(counted);
        written.map(drop).map_err(failed)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }
}
