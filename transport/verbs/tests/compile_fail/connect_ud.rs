//! Datagrams have no peer: activate.
use xroce_verbs::{ConnectAttr, Endpoint, Init, Qp, Ud};

fn wrong(qp: Qp<Ud, Init>, peer: &Endpoint, attr: &ConnectAttr) {
    let _ = qp.connect(peer, attr);
}

fn main() {}
