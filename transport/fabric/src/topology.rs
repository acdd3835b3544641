//! Who is connected to whom: the usual shapes, or any other built by hand.

use crate::lane::Node;
use crate::units::{BitRate, Time};

/// Most hosts of a fabric.
pub const HOSTS_MAX: u32 = 16_384;
/// Most ports of all switches together.
pub const PORTS_MAX: usize = 262_144;

/// A link between two nodes, both directions alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// One end.
    pub a: Node,
    /// The other.
    pub b: Node,
    /// Rate of each direction.
    pub rate: BitRate,
    /// Propagation delay.
    pub delay: Time,
}

/// Hosts, switches and links.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Topology {
    /// Names of the hosts; a host has one link.
    pub hosts: Vec<String>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Links.
    pub links: Vec<Link>,
}

/// Rate and delay of one kind of link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speed {
    /// Rate.
    pub rate: BitRate,
    /// Propagation delay, one way.
    pub delay: Time,
}

/// Shapes.
impl Topology {
    /// A host, with the name "h" and its number.
    pub fn host(&mut self) -> Node {
        let n = self.hosts.len();
        self.hosts.push(format!("h{n}"));
        Node::Host(u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// A switch.
    pub fn switch(&mut self, name: impl Into<String>) -> Node {
        let n = self.switches.len();
        self.switches.push(name.into());
        Node::Switch(u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// A link between two nodes.
    pub fn link(&mut self, a: Node, b: Node, speed: Speed) {
        self.links.push(Link {
            a,
            b,
            rate: speed.rate,
            delay: speed.delay,
        });
    }

    /// One switch and `hosts` around it.
    #[must_use]
    pub fn star(hosts: u32, speed: Speed) -> Self {
        let mut t = Self::default();
        let switch = t.switch("s0");
        for _ in 0..hosts {
            let host = t.host();
            t.link(host, switch, speed);
        }
        t
    }

    /// `pairs` hosts on the left (numbered first), as many on the right, two switches and one
    /// link between them.
    #[must_use]
    pub fn dumbbell(pairs: u32, edge: Speed, middle: Speed) -> Self {
        let mut t = Self::default();
        let sides = [t.switch("left"), t.switch("right")];
        for side in sides {
            for _ in 0..pairs {
                let host = t.host();
                t.link(host, side, edge);
            }
        }
        t.link(sides[0], sides[1], middle);
        t
    }

    /// `leaves` switches with `hosts` hosts each, all connected to all of `spines` others.
    #[must_use]
    pub fn leaf_spine(leaves: u32, spines: u32, hosts: u32, edge: Speed, middle: Speed) -> Self {
        let mut t = Self::default();
        let tops: Vec<Node> = (0..spines).map(|i| t.switch(format!("spine{i}"))).collect();
        for i in 0..leaves {
            let leaf = t.switch(format!("leaf{i}"));
            for _ in 0..hosts {
                let host = t.host();
                t.link(host, leaf, edge);
            }
            for &spine in &tops {
                t.link(leaf, spine, middle);
            }
        }
        t
    }

    /// A three-tier fat tree of switches with `k` ports, `k` even: k pods of k/2 edge and k/2
    /// aggregation switches, k²/4 cores, k³/4 hosts (Al-Fares et al., SIGCOMM 2008). k = 6 has the 54
    /// hosts and 45 switches of IRN's simulations.
    #[must_use]
    pub fn fat_tree(k: u32, edge: Speed, middle: Speed) -> Self {
        let mut t = Self::default();
        let half = k / 2;
        let cores: Vec<Node> = (0..half * half)
            .map(|i| t.switch(format!("core{i}")))
            .collect();
        for pod in 0..k {
            let name = |kind, i| format!("{kind}{}", pod * half + i);
            let aggs: Vec<Node> = (0..half).map(|i| t.switch(name("agg", i))).collect();
            for i in 0..half {
                let edge_switch = t.switch(name("edge", i));
                for _ in 0..half {
                    let host = t.host();
                    t.link(host, edge_switch, edge);
                }
                for &agg in &aggs {
                    t.link(edge_switch, agg, middle);
                }
            }
            for (i, &agg) in (0_u32..).zip(&aggs) {
                for &core in cores.iter().skip((i * half) as usize).take(half as usize) {
                    t.link(agg, core, middle);
                }
            }
        }
        t
    }

    /// Rail-optimised: `nodes` machines of `gpus` hosts each. GPU r of every machine is on leaf
    /// "rail r", all rails are connected to all of `spines`. Host numbers run over the GPUs of a
    /// machine first. What happens inside a machine is not modelled.
    #[must_use]
    pub fn rails(nodes: u32, gpus: u32, spines: u32, edge: Speed, middle: Speed) -> Self {
        let mut t = Self::default();
        let tops: Vec<Node> = (0..spines).map(|i| t.switch(format!("spine{i}"))).collect();
        let rails: Vec<Node> = (0..gpus).map(|i| t.switch(format!("rail{i}"))).collect();
        for _ in 0..nodes {
            for &rail in &rails {
                let host = t.host();
                t.link(host, rail, edge);
            }
        }
        for &rail in &rails {
            for &spine in &tops {
                t.link(rail, spine, middle);
            }
        }
        t
    }

    /// The node of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Node> {
        let of = |names: &[String]| {
            let at = names.iter().position(|n| n == name)?;
            u32::try_from(at).ok()
        };
        let host = of(&self.hosts).map(Node::Host);
        host.or_else(|| of(&self.switches).map(Node::Switch))
    }

    /// The name of a node.
    #[must_use]
    pub fn name(&self, node: Node) -> &str {
        let (names, i) = match node {
            Node::Host(i) => (&self.hosts, i),
            Node::Switch(i) => (&self.switches, i),
        };
        names.get(i as usize).map_or("?", String::as_str)
    }

    /// # Errors
    /// What cannot be simulated, in words.
    pub fn check(&self) -> Result<(), String> {
        let hosts = self.hosts.len();
        if hosts < 2 || hosts > HOSTS_MAX as usize {
            return Err(format!("{hosts} hosts, a fabric has 2 to {HOSTS_MAX}"));
        }
        if self.links.len() * 2 > PORTS_MAX {
            let most = PORTS_MAX / 2;
            return Err(format!(
                "{} links, a fabric has {most} at most",
                self.links.len()
            ));
        }
        let mut links = vec![0; hosts];
        for link in &self.links {
            for end in [link.a, link.b] {
                let known = match end {
                    Node::Host(h) => links.get_mut(h as usize).map(|n| *n += 1).is_some(),
                    Node::Switch(s) => (s as usize) < self.switches.len(),
                };
                if !known {
                    return Err(format!("a link to {end:?}, which does not exist"));
                }
            }
        }
        match links.iter().position(|&n| n != 1) {
            Some(h) => Err(format!(
                "host {} has {} links, it must have 1",
                self.hosts[h], links[h]
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Speed = Speed {
        rate: BitRate::MAX,
        delay: Time::ZERO,
    };

    #[test]
    fn shapes_have_the_sizes_that_are_known() {
        let count = |t: &Topology| {
            assert_eq!(t.check(), Ok(()));
            (t.hosts.len(), t.switches.len(), t.links.len())
        };
        assert_eq!(count(&Topology::star(21, SPEED)), (21, 1, 21));
        assert_eq!(count(&Topology::dumbbell(2, SPEED, SPEED)), (4, 2, 5));
        assert_eq!(
            count(&Topology::leaf_spine(4, 2, 8, SPEED, SPEED)),
            (32, 6, 40)
        );
        assert_eq!(count(&Topology::fat_tree(6, SPEED, SPEED)), (54, 45, 162));
        assert_eq!(count(&Topology::rails(4, 8, 2, SPEED, SPEED)), (32, 10, 48));
    }

    #[test]
    fn every_switch_of_a_fat_tree_has_k_ports() {
        let t = Topology::fat_tree(8, SPEED, SPEED);
        let mut ports = vec![0; t.switches.len()];
        for end in t.links.iter().flat_map(|l| [l.a, l.b]) {
            if let Node::Switch(s) = end {
                ports[s as usize] += 1;
            }
        }
        assert!(ports.iter().all(|&p| p == 8), "{ports:?}");
    }

    #[test]
    fn nodes_have_names() {
        let t = Topology::leaf_spine(2, 1, 2, SPEED, SPEED);
        assert_eq!(
            t.find("leaf1").map(|n| t.name(n).to_owned()),
            Some("leaf1".into())
        );
        assert_eq!(t.find("h3"), Some(Node::Host(3)));
        assert_eq!(t.find("h4"), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut t = Topology::star(2, SPEED);
        t.host();
        assert!(t.check().unwrap_err().contains("h2 has 0 links"));
        t.link(Node::Host(2), Node::Switch(7), SPEED);
        assert!(t.check().unwrap_err().contains("does not exist"));
        assert!(Topology::star(1, SPEED).check().is_err());
    }
}
