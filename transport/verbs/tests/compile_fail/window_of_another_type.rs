//! Type 1 is bound by call.
use xroce_verbs::{Access, MrSlice, Mw, Rc, SendBatch, Type1};

fn wrong(batch: &mut SendBatch<Rc>, window: &Mw<Type1>, part: MrSlice<'_>) {
    batch.bind(1, window, 0, part, Access::REMOTE_READ);
}

fn main() {}
