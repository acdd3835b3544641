//! Connecting takes the queue pair as it was.
use xroce_verbs::{ConnectAttr, Endpoint, Init, Qp, Rc};

fn wrong(qp: Qp<Rc, Init>, peer: &Endpoint) {
    let _ = qp.connect(peer, &ConnectAttr::default());
    let _ = qp.connect(peer, &ConnectAttr::default());
}

fn main() {}
