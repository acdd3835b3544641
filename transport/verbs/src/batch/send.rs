//! Send work requests. An operation is begun on the batch with all it cannot do without; what it
//! may be given besides is a method of what that returns, or does not exist.

use std::fmt::Debug;
use std::marker::PhantomData;

use xroce_proto::memory::Access;
use xroce_proto::wr::{Placement, SendFlags, SendOp};
use xroce_wire::newtypes::RKey;

use super::{Owner, Part, SendRecord, SendRecords, To};
use crate::ah::Destination;
use crate::mr::{MrSlice, MrWord, RemoteMr, RemoteWord};
use crate::mw::{Mw, Type2, bind_of};
use crate::qp::{Connected, Rc, Service, Ud};

mod sealed {
    pub trait Sealed {}
}

/// Kinds of operations, by what they may be given.
pub trait Kind: sealed::Sealed + Debug {}
/// Takes a receive of the peer: may be solicited.
#[derive(Clone, Copy, Debug)]
pub enum Sends {}
/// Carries data there: may be inline.
#[derive(Clone, Copy, Debug)]
pub enum Writes {}
/// Brings data back: into registered memory only.
#[derive(Clone, Copy, Debug)]
pub enum Reads {}
/// Its data, if any, was given with it.
#[derive(Clone, Copy, Debug)]
pub enum Complete {}

/// Kinds that carry data there.
pub trait Outgoing: Kind {}
/// Kinds with scatter/gather elements.
pub trait Gathers: Kind {}

macro_rules! kinds {
    ($($kind:ident: $($also:ident)*;)*) => {$(
        impl sealed::Sealed for $kind {}
        impl Kind for $kind {}
        $(impl $also for $kind {})*
    )*};
}
kinds! {
    Sends: Outgoing Gathers;
    Writes: Outgoing Gathers;
    Reads: Gathers;
    Complete: ;
}

/// Nothing given yet: the message is empty.
#[derive(Clone, Copy, Debug)]
pub enum NoData {}
/// Registered memory was given.
#[derive(Clone, Copy, Debug)]
pub enum Gathered {}
/// Bytes were given.
#[derive(Clone, Copy, Debug)]
pub enum Inlined {}

/// Send work requests for queue pairs of one service, to be posted together
/// ([`Qp::post`](crate::Qp::post)).
///
/// ```
/// # use std::error::Error;
/// use xroce_verbs::{Mr, Qp, Rc, RemoteMr, SendBatch};
///
/// fn tell(qp: &Qp<Rc>, mr: &Mr, there: RemoteMr) -> Result<(), Box<dyn Error>> {
///     let mut batch = SendBatch::new();
///     batch.write(1, there.slice(0..64)?).sge(mr.slice(0..64)?).unsignaled();
///     batch.send_imm(2, *b"done").inline(b"64 bytes").solicited();
///     batch.fetch_add(3, there.word(64)?, 1, mr.word(64)?).fence();
///     Ok(qp.post(&batch)?)
/// }
/// ```
///
/// Every request is signaled unless it says otherwise. A batch can be posted more than once, and
/// cleared and filled again without allocating.
#[derive(Clone, Debug)]
pub struct SendBatch<S: Service> {
    records: SendRecords,
    service: PhantomData<S>,
}

impl<S: Service> Default for SendBatch<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Service> SendBatch<S> {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            records: SendRecords::default(),
            service: PhantomData,
        }
    }

    /// Requests in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.records.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.records.is_empty()
    }

    /// Removes all requests, keeping the memory they took.
    pub fn clear(&mut self) {
        self.records.clear();
    }

    pub(crate) fn records(&self) -> &SendRecords {
        &self.records
    }

    fn begin<K: Kind>(
        &mut self,
        wr_id: u64,
        op: SendOp,
        room: Option<u64>,
    ) -> Request<'_, S, K, NoData> {
        self.records.records.push(SendRecord {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            data: Part::Sges {
                first: self.records.sges.len(),
                count: 0,
            },
            to: None,
            room,
            owner: Owner::default(),
        });
        Request::of(&mut self.records)
    }
}

/// What connected queue pairs do.
impl<S: Connected> SendBatch<S> {
    /// SEND.
    pub fn send(&mut self, wr_id: u64) -> Request<'_, S, Sends, NoData> {
        self.begin(wr_id, SendOp::Send, None)
    }

    /// SEND with immediate data.
    pub fn send_imm(&mut self, wr_id: u64, imm: [u8; 4]) -> Request<'_, S, Sends, NoData> {
        self.begin(wr_id, SendOp::SendImm(imm), None)
    }

    /// RDMA WRITE to the beginning of `to`.
    pub fn write(&mut self, wr_id: u64, to: RemoteMr) -> Request<'_, S, Writes, NoData> {
        let (va, rkey) = (to.va(), to.rkey());
        self.begin(wr_id, SendOp::Write { va, rkey }, Some(to.len()))
    }

    /// RDMA WRITE with immediate data; takes a receive of the peer, whose memory it leaves alone.
    pub fn write_imm(
        &mut self,
        wr_id: u64,
        to: RemoteMr,
        imm: [u8; 4],
    ) -> Request<'_, S, Sends, NoData> {
        let (va, rkey) = (to.va(), to.rkey());
        self.begin(wr_id, SendOp::WriteImm { va, rkey, imm }, Some(to.len()))
    }
}

