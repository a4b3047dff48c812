//! `turnpike doctor accelerate`: packets that the fast path in front of the kernel would take, those that stay with the
//! kernel, and reasons to refuse.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use control::config::Device;
use control::netlink::netdev::Xdp;
use dataplane::polling::Wait;
use kernel_rules::{Action, Family, Filters, Inspection, Kind, Packets, Unseen, WhyNot};
use machine::Machine;
use router::acceleration::{BOND, VLAN};
use serde::Serialize;

use super::text::{INDENT, WIDTH, counts, finding as lines_of};
use super::{AskXdp, DpdkVersions, Finding, Patient, Port, Severity, Wanted, gain, system, xdp};
use crate::wrap::wrap;

/// Largest MTU whose packets fit one page beside the headroom of XDP (256 bytes), the kernel's own data behind them
/// (320) and an Ethernet header with a tag (18).
const MTU_OF_A_PAGE: u32 = 4096 - 256 - 320 - 18;

/// A check of the machine.
type Check = fn(&Patient<'_>) -> Vec<Finding>;

/// Checks of the machine that matter here as well, and of these one where there are no sockets.
const CHECKS: [Check; 3] = [system::kernel, xdp::sockets, xdp::zero_copy];
const CHECKS_IN_KERNEL: [Check; 1] = [system::kernel];

/// The report.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The interfaces asked for.
    pub interfaces: Vec<String>,
    /// The highest severity found.
    pub worst: Severity,
    /// The conclusion, in a line.
    pub verdict: String,
    /// The packets that would be taken, in lines.
    pub taken: Vec<String>,
    /// The gain, as far as it is known beforehand, in lines.
    pub gain: Vec<String>,
    /// The findings, the most severe first.
    pub findings: Vec<Finding>,
    /// Rules and settings of the kernel for forwarded packets.
    pub rules: Vec<kernel_rules::Finding>,
    /// Parts of the kernel that could not be examined.
    pub unseen: Vec<Unseen>,
    /// The filters that forward chains would be followed as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Filters>,
    /// The reasons why forward chains cannot be followed as filters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub why_not: Vec<WhyNot>,
}

impl Report {
    /// Returns the process's exit status, see [`super::Report::exit_status`].
    pub fn exit_status(&self) -> u8 {
        self.worst.exit_status()
    }
}

/// Examines the machine for the acceleration of these interfaces.
pub fn examine(
    machine: &Machine,
    xdp: &AskXdp,
    (interfaces, in_kernel): (&[String], bool),
    inspection: &Inspection,
    sample: Option<Duration>,
) -> Report {
    let checks = if in_kernel { &CHECKS_IN_KERNEL[..] } else { &CHECKS };
    let mut findings = of_machine(machine, xdp, inspection, checks);
    if in_kernel {
        findings.extend(ports(inspection).map(|one| of_way_out(&one.name, &xdp(&one.name))));
        let bonds = ports(inspection).filter(|one| one.device == BOND);
        findings.extend(bonds.filter_map(|one| of_bond(&one.name, &xdp(&one.name))));
    }
    findings.extend(ports(inspection).flat_map(|one| of_interface(machine, one)));
    findings.extend(inspection.findings.iter().map(of_rule));
    findings.extend(inspection.unseen.iter().map(of_unseen));
    let translated = kernel_rules::translate(inspection);
    findings.extend(of_vlans(inspection, &translated));
    findings.extend(of_translation(&translated));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let all: Vec<String> = inspection.interfaces.iter().map(|one| one.name.clone()).collect();
    let worst = findings.first().map_or(Severity::Ok, |finding| finding.severity);
    let (filters, why_not) = match translated {
        Ok(filters) => (
            Some(filters).filter(|filters| filters.rules > 0 || !filters.lua.is_empty()),
            Vec::new(),
        ),
        Err(why_not) => (None, why_not),
    };
    Report {
        interfaces: interfaces.to_vec(),
        worst,
        verdict: verdict(inspection, &findings),
        taken: taken(inspection),
        gain: gain::lines(machine, &all, sample),
        findings,
        rules: inspection.findings.clone(),
        unseen: inspection.unseen.clone(),
        filters,
        why_not,
    }
}

/// Makes the checks of a router whose ports are these interfaces.
fn of_machine(
    machine: &Machine,
    xdp: &AskXdp,
    inspection: &Inspection,
    checks: &[Check],
) -> Vec<Finding> {
    let port = |interface: &kernel_rules::Interface| Port {
        name: interface.name.clone(),
        device: Device::Kernel(interface.name.clone()),
        driver: None,
        blocks: Wait::default() != Wait::Poll,
        queues: 1,
        control_queue: false,
    };
    let wanted = Wanted { ports: ports(inspection).map(port).collect(), ..Wanted::default() };
    let patient = Patient {
        machine,
        cpus: machine.cpus(),
        wanted: &wanted,
        dpdk: DpdkVersions::default(),
        xdp,
    };
    checks.iter().flat_map(|check| check(&patient)).collect()
}

