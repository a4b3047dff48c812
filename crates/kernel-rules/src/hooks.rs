//! Functions that the kernel calls for forwarded packets, by the list of netfilter's hooks (Linux 5.14): those that no
//! table of nftables or iptables explains, such as connection tracking, virtual servers, and BPF programs.

use std::io;

use crate::finding::{Finding, Kind, Packets, Place};
use crate::links::Links;
use crate::netlink::{Connection, Raw, Request};
use crate::nft::{FIXED, is_unsupported};

/// `NFNL_SUBSYS_HOOK`.
const NFNL_MSG_HOOK_GET: u16 = 12 << 8;
const NFNLA_HOOK_HOOKNUM: u16 = 1;
const NFNLA_HOOK_DEV: u16 = 3;
const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;
const NFNLA_HOOK_MODULE_NAME: u16 = 5;
const NFNLA_HOOK_CHAIN_INFO: u16 = 6;

const NFPROTO_IPV4: u8 = 2;
const NFPROTO_NETDEV: u8 = 5;
const NFPROTO_IPV6: u8 = 10;

/// A function at a hook.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    pub family: &'static str,
    pub hook: &'static str,
    pub function: String,
    /// The kernel module that it is in; empty: built in.
    pub module: String,
    /// It runs chains of nftables, or a BPF program that the kernel describes.
    pub is_described: bool,
}

impl Hook {
    pub fn read(raw: &Raw<'_>, family: &'static str, hook: &'static str) -> Option<Self> {
        let (_, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == NFNL_MSG_HOOK_GET)?;
        Some(Self {
            family,
            hook,
            function: attributes.text(NFNLA_HOOK_FUNCTION_NAME),
            module: attributes.text(NFNLA_HOOK_MODULE_NAME),
            is_described: attributes.get(NFNLA_HOOK_CHAIN_INFO).is_some(),
        })
    }

    /// Returns true for connection tracking, and what it needs.
    fn tracks(&self) -> bool {
        let words = ["conntrack", "nf_confirm", "ipv4_confirm", "ipv6_confirm", "defrag"];
        words.iter().any(|word| self.function.contains(word) || self.module.contains(word))
    }

    /// Returns true for what is found by its tables.
    fn is_known(&self) -> bool {
        let functions = [
            "nft_",
            "nf_nat",
            "ipt_do_table",
            "ip6t_do_table",
            "iptable_",
            "ip6table_",
            "ip_vs_",
            "nf_flow_",
        ];
        let modules = [
            "nf_tables",
            "nf_nat",
            "iptable_",
            "ip6table_",
            "ip_tables",
            "ip6_tables",
            "x_tables",
            "ip_vs",
        ];
        functions.iter().any(|start| self.function.starts_with(start))
            || modules.iter().any(|start| self.module.starts_with(start))
            || self.tracks()
            // Labels of security modules on a machine's own traffic.
            || self.function.starts_with("apparmor_")
            || self.function.starts_with("selinux_")
            || self.function.starts_with("smack_")
            // `br_netfilter` is for frames of bridges.
            || self.module == "br_netfilter"
    }
}

