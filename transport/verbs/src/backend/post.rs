//! Records of batches as work requests of an engine in this process.

use xroce_api::{EngineError, UdDest};
use xroce_engine::Engine;
use xroce_net::datapath::Datapath;
use xroce_proto::wr::{Data, RecvWr, SendWr};
use xroce_wire::newtypes::Qpn;

use super::inproc::InProc;
use crate::batch::{BadWr, Part, RecvRecords, SendRecord, SendRecords, WrError};

/// Posts one record.
pub(super) fn post_one<D: Datapath>(
    engine: &mut Engine<D>,
    context: u32,
    qpn: Qpn,
    batch: &SendRecords,
    record: &SendRecord,
) -> Result<(), WrError> {
    batch.check(record, context)?;
    let inline;
    let data = match record.data {
        Part::Sges { .. } => Data::Sges(batch.sges_of(record)),
        Part::Inline { .. } => {
            inline = [batch.inline_of(record)];
            Data::Inline(&inline)
        }
    };
    let wr = SendWr {
        wr_id: record.wr_id,
        op: record.op,
        flags: record.flags,
        data,
    };
    let posted = match &record.to {
        None => engine.post_send(qpn, &wr),
        Some(to) => engine.post_datagram(
            qpn,
            &wr,
            &UdDest {
                ah: to.ah,
                qpn: to.qpn,
                qkey: to.qkey,
            },
        ),
    };
    Ok(posted?)
}

impl<D: Datapath> InProc<D> {
    /// Posts records in order up to the first that is refused.
    pub(super) fn post_recvs(
        &self,
        context: u32,
        batch: &RecvRecords,
        mut post: impl FnMut(&mut Engine<D>, &RecvWr<'_>) -> Result<(), EngineError>,
    ) -> Result<(), BadWr> {
        self.check_postable(batch.records.first().map(|r| r.wr_id))?;
        self.command(|state| {
            for (index, record) in batch.records.iter().enumerate() {
                let wr = RecvWr {
                    wr_id: record.wr_id,
                    sges: batch.sges_of(record),
                };
                let posted = match record.check(context) {
                    Ok(()) => post(&mut state.engine, &wr).map_err(WrError::from),
                    Err(e) => Err(e),
                };
                posted.map_err(|error| BadWr::new(index, record.wr_id, error))?;
            }
            Ok(())
        })
    }
}
