//! The side that connects: decides what is sent, asks what came, and says what it means.

use anyhow::Result;
use xroce_net::datapath::Datapath;
use xroce_wire::newtypes::PathMtu;

use super::facts::{Direction, Edge, Facts, Trial};
use super::lab::Lab;
use super::message::{Heard, Message, Sent, Way};
use super::probe::{self, PAYLOAD_MIN, SHORTER_BY};
use super::train::{Carrier, Group, Train};
use crate::perf::peer::conversation::unexpected;

/// Packets of a look whether anything arrives at all.
const FEW: u32 = 20;
/// Packets of each size.
const OF_SIZE: u32 = 20;
/// Packets of each size while the edge is looked for.
const OF_RUNG: u32 = 3;
/// Sizes tried at once for it.
const RUNGS: u32 = 32;
/// Packets of one long train: 1 % loss is 100 of them, give or take 10.
const MANY: u32 = 10_000;
/// Long trains at most: one that is not clean is repeated, to tell an accident from a habit.
pub(crate) const TRIES: usize = 3;
/// Payload of the packets of long trains.
const USUAL: u32 = 256;
/// Packets per second of short and long trains. Any link and any receiver is idle at that.
const SLOW: u32 = 2_000;
const STEADY: u32 = 10_000;

/// Which way a train goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    There,
    Back,
}

/// Examines the path.
pub(crate) struct Near<'l, 'a, D: Datapath> {
    /// This side.
    pub lab: &'l mut Lab<'a, D>,
    /// Traffic class of probes.
    pub class: u8,
    /// Trains so far.
    pub trains: u32,
}

impl<D: Datapath> Near<'_, '_, D> {
    /// Everything but reliable connections.
    ///
    /// # Errors
    /// The conversation is over, or the port failed.
    pub(crate) fn examine(&mut self, facts: &mut Facts) -> Result<()> {
        facts.near_way = Some(self.lab.resolve()?);
        self.lab.say(&Message::Resolve {})?;
        facts.far_way = Some(match self.lab.listen()? {
            Message::Resolved { way } => way.clean(),
            other => return Err(unexpected(&other, "resolved")),
        });
        let links = facts.near.link_mtu.min(facts.far.link_mtu) as usize;
        let largest = PathMtu::for_link_mtu(links);
        let v4 = facts.near.gid.is_ipv4();
        if !matches!(facts.near_way, Some(Way::None(_))) {
            facts.there = self.direction(Course::There, largest, v4)?;
        }
        if !matches!(facts.far_way, Some(Way::None(_))) {
            facts.back = self.direction(Course::Back, largest, v4)?;
        }
        Ok(())
    }

    fn direction(
        &mut self,
        course: Course,
        largest: Option<PathMtu>,
        v4: bool,
    ) -> Result<Direction> {
        let mut d = Direction::default();
        let few = |payload| {
            let count = FEW;
            vec![Group { payload, count }]
        };
        d.other = Some(self.trial(course, Carrier::OtherUdp, few(PAYLOAD_MIN), SLOW)?);
        let reach = self.trial(course, Carrier::Roce, few(PAYLOAD_MIN), SLOW)?;
        let nothing = reach.heard.packets() == 0;
        d.reach = Some(reach);
        if nothing {
            return Ok(d);
        }
        if let Some(largest) = largest {
            let carried = PathMtu::ALL.into_iter().filter(|m| *m <= largest);
            let groups = carried.map(|m| Group {
                payload: payload_of(m),
                count: OF_SIZE,
            });
            let sizes = self.trial(course, Carrier::Roce, groups.collect(), SLOW)?;
            d.edge = self.edge(course, &sizes, v4)?;
            d.sizes = Some(sizes);
        }
        let many = vec![Group {
            payload: USUAL,
            count: MANY,
        }];
        for _ in 0..TRIES {
            let trial = self.trial(course, Carrier::Roce, many.clone(), STEADY)?;
            let clean = trial.is_clean();
            d.many.push(trial);
            // Once is an accident until it happens again; twice is enough, and one of two is not.
            let is_clear = match d.many.len() {
                1 => clean,
                2 => !clean,
                _ => true,
            };
            if is_clear {
                break;
            }
        }
        Ok(d)
    }

