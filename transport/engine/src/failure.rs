//! Why a QP died, with what only the engine knows.

use std::fmt;

use xroce_proto::qp::report::FailureReport;

/// A failed QP, for people: [`FailureReport`] and what was seen below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The queue pair's own report.
    pub report: FailureReport,
    /// Packets for this QP that failed the ICRC check.
    pub icrc_errors: u64,
    /// Packets for queue pairs that do not exist, since the engine started.
    pub unknown_qp: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.fmt(f)?;
        if self.icrc_errors != 0 {
            write!(
                f,
                "; {} packets for this queue pair failed the ICRC check: something on the way \
                 corrupts packets or rewrites addresses or ports (NAT)",
                self.icrc_errors
            )?;
        }
        if self.unknown_qp != 0 {
            write!(
                f,
                "; {} packets came for queue pairs that do not exist",
                self.unknown_qp
            )?;
        }
        Ok(())
    }
}