/// Returns the interfaces without the VLAN devices on them.
fn ports(inspection: &Inspection) -> impl Iterator<Item = &kernel_rules::Interface> {
    inspection.interfaces.iter().filter(|one| one.device != VLAN)
}

/// Returns the finding about the VLAN devices on the interfaces.
fn of_vlans(inspection: &Inspection, translated: &Result<Filters, Vec<WhyNot>>) -> Option<Finding> {
    const CHECK: &str = "vlan";
    let vlans = inspection.interfaces.iter().filter(|one| one.device == VLAN);
    let names: Vec<&str> = vlans.map(|one| one.name.as_str()).collect();
    let names = names.join(", ");
    let has_filters = translated.as_ref().is_ok_and(|filters| !filters.places.is_empty());
    match has_filters {
        _ if names.is_empty() => None,
        true => Some(Finding::note(
            CHECK,
            format!(
                "{names}: VLAN devices stay with the kernel where forward chains are followed as filters"
            ),
        )),
        false => Some(Finding::ok(
            CHECK,
            format!("{names}: accelerated with the interfaces they are on"),
        )),
    }
}

/// Returns the finding about an interface as the way out of packets that XDP programs forward.
fn of_way_out(name: &str, xdp: &io::Result<Option<Xdp>>) -> Finding {
    const CHECK: &str = "way-out";
    match xdp {
        Ok(Some(xdp)) if xdp.transmit => {
            Finding::ok(CHECK, format!("{name}: its driver sends frames of XDP programs"))
        }
        Ok(Some(_)) => {
            Finding::warning(CHECK, format!("{name}: its driver sends no frames of XDP programs"))
                .cost("With --in-kernel packets that leave by it stay with the kernel.")
                .mend(["if it is veth, at its other end: ethtool -K PEER gro on".to_owned()])
        }
        Ok(None) => Finding::error(CHECK, "Linux is older than 6.3".to_owned())
            .cost("With --in-kernel acceleration is refused."),
        Err(error) => Finding::note(CHECK, format!("cannot tell: {name}: {error}")),
    }
}

/// Returns the finding about a bond whose ports do not all run its XDP program.
fn of_bond(name: &str, xdp: &io::Result<Option<Xdp>>) -> Option<Finding> {
    const CHECK: &str = "bond";
    let takes_none = matches!(xdp, Ok(Some(xdp)) if !xdp.native);
    takes_none.then(|| {
        Finding::error(CHECK, format!("{name}: not all of its ports' drivers run XDP programs, or its mode allows none"))
            .cost("Acceleration is refused.")
            .mend(["a mode of balance-rr, active-backup, balance-xor or 802.3ad, without xmit_hash_policy vlan+srcmac".to_owned()])
    })
}

fn of_interface(machine: &Machine, interface: &kernel_rules::Interface) -> Vec<Finding> {
    const CHECK: &str = "interface";
    let name = &interface.name;
    let driver = machine.nic(&Device::Kernel(name.clone())).and_then(|nic| nic.driver);
    let driver = match (driver, interface.device.as_str()) {
        (Some(driver), _) => format!("driver {driver}"),
        (None, "") => "driver unknown".to_owned(),
        (None, kind) => kind.to_owned(),
    };
    let (receive, transmit) = machine.queues(name);
    let Some(state) = machine.interface(name) else {
        return vec![Finding::unknown(CHECK, &format!("/sys/class/net/{name}"))];
    };
    let mtu = state.mtu.unwrap_or_default();
    let found = format!("{name}: {driver}, queues: {receive} rx, {transmit} tx, MTU {mtu}");
    let mut all = vec![Finding::ok(CHECK, found)];
    if !state.up {
        let finding = Finding::warning(CHECK, format!("{name} is down"));
        all.push(finding.cost("It carries no packets.").mend([format!("ip link set {name} up")]));
    }
    if mtu > MTU_OF_A_PAGE {
        let found = format!(
            "{name}: MTU {mtu}: more than {MTU_OF_A_PAGE}, about what XDP has in one buffer"
        );
        let cost = "Drivers refuse a program in the driver for such packets, so that XDP runs in its generic mode.";
        all.push(
            Finding::warning(CHECK, found)
                .cost(cost)
                .mend([format!("ip link set {name} mtu 1500")]),
        );
    }
    all
}

