//! The side that listens: does what the other asks, within limits.

use anyhow::Result;
use xroce_net::datapath::Datapath;

use super::lab::Lab;
use super::message::Message;
use super::report::Report;
use crate::perf::peer::conversation::unexpected;

/// Trains of one run, at most.
const TRAINS_MAX: u32 = 64;

/// Answers until the other side says what it found.
///
/// # Errors
/// The conversation is over, the other side asks for too much, or the port failed.
pub(crate) fn answer<D: Datapath>(
    lab: &mut Lab<'_, D>,
    measure: &mut impl FnMut(&mut Lab<'_, D>) -> Result<()>,
) -> Result<Report> {
    let mut trains = 0;
    let mut measured = false;
    loop {
        match lab.listen()? {
            Message::Resolve {} => {
                let way = lab.resolve()?;
                lab.say(&Message::Resolved { way })?;
            }
            Message::Expect { train } if trains < TRAINS_MAX => {
                trains += 1;
                let train = train.check()?;
                let (_, heard) = lab.receive(&train, &Message::Ready {})?;
                let heard = Box::new(heard);
                lab.say(&Message::Heard { heard })?;
            }
            Message::Send { train } if trains < TRAINS_MAX => {
                trains += 1;
                let train = train.check()?;
                let sent = lab.send(&train)?;
                lab.say(&Message::Sent { sent })?;
            }
            Message::Measure {} if !measured => {
                measured = true;
                lab.say(&Message::Ready {})?;
                measure(lab)?;
            }
            Message::Report { report } => {
                let report = report.check()?;
                lab.say(&Message::Bye {})?;
                return Ok(report);
            }
            other => return Err(unexpected(&other, "a request")),
        }
    }
}