/// What only reliable connections do.
impl SendBatch<Rc> {
    /// RDMA READ from the beginning of `from`.
    pub fn read(&mut self, wr_id: u64, from: RemoteMr) -> Request<'_, Rc, Reads, NoData> {
        let (va, rkey) = (from.va(), from.rkey());
        self.begin(wr_id, SendOp::Read { va, rkey }, Some(from.len()))
    }

    /// SEND that takes a key of the peer back before the peer's receive completes.
    pub fn send_inv(&mut self, wr_id: u64, rkey: RKey) -> Request<'_, Rc, Sends, NoData> {
        self.begin(wr_id, SendOp::SendInv { rkey }, None)
    }

    /// Stores `swap` at `at` if `compare` is there; what was there goes to `old`, as an integer
    /// of this host.
    pub fn compare_swap(
        &mut self,
        wr_id: u64,
        at: RemoteWord,
        compare: u64,
        swap: u64,
        old: MrWord<'_>,
    ) -> Request<'_, Rc, Complete, Gathered> {
        let op = SendOp::CompareSwap {
            va: at.at.va(),
            rkey: at.at.rkey(),
            compare,
            swap,
        };
        self.eight_bytes(wr_id, op, old)
    }

    /// Adds to what is at `at`, wrapping; what was there goes to `old`, as an integer of this
    /// host.
    pub fn fetch_add(
        &mut self,
        wr_id: u64,
        at: RemoteWord,
        add: u64,
        old: MrWord<'_>,
    ) -> Request<'_, Rc, Complete, Gathered> {
        let op = SendOp::FetchAdd {
            va: at.at.va(),
            rkey: at.at.rkey(),
            add,
        };
        self.eight_bytes(wr_id, op, old)
    }

    /// ATOMIC WRITE: the eight bytes of `from` appear at `at` all at once, in the order of memory.
    pub fn atomic_write(
        &mut self,
        wr_id: u64,
        at: RemoteWord,
        from: MrWord<'_>,
    ) -> Request<'_, Rc, Complete, Gathered> {
        let (va, rkey) = (at.at.va(), at.at.rkey());
        self.eight_bytes(wr_id, SendOp::AtomicWrite { va, rkey }, from)
    }

    fn eight_bytes(
        &mut self,
        wr_id: u64,
        op: SendOp,
        word: MrWord<'_>,
    ) -> Request<'_, Rc, Complete, Gathered> {
        self.begin::<Complete>(wr_id, op, None).gather(word.slice)
    }

    /// FLUSH: completes when what was written to `range` before has got as far as `placement`
    /// says.
    pub fn flush(
        &mut self,
        wr_id: u64,
        range: RemoteMr,
        placement: Placement,
    ) -> Request<'_, Rc, Complete, NoData> {
        let op = SendOp::Flush {
            va: range.va(),
            rkey: range.rkey(),
            // A longer range is flushed as the whole region, of which it is a part.
            len: u32::try_from(range.len()).unwrap_or(0),
            placement,
            whole_region: u32::try_from(range.len()).is_err(),
        };
        self.begin(wr_id, op, None)
    }

    /// FLUSH of the whole region of a key.
    pub fn flush_region(
        &mut self,
        wr_id: u64,
        rkey: RKey,
        placement: Placement,
    ) -> Request<'_, Rc, Complete, NoData> {
        let op = SendOp::Flush {
            va: xroce_wire::newtypes::Va::new(0),
            rkey,
            len: 0,
            placement,
            whole_region: true,
        };
        self.begin(wr_id, op, None)
    }

    /// Binds a free window of type 2 to a part of a region, under [`Mw::key`] of this tag.
    pub fn bind(
        &mut self,
        wr_id: u64,
        window: &Mw<Type2>,
        tag: u8,
        to: MrSlice<'_>,
        access: Access,
    ) -> Request<'_, Rc, Complete, NoData> {
        let op = SendOp::BindMw {
            rkey: window.key(tag),
            bind: bind_of(&to, access),
        };
        let request = self.begin::<Complete>(wr_id, op, None);
        request.named(to.context).named(window.pd.context.number)
    }

    /// Takes an own key back, once all before it has completed: of a window of type 2, or of a
    /// region with [`Access::INVALIDATE`].
    pub fn local_inv(&mut self, wr_id: u64, rkey: RKey) -> Request<'_, Rc, Complete, NoData> {
        self.begin(wr_id, SendOp::LocalInv { rkey }, None)
    }
}

