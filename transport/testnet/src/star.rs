//! Namespaces around one in the middle.

use crate::{IFNAME, Netns, ip, make, next_prefix, no_duplicate_detection, skip};

/// Namespaces with an interface [`IFNAME`] each, whose other ends are in one namespace, not joined
/// there.
#[derive(Debug)]
pub struct Star {
    /// Where all links end. Interfaces: [`Star::port`].
    pub middle: Netns,
    /// 10.77.0.1, fd77::1 and so on.
    pub leaves: Vec<Netns>,
}

impl Star {
    /// Makes all, each link with one queue and an IP MTU of `mtu` bytes.
    ///
    /// # Errors
    /// Why it is not possible here: not root, no `ip`, no veth.
    pub fn new(leaves: u8, mtu: u32) -> Result<Self, String> {
        let prefix = next_prefix()?;
        let mut star = Self {
            middle: make(format!("{prefix}m"), 0)?,
            leaves: Vec::new(),
        };
        star.middle.run(no_duplicate_detection);
        star.middle.ip_cmd("link set lo up")?;
        for i in 0..leaves {
            let port = Self::port(i.into());
            let leaf = make(format!("{prefix}l{i}"), i + 1)?;
            ip(&format!(
                "link add {IFNAME} netns {} mtu {mtu} type veth peer name {port} netns {} mtu {mtu}",
                leaf.name(),
                star.middle.name()
            ))?;
            leaf.bring_up()?;
            star.middle.ip_cmd(&format!("link set {port} up"))?;
            star.leaves.push(leaf);
        }
        Ok(star)
    }

    /// As [`Star::new`]; where that is not possible, prints why and returns `None`.
    ///
    /// # Panics
    /// It is not possible and [`REQUIRE`](crate::REQUIRE) is set to 1.
    #[must_use]
    pub fn or_skip(leaves: u8, mtu: u32) -> Option<Self> {
        Self::new(leaves, mtu).map_err(|why| skip(&why)).ok()
    }

    /// Name of the interface in the middle that leads to leaf `i`.
    #[must_use]
    pub fn port(i: usize) -> String {
        format!("port{i}")
    }
}
