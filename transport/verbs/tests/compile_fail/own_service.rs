//! Services are given.
use xroce_verbs::{QpType, Service};

fn wrong() {
    
    #[derive(Debug)]
    struct Mine;
    impl Service for Mine {
        const TYPE: QpType = QpType::Rc;
    }
}

fn main() {}