/// Datagrams.
impl SendBatch<Ud> {
    /// SEND to a queue pair or group.
    pub fn send_to(&mut self, wr_id: u64, to: Destination<'_>) -> Request<'_, Ud, Sends, NoData> {
        self.begin::<Sends>(wr_id, SendOp::Send, None).to(to)
    }

    /// SEND with immediate data to a queue pair or group.
    pub fn send_imm_to(
        &mut self,
        wr_id: u64,
        to: Destination<'_>,
        imm: [u8; 4],
    ) -> Request<'_, Ud, Sends, NoData> {
        self.begin::<Sends>(wr_id, SendOp::SendImm(imm), None)
            .to(to)
    }
}

/// The request just added to a batch, and what it may still be given.
#[derive(Debug)]
pub struct Request<'b, S: Service, K: Kind, D> {
    batch: &'b mut SendRecords,
    types: PhantomData<(S, K, D)>,
}

impl<'b, S: Service, K: Kind, D> Request<'b, S, K, D> {
    fn of(batch: &'b mut SendRecords) -> Self {
        Self {
            batch,
            types: PhantomData,
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut SendRecord)) {
        // It was pushed when this was made, and nobody else can reach the batch since.
        if let Some(record) = self.batch.records.last_mut() {
            change(record);
        }
    }

    fn named(mut self, context: u32) -> Self {
        self.change(|record| record.owner.add(context));
        self
    }

    fn to(mut self, to: Destination<'_>) -> Self {
        self.change(|record| {
            record.to = Some(To {
                ah: to.ah.handle,
                qpn: to.qpn,
                qkey: to.qkey,
            });
            record.owner.add(to.ah.pd.context.number);
        });
        self
    }

    fn gather(mut self, slice: MrSlice<'_>) -> Request<'b, S, K, Gathered> {
        self.batch.sges.push(slice.sge);
        self.change(|record| {
            if let Part::Sges { count, .. } = &mut record.data {
                *count += 1;
            }
            record.owner.add(slice.context);
        });
        Request::of(self.batch)
    }

    fn copy(mut self, bytes: &[u8]) -> Request<'b, S, K, Inlined> {
        let at = self.batch.inline.len();
        self.batch.inline.extend_from_slice(bytes);
        self.change(|record| {
            record.data = match record.data {
                Part::Inline { first, len } => Part::Inline {
                    first,
                    len: len + bytes.len(),
                },
                Part::Sges { .. } => Part::Inline {
                    first: at,
                    len: bytes.len(),
                },
            };
        });
        Request::of(self.batch)
    }

    fn flag(mut self, flag: SendFlags, on: bool) -> Self {
        self.change(|record| record.flags.set(flag, on));
        self
    }

    /// Completes silently if it succeeds; errors are always reported. Its place in the queue
    /// becomes free when it completes, so that no completion is needed for that.
    pub fn unsignaled(self) -> Self {
        self.flag(SendFlags::SIGNALED, false)
    }
}

impl<'b, S: Service, K: Gathers> Request<'b, S, K, NoData> {
    /// Memory to take bytes from, or to put them into: read when it is sent, not now.
    pub fn sge(self, slice: MrSlice<'_>) -> Request<'b, S, K, Gathered> {
        self.gather(slice)
    }
}

impl<S: Service, K: Gathers> Request<'_, S, K, Gathered> {
    /// More memory, behind what was given.
    pub fn sge(self, slice: MrSlice<'_>) -> Self {
        Request::of(self.gather(slice).batch)
    }
}

impl<'b, S: Service, K: Outgoing> Request<'b, S, K, NoData> {
    /// Bytes copied now, up to `max_inline` of the queue pair.
    pub fn inline(self, bytes: &[u8]) -> Request<'b, S, K, Inlined> {
        self.copy(bytes)
    }
}

impl<S: Service, K: Outgoing> Request<'_, S, K, Inlined> {
    /// More bytes, behind those given.
    pub fn inline(self, bytes: &[u8]) -> Self {
        Request::of(self.copy(bytes).batch)
    }
}

impl<S: Service, D> Request<'_, S, Sends, D> {
    /// Fires a notification at the peer that was armed for solicited completions only.
    pub fn solicited(self) -> Self {
        self.flag(SendFlags::SOLICITED, true)
    }
}

impl<K: Kind, D> Request<'_, Rc, K, D> {
    /// Waits until all earlier READs, atomics, ATOMIC WRITEs and FLUSHes have completed.
    pub fn fence(self) -> Self {
        self.flag(SendFlags::FENCE, true)
    }
}
