//! `[topology]`.

use serde::Deserialize;

use super::error::{Problem, within};
use crate::topology::{HOSTS_MAX, PORTS_MAX, Speed, Topology};
use crate::units::{BitRate, Time};

/// A shape and its sizes.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Shape {
    /// One switch.
    Star {
        /// Hosts.
        hosts: u32,
        /// Their links.
        #[serde(default)]
        link: Pipe,
    },
    /// Two switches and a link between them.
    Dumbbell {
        /// Hosts on either side: 0 .. pairs on the left, then as many on the right.
        pairs: u32,
        /// Their links.
        #[serde(default)]
        link: Pipe,
        /// The link between the switches; as those of hosts without.
        bottleneck: Option<Pipe>,
    },
    /// Two tiers, each leaf connected to each spine.
    LeafSpine {
        /// Leaves.
        leaves: u32,
        /// Spines.
        spines: u32,
        /// Hosts of a leaf.
        hosts: u32,
        /// Links of hosts.
        #[serde(default)]
        link: Pipe,
        /// Links between switches; as those of hosts without.
        fabric: Option<Pipe>,
        /// Instead of the rate in `fabric`: rates of a leaf's hosts over those of its uplinks.
        oversubscription: Option<f64>,
    },
    /// Three tiers of switches with k ports.
    FatTree {
        /// Ports of a switch, even; k³/4 hosts.
        k: u32,
        /// Links of hosts.
        #[serde(default)]
        link: Pipe,
        /// Links between switches; as those of hosts without.
        fabric: Option<Pipe>,
        /// Instead of the rate in `fabric`: rate of a host's link over it.
        oversubscription: Option<f64>,
    },
    /// A leaf per rail, each GPU of a machine on another.
    Rails {
        /// Machines.
        nodes: u32,
        /// GPUs of a machine, each a host of its own, and rails.
        gpus: u32,
        /// Spines.
        spines: u32,
        /// Links of hosts.
        #[serde(default)]
        link: Pipe,
        /// Links between switches; as those of hosts without.
        fabric: Option<Pipe>,
        /// Instead of the rate in `fabric`: rates of a rail's hosts over those of its uplinks.
        oversubscription: Option<f64>,
    },
}

/// A kind of link.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pipe {
    /// Rate.
    pub rate: BitRate,
    /// Propagation delay, one way.
    pub delay: Time,
}

impl Default for Pipe {
    fn default() -> Self {
        Self {
            rate: BitRate::from_gbps(100),
            delay: Time::from_us(1),
        }
    }
}

impl Pipe {
    fn speed(self, path: &str) -> Result<Speed, Problem> {
        within(
            &format!("{path}.delay"),
            self.delay,
            (Time::ZERO, Time::from_ms(1000)),
        )?;
        Ok(Speed {
            rate: self.rate,
            delay: self.delay,
        })
    }
}

/// The fabric's links: as given, as those of hosts, or at the rate that gives an oversubscription.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate to the nearest bit per second"
)]
fn middle(
    path: &str,
    edge: Speed,
    fabric: Option<Pipe>,
    oversubscription: Option<f64>,
    (hosts, uplinks): (u32, u32),
) -> Result<Speed, Problem> {
    let mut speed = match fabric {
        Some(pipe) => pipe.speed(&format!("{path}.fabric"))?,
        None => edge,
    };
    if let Some(factor) = oversubscription {
        let path = format!("{path}.oversubscription");
        let factor = within(&path, factor, (0.01, 1000.0))?;
        let down = edge.rate.bps() as f64 * f64::from(hosts);
        speed.rate = BitRate::from_bps((down / factor / f64::from(uplinks.max(1))).round() as u64);
    }
    Ok(speed)
}

fn size(path: &str, key: &str, value: u32, least: u32) -> Result<u32, Problem> {
    within(&format!("{path}.{key}"), value, (least, HOSTS_MAX))
}

