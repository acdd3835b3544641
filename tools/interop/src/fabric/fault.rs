//! What goes wrong between the two ends, chosen by a seed.

use super::look::{Class, Roce};

/// An end of the cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Side {
    /// xroce, behind the tap.
    Xroce,
    /// The virtual machine.
    Vm,
}

impl Side {
    /// The other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Xroce => Self::Vm,
            Self::Vm => Self::Xroce,
        }
    }
}

/// What happens to a frame that is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// It is gone.
    Drop,
    /// It comes twice.
    Duplicate,
    /// It comes after this many later frames of its direction, or after a moment.
    Delay(usize),
    /// One byte between BTH and ICRC is another one.
    Corrupt,
}

/// One kind of fault for one kind of packet: of each `one_in` packets that match, one is hit,
/// which one is random. So that a short run is hit too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Who sent it.
    pub from: Side,
    /// What it is for; `None`: any RoCE packet.
    pub class: Option<Class>,
    /// How often.
    pub one_in: u32,
    /// What happens.
    pub fault: Fault,
}

/// Rules at work.
#[derive(Debug)]
pub(crate) struct Faults {
    rules: Vec<(Rule, Stratum)>,
    random: SplitMix,
    cut: bool,
}

/// Where in its group of `one_in` packets a rule is.
#[derive(Clone, Copy, Debug, Default)]
struct Stratum {
    seen: u32,
    hit_at: u32,
}

/// What to do with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Forward it.
    Pass,
    /// As the fault says.
    Hit(Fault),
    /// The cable is cut.
    Cut,
}

impl Faults {
    /// These rules, from the start.
    pub(crate) fn new(rules: &[Rule], seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let rules = rules
            .iter()
            .map(|&rule| {
                let hit_at = random.below(rule.one_in);
                (rule, Stratum { seen: 0, hit_at })
            })
            .collect();
        Self {
            rules,
            random,
            cut: false,
        }
    }

    /// Cuts the cable, or mends it.
    pub(crate) fn set_cut(&mut self, cut: bool) {
        self.cut = cut;
    }

    /// What happens to this frame; the first rule that hits decides, all count it.
    pub(crate) fn judge(&mut self, from: Side, packet: Option<&Roce>) -> Verdict {
        if self.cut {
            return Verdict::Cut;
        }
        let Some(packet) = packet else {
            return Verdict::Pass;
        };
        let mut verdict = Verdict::Pass;
        for (rule, at) in &mut self.rules {
            if rule.from != from || rule.class.is_some_and(|c| c != packet.class) {
                continue;
            }
            let hit = at.seen == at.hit_at;
            at.seen += 1;
            if at.seen >= rule.one_in {
                *at = Stratum {
                    seen: 0,
                    hit_at: self.random.below(rule.one_in),
                };
            }
            if hit && verdict == Verdict::Pass {
                verdict = Verdict::Hit(rule.fault);
            }
        }
        verdict
    }

    /// Changes one byte of the packet. Not the reserved byte of the BTH: the ICRC does not cover
    /// it, so that the change would not be seen.
    pub(crate) fn corrupt(&mut self, frame: &mut [u8], packet: &Roce) {
        let len = u32::try_from(packet.end - packet.bth_at).unwrap_or(u32::MAX);
        let mut at = packet.bth_at + self.random.below(len) as usize;
        if at == packet.bth_at + 4 {
            at += 1;
        }
        let flip = 1 + self.random.below(255);
        if let Some(byte) = frame.get_mut(at) {
            *byte ^= u8::try_from(flip).unwrap_or(1);
        }
    }
}

/// Steele, Lea and Flood's generator (OOPSLA 2014): small, and the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(pub u64);

impl SplitMix {
    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit` (0 if that is 0).
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        let high = (u128::from(self.next()) * u128::from(limit)) >> 64;
        u32::try_from(high).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(class: Class) -> Roce {
        Roce {
            class,
            opcode: 4,
            dest_qpn: 17,
            psn: 1,
            ack_req: false,
            syndrome: None,
            read_len: None,
            bth_at: 42,
            end: 80,
        }
    }

    #[test]
    fn one_of_each_group_is_hit() {
        let rule = Rule {
            from: Side::Vm,
            class: Some(Class::Ack),
            one_in: 20,
            fault: Fault::Drop,
        };
        let mut faults = Faults::new(&[rule], 7);
        for _ in 0..50 {
            let hits = (0..20)
                .filter(|_| {
                    faults.judge(Side::Vm, Some(&packet(Class::Ack))) == Verdict::Hit(Fault::Drop)
                })
                .count();
            assert_eq!(hits, 1);
        }
        for _ in 0..40 {
            let other = faults.judge(Side::Xroce, Some(&packet(Class::Ack)));
            assert_eq!(other, Verdict::Pass);
            let other = faults.judge(Side::Vm, Some(&packet(Class::Request)));
            assert_eq!(other, Verdict::Pass);
        }
        faults.set_cut(true);
        assert_eq!(faults.judge(Side::Vm, None), Verdict::Cut);
    }

    #[test]
    fn a_corrupted_frame_differs_in_one_byte_the_icrc_covers() {
        let mut faults = Faults::new(&[], 3);
        for _ in 0..500 {
            let mut frame = vec![0; 90];
            faults.corrupt(&mut frame, &packet(Class::Request));
            let changed: Vec<usize> = (0..90).filter(|&i| frame.get(i) != Some(&0)).collect();
            assert_eq!(changed.len(), 1);
            assert!((42..80).contains(&changed[0]) && changed[0] != 46);
        }
    }
}
