//! Settings below `/proc/sys/net`: forwarding, tests of source addresses, redirects, multicast routing, MPLS.
//!
//! | setting | treatment |
//! |---|---|
//! | `ipv4.conf.IF.forwarding` = 0 | IPv4 received on it is not forwarded |
//! | `ipv6.conf.all.forwarding` = 0 | no IPv6 is forwarded, but with `ipv6.conf.IF.force_forwarding` (Linux 6.17) |
//! | `ipv6.conf.IF.disable_ipv6` = 1 | IPv6 received on it is dropped |
//! | `ipv4.conf.{all,IF}.rp_filter`, the larger one | strict (1) or loose (2) reverse-path filtering |
//! | `ipv4.conf.{all,IF}.accept_local`, either | sources that are own addresses are accepted |
//! | `ipv4.conf.{all,IF}.send_redirects`, either | ICMP redirects |
//! | `mc_forwarding` = 1 | multicast stays with the kernel |
//! | `mpls.conf.IF.input` = 1 | MPLS stays with the kernel |

use std::fs;

use crate::finding::{Action, Family, Finding, Kind, Packets, Place};
use crate::links::Links;

/// The values for an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub interface: String,
    /// IPv4 received on it is forwarded.
    pub forwards_ip4: bool,
    /// IPv6 received on it is forwarded.
    pub forwards_ip6: bool,
    pub ip6_is_disabled: bool,
    /// 0: none, 1: strict, 2: loose.
    pub reverse_path: i64,
    pub accepts_local: bool,
    pub sends_redirects: bool,
    pub multicast_ip4: bool,
    pub multicast_ip6: bool,
    pub mpls: bool,
}

/// Reads a setting of the calling thread's namespace by its path below `/proc/sys/net`.
type Read<'a> = dyn Fn(&str) -> Option<i64> + 'a;

impl Settings {
    fn read(interface: &str, read: &Read<'_>) -> Self {
        let own = |path: &str, name: &str| read(&format!("{path}/conf/{interface}/{name}"));
        let both = |name: &str| {
            let all = read(&format!("ipv4/conf/all/{name}"));
            all.unwrap_or(0).max(own("ipv4", name).unwrap_or(0))
        };
        let forces_ip6 = own("ipv6", "force_forwarding").unwrap_or(0) != 0;
        Self {
            interface: interface.to_owned(),
            forwards_ip4: own("ipv4", "forwarding").unwrap_or(0) != 0,
            forwards_ip6: read("ipv6/conf/all/forwarding").unwrap_or(0) != 0 || forces_ip6,
            ip6_is_disabled: own("ipv6", "disable_ipv6").unwrap_or(0) != 0,
            reverse_path: both("rp_filter"),
            accepts_local: both("accept_local") != 0,
            sends_redirects: both("send_redirects") != 0,
            multicast_ip4: own("ipv4", "mc_forwarding").unwrap_or(0) != 0,
            multicast_ip6: own("ipv6", "mc_forwarding").unwrap_or(0) != 0,
            mpls: own("mpls", "input").unwrap_or(0) != 0,
        }
    }
}

/// Reads the settings of the interfaces to be accelerated.
pub fn read(links: &Links) -> Vec<Settings> {
    let read =
        |path: &str| fs::read_to_string(format!("/proc/sys/net/{path}")).ok()?.trim().parse().ok();
    links.routed().map(|link| Settings::read(&link.name, &read)).collect()
}

/// Returns the findings.
pub fn findings(all: &[Settings]) -> Vec<Finding> {
    all.iter().flat_map(of_interface).chain(nothing_is_forwarded(all)).collect()
}

/// Returns the finding that there is nothing to accelerate.
fn nothing_is_forwarded(all: &[Settings]) -> Option<Finding> {
    if all.is_empty() || all.iter().any(|one| one.forwards_ip4 || one.forwards_ip6) {
        return None;
    }
    let place = Place::Setting { name: "net.ipv4.ip_forward".into(), value: 0 };
    let message = "the kernel forwards nothing on these interfaces: net.ipv4.ip_forward = 0 and \
                   net.ipv6.conf.all.forwarding = 0";
    let way_out = "sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1";
    Some(Finding::refuse(Kind::Forwarding, place, Packets::All, message, way_out))
}