/// Not more than a fabric may have, before anything is built.
fn total(path: &str, hosts: u64, links: u64) -> Result<(), Problem> {
    if hosts > u64::from(HOSTS_MAX) {
        let what = format!("{hosts} hosts, {HOSTS_MAX} are possible");
        return Err(Problem::at(path, what));
    }
    let most = PORTS_MAX as u64 / 2;
    if links > most {
        let what = format!("{links} links, {most} are possible");
        return Err(Problem::at(path, what));
    }
    Ok(())
}

impl Shape {
    /// Machines and GPUs, of the shape that has them.
    pub(crate) fn machines(&self) -> Option<(u32, u32)> {
        match self {
            Self::Rails { nodes, gpus, .. } => Some((*nodes, *gpus)),
            _ => None,
        }
    }

    /// # Errors
    /// A size out of its limits.
    pub(crate) fn topology(&self) -> Result<Topology, Problem> {
        match self {
            Self::Star { hosts, link } => {
                let hosts = size("topology.star", "hosts", *hosts, 2)?;
                Ok(Topology::star(hosts, link.speed("topology.star.link")?))
            }
            Self::Dumbbell {
                pairs,
                link,
                bottleneck,
            } => {
                let path = "topology.dumbbell";
                let pairs = size(path, "pairs", *pairs, 1)?;
                total(path, u64::from(pairs) * 2, u64::from(pairs) * 2)?;
                let edge = link.speed("topology.dumbbell.link")?;
                let pipe = bottleneck.unwrap_or(*link);
                let middle = pipe.speed("topology.dumbbell.bottleneck")?;
                Ok(Topology::dumbbell(pairs, edge, middle))
            }
            Self::FatTree {
                k,
                link,
                fabric,
                oversubscription,
            } => {
                let path = "topology.fat_tree";
                let k = within("topology.fat_tree.k", *k, (2, 32))?;
                if k % 2 != 0 {
                    let what = format!("{k} is odd, half of the ports go up");
                    return Err(Problem::at("topology.fat_tree.k", what));
                }
                let edge = link.speed("topology.fat_tree.link")?;
                let middle = middle(path, edge, *fabric, *oversubscription, (1, 1))?;
                Ok(Topology::fat_tree(k, edge, middle))
            }
            Self::LeafSpine { .. } | Self::Rails { .. } => self.two_tiers(),
        }
    }

    /// The shapes whose sizes are a number of leaves, of spines, and of hosts at a leaf.
    fn two_tiers(&self) -> Result<Topology, Problem> {
        let (path, names, sizes, link, fabric, oversubscription) = match self {
            Self::LeafSpine {
                leaves,
                spines,
                hosts,
                link,
                fabric,
                oversubscription,
            } => {
                let names = ["leaves", "spines", "hosts"];
                let sizes = [*leaves, *spines, *hosts];
                let path = "topology.leaf_spine";
                (path, names, sizes, link, fabric, oversubscription)
            }
            Self::Rails {
                nodes,
                gpus,
                spines,
                link,
                fabric,
                oversubscription,
            } => {
                let names = ["gpus", "spines", "nodes"];
                let sizes = [*gpus, *spines, *nodes];
                (
                    "topology.rails",
                    names,
                    sizes,
                    link,
                    fabric,
                    oversubscription,
                )
            }
            _ => return self.topology(),
        };
        for (name, value) in names.into_iter().zip(sizes) {
            size(path, name, value, 1)?;
        }
        let [leaves, spines, hosts] = sizes;
        let all = u64::from(leaves) * u64::from(hosts);
        total(path, all, all + u64::from(leaves) * u64::from(spines))?;
        let edge = link.speed(&format!("{path}.link"))?;
        let middle = middle(path, edge, *fabric, *oversubscription, (hosts, spines))?;
        Ok(match self {
            Self::Rails { .. } => Topology::rails(hosts, leaves, spines, edge, middle),
            _ => Topology::leaf_spine(leaves, spines, hosts, edge, middle),
        })
    }
}