fn of_rule(rule: &kernel_rules::Finding) -> Finding {
    let (check, message) = (rule.kind.name(), &rule.message);
    match rule.action {
        Action::Note | Action::Stay => Finding::note(check, message),
        Action::Follow => Finding::ok(check, message).cost("Acceleration follows it."),
        Action::Bypass => {
            Finding::warning(check, message).cost("Accelerated packets bypass it, as requested.")
        }
        Action::Refuse => {
            let way_out = rule.way_out.as_deref().unwrap_or_default();
            Finding::error(check, message).cost(format!("Acceleration is refused: {way_out}."))
        }
    }
}

fn of_unseen(unseen: &Unseen) -> Finding {
    Finding::note(unseen.kind.name(), format!("cannot tell: {}", unseen.why))
}

/// Returns the finding about chains that filters follow, or the reasons against it.
fn of_translation(translated: &Result<Filters, Vec<WhyNot>>) -> Vec<Finding> {
    const CHECK: &str = "filters";
    match translated {
        Ok(Filters { rules: 0, lua, .. }) if lua.is_empty() => Vec::new(),
        Ok(filters) => {
            let rules = if filters.rules == 1 { "rule" } else { "rules" };
            let found = format!(
                "{} {rules} of forward chains would be followed as filters:",
                filters.rules
            );
            vec![Finding::ok(CHECK, found).mend(statements(&filters.lua))]
        }
        Err(why_not) => {
            let note = |why: &WhyNot| {
                Finding::note(CHECK, format!("cannot be followed as a filter: {why}"))
            };
            why_not.iter().map(note).collect()
        }
    }
}

/// Returns the lines of Lua without comments.
fn statements(lua: &str) -> impl Iterator<Item = String> {
    lua.lines().filter(|line| !line.trim_start().starts_with("--")).map(str::to_owned)
}

/// Returns the packets that would be taken, a line for each family.
fn taken(inspection: &Inspection) -> Vec<String> {
    let line = |family: Family| {
        let is_off = |name: &String| {
            let is_it = |rule: &kernel_rules::Finding| {
                let of = Packets::FamilyOn(family, vec![name.clone()]);
                rule.kind == Kind::Forwarding && rule.packets == of
            };
            inspection.findings.iter().any(is_it)
        };
        let names = inspection.interfaces.iter().map(|one| &one.name).filter(|name| !is_off(name));
        let names: Vec<&str> = names.map(String::as_str).collect();
        let family = family.name();
        match names.is_empty() {
            true => format!("{family}: none"),
            false => format!(
                "{family}{} received on {} and routed to an accelerated interface",
                if inspection.flows { " of established flows" } else { "" },
                names.join(", ")
            ),
        }
    };
    Family::BOTH.into_iter().map(line).collect()
}

fn verdict(inspection: &Inspection, findings: &[Finding]) -> String {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let subjects: BTreeSet<&str> = errors.map(|finding| finding.check).collect();
    let bypassed: BTreeSet<&str> = inspection
        .findings
        .iter()
        .filter(|rule| rule.action == Action::Bypass)
        .map(|rule| rule.kind.name())
        .collect();
    let unseen: BTreeSet<&str> =
        inspection.unseen.iter().map(|unseen| unseen.kind.name()).collect();
    let list = |names: &BTreeSet<&str>| names.iter().copied().collect::<Vec<_>>().join(", ");
    if !subjects.is_empty() {
        format!("refused, because of: {}", list(&subjects))
    } else if !unseen.is_empty() {
        format!("unknown: this user cannot examine: {}", list(&unseen))
    } else if !bypassed.is_empty() {
        format!("accelerated; bypassed as requested: {}", list(&bypassed))
    } else {
        "accelerated".to_owned()
    }
}

