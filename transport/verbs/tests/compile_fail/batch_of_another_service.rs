//! A batch is for one service.
use xroce_verbs::{Qp, Rc, SendBatch, Uc};

fn wrong(qp: &Qp<Uc>, batch: &SendBatch<Rc>) {
    let _ = qp.post(batch);
}

fn main() {}
