//! What both connected services do, written once for both.
use xroce_verbs::{BadWr, Connected, MrSlice, Qp, RecvBatch, RemoteMr, SendBatch};

fn both<S: Connected>(qp: &Qp<S>, part: MrSlice<'_>, to: RemoteMr) -> Result<(), BadWr> {
    let mut receive = RecvBatch::new();
    receive.recv(1).sge(part).sge(part);
    qp.post_recv(&receive)?;
    let mut batch = SendBatch::new();
    batch.send(1).solicited().sge(part).sge(part).unsignaled();
    batch
        .send_imm(2, [0; 4])
        .inline(b"a")
        .inline(b"b")
        .solicited();
    batch.write(3, to).unsignaled().inline(b"a");
    batch.write_imm(4, to, [0; 4]);
    qp.post(&batch)
}

pub(crate) fn main() {
    let _ = both::<xroce_verbs::Rc>;
    let _ = both::<xroce_verbs::Uc>;
}