/// Returns the report as text.
pub fn text(report: &Report) -> String {
    let mut lines: Vec<String> = report.findings.iter().flat_map(lines_of).collect();
    lines.push(String::new());
    let labelled = |label: &str, text: &str| -> Vec<String> {
        let wrapped = wrap(text, WIDTH - INDENT).into_iter().enumerate();
        wrapped
            .map(|(index, line)| format!("{:<INDENT$}{line}", if index == 0 { label } else { "" }))
            .collect()
    };
    lines.extend(report.taken.iter().flat_map(|line| labelled("taken", line)));
    lines.extend(report.gain.iter().flat_map(|line| labelled("gain", line)));
    lines.push(String::new());
    lines.push(counts(&report.findings));
    lines.push(format!("verdict: {}", report.verdict));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use kernel_rules::{Finding as RuleFinding, Interface, Place};
    use machine::testing::Tree;

    use super::*;

    fn rule(kind: Kind, packets: Packets, action: Action) -> RuleFinding {
        let place = Place::Interface { name: "eth0".into() };
        let way_out = (action == Action::Refuse).then(|| "remove it".to_owned());
        RuleFinding { kind, place, packets, action, message: format!("{kind} rule"), way_out }
    }

    fn inspection(findings: Vec<RuleFinding>, unseen: Vec<Unseen>) -> Inspection {
        let interface = |name: &str| Interface { name: name.into(), device: "veth".into() };
        let mut inspection = Inspection::default();
        inspection.interfaces = vec![interface("eth0"), interface("eth1")];
        (inspection.findings, inspection.unseen) = (findings, unseen);
        inspection
    }

    fn report(findings: Vec<RuleFinding>, unseen: Vec<Unseen>) -> Report {
        let tree = Tree::new(&[
            ("proc/self/net/protocols", "XDP 1 2\n"),
            ("sys/class/net/eth0/flags", "0x1003"),
            ("sys/class/net/eth0/mtu", "1500"),
            ("sys/class/net/eth1/flags", "0x1003"),
            ("sys/class/net/eth1/mtu", "1500"),
        ]);
        let names = ["eth0".to_owned(), "eth1".to_owned()];
        examine(
            &tree.machine(),
            &|_| Ok(None),
            (&names, false),
            &inspection(findings, unseen),
            None,
        )
    }

    #[test]
    fn a_bond_takes_programs_by_all_of_its_ports_or_not_at_all() {
        let of = |native| of_bond("bond0", &Ok(Some(Xdp { native, ..Xdp::default() })));
        assert_eq!(of(true), None);
        assert_eq!(of(false).map(|finding| finding.severity), Some(Severity::Error));
        assert_eq!(of_bond("bond0", &Ok(None)), None, "said of the kernel's age");
    }

    #[test]
    fn a_way_out_is_one_that_sends_frames_of_programs() {
        let of = |xdp: io::Result<Option<Xdp>>| of_way_out("eth0", &xdp).severity;
        assert_eq!(of(Ok(Some(Xdp { transmit: true, ..Xdp::default() }))), Severity::Ok);
        assert_eq!(of(Ok(Some(Xdp::default()))), Severity::Warning);
        assert_eq!(of(Ok(None)), Severity::Error);
        assert_eq!(of(Err(io::ErrorKind::NotFound.into())), Severity::Note);
    }

    #[test]
    fn the_verdict_is_that_of_the_worst_finding() {
        let verdict = |findings, unseen| {
            let report = report(findings, unseen);
            (report.exit_status(), report.verdict)
        };
        let stay = || rule(Kind::Macvlan, Packets::All, Action::Stay);
        let bypass = || rule(Kind::Tc, Packets::All, Action::Bypass);
        let refuse = || rule(Kind::Nat, Packets::All, Action::Refuse);
        let unseen = || vec![Unseen { kind: Kind::Nftables, why: "needs CAP_NET_ADMIN".into() }];
        assert_eq!(verdict(vec![stay()], vec![]), (0, "accelerated".into()));
        assert_eq!(
            verdict(vec![bypass()], vec![]),
            (1, "accelerated; bypassed as requested: tc".into())
        );
        assert_eq!(
            verdict(vec![stay()], unseen()),
            (0, "unknown: this user cannot examine: nftables".into())
        );
        assert_eq!(
            verdict(vec![bypass(), refuse()], unseen()),
            (2, "refused, because of: nat".into())
        );
    }

    #[test]
    fn families_that_are_not_forwarded_are_not_taken() {
        let off = |name: &str| {
            rule(
                Kind::Forwarding,
                Packets::FamilyOn(Family::Ip6, vec![name.into()]),
                Action::Follow,
            )
        };
        let first = "IPv4 received on eth0, eth1 and routed to an accelerated interface".to_owned();
        let one = report(vec![off("eth0")], vec![]).taken;
        assert_eq!(
            one,
            [first.clone(), "IPv6 received on eth1 and routed to an accelerated interface".into()]
        );
        assert_eq!(
            report(vec![off("eth0"), off("eth1")], vec![]).taken,
            [first, "IPv6: none".into()]
        );
    }

    #[test]
    fn text_ends_with_the_verdict() {
        let text = text(&report(vec![rule(Kind::Nat, Packets::All, Action::Refuse)], vec![]));
        assert!(
            text.starts_with(
                "error    nat: nat rule\n         Acceleration is refused: remove it.\n"
            ),
            "{text}"
        );
        assert!(text.ends_with("verdict: refused, because of: nat"), "{text}");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
    }
}