/// Reads the hooks that packets forwarded between accelerated interfaces pass; none where the kernel cannot list them.
///
/// # Errors
/// The kernel refuses, usually for want of CAP_NET_ADMIN.
pub fn read(connection: &mut Connection, links: &Links) -> io::Result<Vec<Hook>> {
    let mut all = Vec::new();
    for (family, number) in [("ip", NFPROTO_IPV4), ("ip6", NFPROTO_IPV6)] {
        for (hook, index) in [("prerouting", 0), ("forward", 2), ("postrouting", 4)] {
            all.extend(of_hook(connection, (family, number), (hook, index), None)?);
        }
    }
    for link in links.taken() {
        for (hook, index) in [("ingress", 0), ("egress", 1)] {
            all.extend(of_hook(
                connection,
                ("netdev", NFPROTO_NETDEV),
                (hook, index),
                Some(&link.name),
            )?);
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

fn of_hook(
    connection: &mut Connection,
    (family, number): (&'static str, u8),
    (hook, index): (&'static str, u32),
    device: Option<&str>,
) -> io::Result<Vec<Hook>> {
    let request = Request::new(NFNL_MSG_HOOK_GET, &[number, 0, 0, 0])
        .attribute(NFNLA_HOOK_HOOKNUM, &index.to_be_bytes());
    let request = match device {
        Some(device) => request.attribute(NFNLA_HOOK_DEV, &[device.as_bytes(), &[0]].concat()),
        None => request,
    };
    match connection.dump(&request, |raw| Hook::read(raw, family, hook)) {
        Err(error) if is_unsupported(&error) || error.kind() == io::ErrorKind::NotFound => {
            Ok(Vec::new())
        }
        hooks => hooks,
    }
}

/// Returns true if the kernel tracks connections of forwarded packets.
pub fn tracks(hooks: &[Hook]) -> bool {
    hooks.iter().any(Hook::tracks)
}

/// Returns the findings about functions that nothing else explains.
pub fn findings(hooks: &[Hook]) -> Vec<Finding> {
    let unknown = hooks.iter().filter(|hook| !hook.is_known());
    let finding = |hook: &Hook| {
        let Hook { family, hook: at, function, module, .. } = hook;
        let place = Place::Hook {
            family: (*family).into(),
            hook: (*at).into(),
            function: function.clone(),
        };
        let of = match (module.as_str(), hook.is_described) {
            ("", true) => " (a BPF program)".to_owned(),
            ("", false) => String::new(),
            (module, _) => format!(" of module {module}"),
        };
        let message = format!(
            "netfilter calls {function}{of} at hook {at} of {family} for each forwarded packet"
        );
        Finding::refuse(Kind::Hooks, place, Packets::All, message, "stop what uses it")
    };
    unknown.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    fn hook(function: &str, module: &str, is_described: bool) -> Hook {
        let mut request = Request::new(NFNL_MSG_HOOK_GET, &[NFPROTO_IPV4, 0, 0, 0])
            .attribute(NFNLA_HOOK_HOOKNUM, &2_u32.to_be_bytes())
            .attribute(NFNLA_HOOK_FUNCTION_NAME, &[function.as_bytes(), &[0]].concat());
        if !module.is_empty() {
            request =
                request.attribute(NFNLA_HOOK_MODULE_NAME, &[module.as_bytes(), &[0]].concat());
        }
        if is_described {
            request = request.attribute(NFNLA_HOOK_CHAIN_INFO, &[]);
        }
        let bytes = request.bytes(0, 1);
        let hook = messages(&bytes).find_map(|raw| Hook::read(&raw, "ip", "forward"));
        hook.expect("a hook")
    }

    #[test]
    fn functions_of_tables_are_known_and_others_are_refused() {
        let known = [
            hook("nft_do_chain_ipv4", "nf_tables", true),
            hook("nft_do_chain_inet", "", true),
            hook("ipv4_conntrack_in", "nf_conntrack", false),
            hook("nf_nat_ipv4_out", "", false),
            hook("ipt_do_table", "ip_tables", false),
            hook("selinux_ip_forward", "", false),
            hook("apparmor_ip_postroute", "", false),
        ];
        assert_eq!(findings(&known), []);
        assert!(tracks(&known) && !tracks(&known[..2]));
        let unknown = [hook("nf_hook_run_bpf", "", true), hook("count_it", "my_module", false)];
        let texts: Vec<String> = findings(&unknown).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "netfilter calls nf_hook_run_bpf (a BPF program) at hook forward of ip for each forwarded packet; stop what \
                 uses it, or say --bypass hooks",
                "netfilter calls count_it of module my_module at hook forward of ip for each forwarded packet; stop what uses \
                 it, or say --bypass hooks",
            ]
        );
    }
}
