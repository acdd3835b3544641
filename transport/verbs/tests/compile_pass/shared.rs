//! Everything goes to other threads and is used from several.
use xroce_verbs::{Ah, CompChannel, Context, Cq, Init, Mr, Mw, Pd, Qp, Rc, Srq, Type2, Ud};

fn all<T: Send + Sync + 'static>() {}

pub(crate) fn main() {
    all::<Context>();
    all::<Pd>();
    all::<Cq>();
    all::<CompChannel>();
    all::<Mr>();
    all::<Mw<Type2>>();
    all::<Srq>();
    all::<Ah>();
    all::<Qp<Rc>>();
    all::<Qp<Ud, Init>>();
}
