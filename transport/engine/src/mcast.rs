//! Multicast groups: which queue pairs a datagram to a group goes to (UD7).

use xroce_wire::newtypes::Gid;

/// Groups an engine is a member of, at most (rxe: 8192).
pub(crate) const GROUPS_MAX: usize = 8192;

/// Queue pairs attached to one group, at most (rxe: 56): each gets a copy of every datagram.
pub(crate) const MEMBERS_MAX: usize = 256;

/// Whether a GID is the address of a group: 224.0.0.0/4 or ff00::/8.
pub(crate) fn is_group(gid: Gid) -> bool {
    gid.ip().is_multicast()
}

/// Members by group; sorted by address, since there are few groups and all of them are asked for
/// by address.
#[derive(Debug, Default)]
pub(crate) struct McastTable {
    groups: Vec<(Gid, Vec<u32>)>,
}

/// What an attach did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attached {
    Yes,
    /// It was attached before.
    Already,
    /// [`GROUPS_MAX`] or [`MEMBERS_MAX`] is reached.
    Full,
}

impl McastTable {
    fn find(&self, group: Gid) -> Result<usize, usize> {
        self.groups
            .binary_search_by_key(&group.bytes(), |(gid, _)| gid.bytes())
    }

    /// Slots of the members of a group, none if there is no such group.
    pub(crate) fn members(&self, group: Gid) -> &[u32] {
        match self.find(group) {
            Ok(at) => self.groups.get(at).map_or(&[], |(_, members)| members),
            Err(_) => &[],
        }
    }

    pub(crate) fn attach(&mut self, group: Gid, index: u32) -> Attached {
        match self.find(group) {
            Ok(at) => {
                let Some((_, members)) = self.groups.get_mut(at) else {
                    return Attached::Full;
                };
                if members.contains(&index) {
                    return Attached::Already;
                }
                if members.len() >= MEMBERS_MAX {
                    return Attached::Full;
                }
                members.push(index);
            }
            Err(_) if self.groups.len() >= GROUPS_MAX => return Attached::Full,
            Err(at) => self.groups.insert(at, (group, vec![index])),
        }
        Attached::Yes
    }

    /// Whether it was attached.
    pub(crate) fn detach(&mut self, group: Gid, index: u32) -> bool {
        let Ok(at) = self.find(group) else {
            return false;
        };
        let Some((_, members)) = self.groups.get_mut(at) else {
            return false;
        };
        let before = members.len();
        members.retain(|&i| i != index);
        let found = members.len() != before;
        if members.is_empty() {
            self.groups.remove(at);
        }
        found
    }

    /// Groups a queue pair is attached to.
    pub(crate) fn groups_of(&self, index: u32) -> Vec<Gid> {
        let mine = self.groups.iter().filter(|(_, m)| m.contains(&index));
        mine.map(|&(gid, _)| gid).collect()
    }
}
