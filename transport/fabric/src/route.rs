//! Shortest paths, all of them: what a link-state protocol would put into the switches' tables.

use std::collections::HashMap;

use crate::lane::{Lane, Node};

/// For one switch: which ports lead to a host on a shortest path.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// Index into `groups` by host.
    group_of: Vec<u32>,
    /// Ports in ascending order; the first group is empty: no way.
    groups: Vec<Box<[u16]>>,
}

impl Routes {
    #[inline]
    pub(crate) fn ports(&self, host: u32) -> &[u16] {
        let group = self.group_of.get(host as usize).copied().unwrap_or(0);
        self.groups.get(group as usize).map_or(&[], |g| &**g)
    }
}

const FAR: u32 = u32::MAX;

/// Routes of all switches over the lanes that are up. `out`: lanes that leave each switch, by port.
pub(crate) fn compute(lanes: &[Lane], out: &[Vec<u32>], hosts: usize) -> Vec<Routes> {
    // Hosts behind the same switch have the same routes but for the last hop.
    let mut behind: HashMap<u32, Vec<(u32, u16)>> = HashMap::new();
    for lane in lanes.iter().filter(|l| l.up) {
        if let (Node::Switch(s), Node::Host(h)) = (lane.from, lane.to) {
            behind.entry(s).or_default().push((h, lane.from_port));
        }
    }
    let mut tables: Vec<Table> = (0..out.len()).map(|_| Table::new(hosts)).collect();
    let mut last_hops: Vec<_> = behind.into_iter().collect();
    last_hops.sort_unstable();
    for (leaf, local) in last_hops {
        let distance = distances(lanes, out, leaf);
        for (s, table) in tables.iter_mut().enumerate() {
            if s == leaf as usize {
                for &(host, port) in &local {
                    table.set(host, vec![port]);
                }
                continue;
            }
            let ports = nearer(lanes, &out[s], &distance, distance[s]);
            for &(host, _) in &local {
                table.set(host, ports.clone());
            }
        }
    }
    tables.into_iter().map(|t| t.routes).collect()
}

struct Table {
    routes: Routes,
    known: HashMap<Vec<u16>, u32>,
}

impl Table {
    fn new(hosts: usize) -> Self {
        let routes = Routes {
            group_of: vec![0; hosts],
            groups: vec![Box::default()],
        };
        Self {
            routes,
            known: HashMap::from([(Vec::new(), 0)]),
        }
    }

    fn set(&mut self, host: u32, ports: Vec<u16>) {
        let groups = &mut self.routes.groups;
        let next = u32::try_from(groups.len()).unwrap_or(0);
        let group = *self.known.entry(ports).or_insert_with_key(|ports| {
            groups.push(ports.clone().into_boxed_slice());
            next
        });
        if let Some(of) = self.routes.group_of.get_mut(host as usize) {
            *of = group;
        }
    }
}

/// Links from every switch to `target`, hosts not being ways through.
fn distances(lanes: &[Lane], out: &[Vec<u32>], target: u32) -> Vec<u32> {
    let mut distance = vec![FAR; out.len()];
    distance[target as usize] = 0;
    let mut edge = vec![target];
    let mut steps = 0;
    while !edge.is_empty() {
        steps += 1;
        let mut next = Vec::new();
        for s in edge {
            // Links fail in both directions at once, so the way back is there too.
            for &lane in &out[s as usize] {
                let lane = &lanes[lane as usize];
                if let (true, Node::Switch(peer)) = (lane.up, lane.to)
                    && distance[peer as usize] == FAR
                {
                    distance[peer as usize] = steps;
                    next.push(peer);
                }
            }
        }
        edge = next;
    }
    distance
}

fn nearer(lanes: &[Lane], out: &[u32], distance: &[u32], own: u32) -> Vec<u16> {
    let mut ports = Vec::new();
    for &lane in out {
        let lane = &lanes[lane as usize];
        if let (true, Node::Switch(peer)) = (lane.up, lane.to)
            && distance[peer as usize] < own
        {
            ports.push(lane.from_port);
        }
    }
    ports
}
