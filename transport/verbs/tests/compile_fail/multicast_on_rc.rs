//! Groups are for datagrams.
use xroce_verbs::{Gid, Qp, Rc};

fn wrong(qp: &Qp<Rc>, group: Gid) {
    let _ = qp.attach_mcast(group);
}

fn main() {}