    /// Between the longest size that passed and the next one, which vanished.
    fn edge(&mut self, course: Course, sizes: &Trial, v4: bool) -> Result<Option<Edge>> {
        let came = sizes.train.groups.iter().zip(&sizes.heard.groups);
        let (mut low, mut high) = (PAYLOAD_MIN, None);
        for (group, came) in came {
            if *came > 0 {
                low = group.payload;
            } else if high.is_none_or(|h| h < low) {
                high = Some(group.payload);
            }
        }
        let Some(mut high) = high.filter(|&h| h > low) else {
            return Ok(None);
        };
        // Payloads are padded to multiples of four: two ladders come down to one step of that.
        for _ in 0..2 {
            let groups = rungs(low, high);
            if groups.is_empty() {
                break;
            }
            let trial = self.trial(course, Carrier::Roce, groups, SLOW)?;
            for (group, came) in trial.train.groups.iter().zip(&trial.heard.groups) {
                if *came > 0 {
                    low = low.max(group.payload);
                }
            }
            let above = trial.train.groups.iter().map(|g| g.payload);
            high = above.filter(|p| *p > low).min().unwrap_or(high).min(high);
        }
        Ok(Some(Edge {
            passes: probe::ip_len(low, v4),
            vanishes: probe::ip_len(high, v4),
        }))
    }

    fn trial(
        &mut self,
        course: Course,
        carrier: Carrier,
        groups: Vec<Group>,
        rate: u32,
    ) -> Result<Trial> {
        self.trains += 1;
        let train = Train {
            number: self.trains,
            carrier,
            groups,
            rate,
            class: self.class,
        };
        let train = train.check()?;
        let (sent, heard) = match course {
            Course::There => self.send(&train)?,
            Course::Back => {
                let begin = Message::Send {
                    train: train.clone(),
                };
                self.lab.receive(&train, &begin)?
            }
        };
        Ok(Trial { train, sent, heard })
    }

    fn send(&mut self, train: &Train) -> Result<(Sent, Heard)> {
        self.lab.say(&Message::Expect {
            train: train.clone(),
        })?;
        match self.lab.listen()? {
            Message::Ready {} => {}
            other => return Err(unexpected(&other, "ready")),
        }
        let sent = self.lab.send(train)?;
        self.lab.say(&Message::Sent { sent: sent.clone() })?;
        match self.lab.listen()? {
            Message::Heard { heard } => Ok((sent, heard.check(train)?)),
            other => Err(unexpected(&other, "heard")),
        }
    }

    /// Asks the other side to be ready for `xroce perf`.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn ask_to_measure(&mut self) -> Result<()> {
        self.lab.say(&Message::Measure {})?;
        match self.lab.listen()? {
            Message::Ready {} => Ok(()),
            other => Err(unexpected(&other, "ready")),
        }
    }
}

/// Payload of a probe as long as the longest packet of this path MTU.
pub(crate) fn payload_of(mtu: PathMtu) -> u32 {
    u32::try_from(mtu.bytes()).unwrap_or(0) + SHORTER_BY
}

/// Sizes between two, ascending; none if they are neighbours.
fn rungs(low: u32, high: u32) -> Vec<Group> {
    let step = ((high - low) / RUNGS).next_multiple_of(4).max(4);
    let start = low.next_multiple_of(4);
    let between = (1..).map(|n| start + n * step).take_while(|p| *p < high);
    between
        .map(|payload| Group {
            payload,
            count: OF_RUNG,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::train::GROUPS_MAX;
    use super::*;

    #[test]
    fn two_ladders_come_down_to_one_step() {
        let sizes = PathMtu::ALL.map(payload_of);
        for pair in [PAYLOAD_MIN].iter().chain(&sizes).zip(&sizes) {
            let (low, high) = pair;
            for limit in (*low..*high).step_by(4) {
                let (mut passes, mut vanishes) = (*low, *high);
                for _ in 0..2 {
                    let groups = rungs(passes, vanishes);
                    assert!(groups.len() <= GROUPS_MAX, "{}", groups.len());
                    for g in groups {
                        if g.payload <= limit {
                            passes = passes.max(g.payload);
                        } else {
                            vanishes = vanishes.min(g.payload);
                        }
                    }
                }
                assert_eq!((passes, vanishes), (limit, limit + 4));
            }
        }
    }
}
