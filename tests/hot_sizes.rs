//! Sizes of the structs that every packet or every message touches. A change here
//! is a change of cache lines touched: bench it, then accept it. `TxHot`, `RxHot` and the WQEs are
//! private to the core and pinned there by assertions. `Qp` has with it what every queue pair keeps
//! in a box.

#![allow(elided_lifetimes_in_paths, reason = "sizes do not depend on lifetimes")]

use xroce_api::{EngineStats, Mr, Work};
use xroce_net::datapath::{Rx, TxMeta};
use xroce_proto::counters::Counters;
use xroce_proto::memory::Grant;
use xroce_proto::qp::{Arrival, QP_SIZE, Transmit};
use xroce_proto::wc::Completion;
use xroce_proto::wr::{RecvWr, SendWr, Sge};
use xroce_wire::frame::{Frame, UdpMeta};
use xroce_wire::opcode::OpcodeInfo;
use xroce_wire::packet::{Packet, PacketBuf};
use xroce_wire::path::AddressVector;
use xroce_wire::template::HeaderTemplate;

macro_rules! sizes {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), size_of::<$name>())),*]
    };
}

#[test]
fn sizes_are_as_pinned() {
    let rest = sizes![
        HeaderTemplate,
        Counters,
        AddressVector,
        Frame,
        Packet,
        PacketBuf,
        OpcodeInfo,
        Rx,
        UdpMeta,
        TxMeta,
        Arrival,
        Transmit,
        Grant,
        Sge,
        SendWr,
        RecvWr,
        Completion,
        Mr,
        Work,
        EngineStats,
    ];
    let lines: String = [("Qp", QP_SIZE)]
        .into_iter()
        .chain(rest)
        .map(|(name, size)| format!("{name:<15} {size:>4}\n"))
        .collect();
    insta::assert_snapshot!(lines, @r"
    Qp               960
    HeaderTemplate   108
    Counters         512
    AddressVector     56
    Frame             72
    Packet            48
    PacketBuf         56
    OpcodeInfo        22
    Rx                56
    UdpMeta           38
    TxMeta            17
    Arrival           36
    Transmit          32
    Grant             24
    Sge               16
    SendWr            72
    RecvWr            24
    Completion        32
    Mr                24
    Work              24
    EngineStats       96
    ");
}
