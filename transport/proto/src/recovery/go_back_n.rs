//! Go-back-N: one resend from the lost PSN per event; a repeated NAK changes nothing until there
//! is progress or a timeout (`CASES.md` 54: every extra NAK used to restart the whole window).

use xroce_wire::newtypes::Psn;

use super::LossSignal;

/// State of go-back-N: the PSN it last went back to, if nothing has moved since.
#[derive(Clone, Copy, Debug, Default)]
pub struct GoBackN {
    went_back_to: Option<Psn>,
}

impl GoBackN {
    pub(super) fn on_loss(&mut self, signal: LossSignal) -> Option<Psn> {
        let (psn, forced) = match signal {
            LossSignal::SequenceNak(psn) | LossSignal::ImpliedNak(psn) => (psn, false),
            LossSignal::Timeout(psn) => (psn, true),
        };
        if !forced && self.went_back_to == Some(psn) {
            return None;
        }
        self.went_back_to = Some(psn);
        Some(psn)
    }

    #[inline]
    pub(super) fn on_progress(&mut self) {
        self.went_back_to = None;
    }
}