fn of_interface(of: &Settings) -> Vec<Finding> {
    let name = &of.interface;
    let new = |kind, setting: &str, value, packets, action, message: String| {
        let setting = setting.replace("IF", name);
        Finding::new(
            kind,
            Place::Setting { name: format!("net.{setting}"), value },
            packets,
            action,
            message,
        )
    };
    let of_family = |family| Packets::FamilyOn(family, vec![name.clone()]);
    let multicast = || Packets::Some(format!("multicast received on {name}"));
    let mut all = Vec::new();
    if !of.forwards_ip4 {
        let message = format!(
            "IPv4 received on {name} is not forwarded: net.ipv4.conf.{name}.forwarding = 0"
        );
        all.push(new(
            Kind::Forwarding,
            "ipv4.conf.IF.forwarding",
            0,
            of_family(Family::Ip4),
            Action::Follow,
            message,
        ));
    }
    if of.ip6_is_disabled {
        let message =
            format!("IPv6 received on {name} is dropped: net.ipv6.conf.{name}.disable_ipv6 = 1");
        all.push(new(
            Kind::Forwarding,
            "ipv6.conf.IF.disable_ipv6",
            1,
            of_family(Family::Ip6),
            Action::Follow,
            message,
        ));
    } else if !of.forwards_ip6 {
        let message =
            format!("IPv6 received on {name} is not forwarded: net.ipv6.conf.all.forwarding = 0");
        all.push(new(
            Kind::Forwarding,
            "ipv6.conf.all.forwarding",
            0,
            of_family(Family::Ip6),
            Action::Follow,
            message,
        ));
    }
    if of.reverse_path != 0 {
        let mode = if of.reverse_path == 1 { "strict" } else { "loose" };
        let message = format!(
            "IPv4 sources received on {name} pass a {mode} reverse-path test (rp_filter = {})",
            of.reverse_path
        );
        let setting = "ipv4.conf.IF.rp_filter";
        all.push(new(
            Kind::ReversePath,
            setting,
            of.reverse_path,
            of_family(Family::Ip4),
            Action::Follow,
            message,
        ));
    }
    if of.accepts_local {
        let message = format!(
            "IPv4 packets received on {name} from own addresses of this machine stay with the kernel (accept_local = 1)"
        );
        let packets = Packets::Some(format!("IPv4 received on {name} from own addresses"));
        all.push(new(
            Kind::ReversePath,
            "ipv4.conf.IF.accept_local",
            1,
            packets,
            Action::Stay,
            message,
        ));
    }
    if !of.sends_redirects {
        let message = format!("no ICMP redirects are sent to hosts at {name}");
        all.push(new(
            Kind::Redirects,
            "ipv4.conf.IF.send_redirects",
            0,
            of_family(Family::Ip4),
            Action::Follow,
            message,
        ));
    }
    for (family, is_on) in [(Family::Ip4, of.multicast_ip4), (Family::Ip6, of.multicast_ip6)] {
        if is_on {
            let message = format!(
                "{} multicast is routed by the kernel's cache on {name}: it stays with the kernel",
                family.name()
            );
            let setting = if family == Family::Ip4 {
                "ipv4.conf.IF.mc_forwarding"
            } else {
                "ipv6.conf.IF.mc_forwarding"
            };
            all.push(new(Kind::Multicast, setting, 1, multicast(), Action::Stay, message));
        }
    }
    if of.mpls {
        let message = format!("MPLS packets received on {name} stay with the kernel");
        let packets = Packets::Some(format!("MPLS received on {name}"));
        all.push(new(Kind::Mpls, "mpls.conf.IF.input", 1, packets, Action::Stay, message));
    }
    all
}
