//! tc: qdiscs, filters, and programs attached by tcx.
//!
//! Accelerated packets enter before the kernel's ingress filters and leave behind its qdiscs. A qdisc that only orders
//! packets of a busy link is no loss; one that shapes, marks or drops is.

use std::io;

use aya::programs::SchedClassifier;
use aya::programs::tc::TcAttachType;

use crate::finding::{Finding, Kind, Packets, Place};
use crate::links::{Link, Links};
use crate::netlink::{Attribute, Connection, Raw, Request, u32_at};

pub const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
pub const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;

/// Bytes of `struct tcmsg`.
const FIXED: usize = 20;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_NAME: u16 = 7;
const TCA_FQ_FLOW_MAX_RATE: u16 = 7;

/// Parents of the filters at both ends of an interface.
const INGRESS: u32 = 0xFFFF_FFF2;
const EGRESS: u32 = 0xFFFF_FFF3;
/// Place of a qdisc that holds nothing but ingress and egress filters.
const TC_H_CLSACT: u32 = 0xFFFF_FFF1;

/// Qdiscs that order and drop packets of a full queue only.
const QUEUES_ONLY: [&str; 14] = [
    "noqueue",
    "noop",
    "mq",
    "mqprio",
    "multiq",
    "pfifo",
    "bfifo",
    "pfifo_fast",
    "pfifo_head_drop",
    "fq",
    "fq_codel",
    "codel",
    "sfq",
    "prio",
];

/// A qdisc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    pub interface: u32,
    pub handle: u32,
    pub parent: u32,
    pub kind: String,
    /// `fq` limits the rate of each flow.
    pub limits_flows: bool,
}

impl Qdisc {
    /// Reads `RTM_NEWQDISC`.
    pub fn read(raw: &Raw<'_>) -> Option<Self> {
        let (fixed, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == RTM_NEWQDISC)?;
        let (interface, handle, parent) =
            (u32_at(fixed, 4)?, u32_at(fixed, 8)?, u32_at(fixed, 12)?);
        let kind = attributes.text(TCA_KIND);
        let rate = attributes.nested(TCA_OPTIONS).get(TCA_FQ_FLOW_MAX_RATE);
        let limits_flows = kind == "fq"
            && rate.and_then(Attribute::u32).is_some_and(|rate| rate != u32::MAX && rate != 0);
        Some(Self { interface, handle, parent, kind, limits_flows })
    }

    fn has_filters(&self) -> bool {
        self.parent == TC_H_CLSACT
    }

    /// Returns the ends that its filters are at: true for ingress. `ingress` has one list, and shows it for both.
    fn ends(&self) -> &'static [bool] {
        if self.kind == "ingress" { &[true] } else { &[true, false] }
    }
}

/// A filter at one end of an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Filter {
    pub interface: u32,
    /// True at ingress, false at egress.
    pub ingress: bool,
    pub preference: u32,
    pub kind: String,
    /// Name of a BPF program.
    pub name: Option<String>,
}

impl Filter {
    /// Reads `RTM_NEWTFILTER`.
    pub fn read(raw: &Raw<'_>, interface: u32, ingress: bool) -> Option<Self> {
        let (fixed, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == RTM_NEWTFILTER)?;
        // A filter without a handle is the head of its list.
        let (handle, preference) = (u32_at(fixed, 8)?, u32_at(fixed, 16)? >> 16);
        let options = attributes.nested(TCA_OPTIONS);
        let kind = attributes.text(TCA_KIND);
        let name = options.get(TCA_BPF_NAME).filter(|_| kind == "bpf").map(Attribute::text);
        (handle != 0).then_some(Self { interface, ingress, preference, kind, name })
    }
}

/// A program attached by tcx.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    pub interface: u32,
    pub ingress: bool,
    pub id: u32,
    pub name: String,
}

/// All of it, of the interfaces to be accelerated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tc {
    pub qdiscs: Vec<Qdisc>,
    pub filters: Vec<Filter>,
    pub programs: Vec<Program>,
    /// Reason why programs attached by tcx cannot be listed.
    pub programs_unseen: Option<String>,
}

/// Reads it.
///
/// # Errors
/// The kernel refuses.
pub fn read(connection: &mut Connection, links: &Links) -> io::Result<Tc> {
    let request = Request::new(RTM_GETQDISC, &[0; FIXED]);
    let qdiscs = match connection.dump(&request, Qdisc::read) {
        // A kernel without tc.
        Err(error) if is_unsupported(&error) => Vec::new(),
        qdiscs => qdiscs?,
    };
    let taken = |qdisc: &Qdisc| links.is_taken_index(qdisc.interface);
    let mut tc = Tc { qdiscs: qdiscs.into_iter().filter(taken).collect(), ..Tc::default() };
    let with_filters = tc.qdiscs.iter().filter(|qdisc| qdisc.has_filters());
    let ends =
        with_filters.flat_map(|qdisc| qdisc.ends().iter().map(|&end| (qdisc.interface, end)));
    for (interface, ingress) in ends.collect::<Vec<_>>() {
        tc.filters.extend(filters(connection, interface, ingress)?);
    }
    tc.filters.sort();
    tc.filters.dedup();
    for link in links.taken() {
        match programs(link) {
            Ok(programs) => tc.programs.extend(programs),
            Err(error) => tc.programs_unseen = Some(error),
        }
    }
    Ok(tc)
}

fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

fn filters(connection: &mut Connection, interface: u32, ingress: bool) -> io::Result<Vec<Filter>> {
    let mut fixed = [0; FIXED];
    fixed[4..8].copy_from_slice(&interface.to_ne_bytes());
    let parent = if ingress { INGRESS } else { EGRESS };
    fixed[12..16].copy_from_slice(&parent.to_ne_bytes());
    connection
        .dump(&Request::new(RTM_GETTFILTER, &fixed), |raw| Filter::read(raw, interface, ingress))
}

/// Returns the programs of an interface; none where the kernel has no tcx (before 6.6).
fn programs(link: &Link) -> Result<Vec<Program>, String> {
    let mut all = Vec::new();
    for (ingress, kind) in [(true, TcAttachType::Ingress), (false, TcAttachType::Egress)] {
        let found = match SchedClassifier::query_tcx(&link.name, kind) {
            Ok((_, found)) => found,
            Err(error) => match cause(&error) {
                Some(io::ErrorKind::PermissionDenied) => {
                    return Err("needs CAP_NET_ADMIN and CAP_BPF".into());
                }
                Some(io::ErrorKind::NotFound) => Vec::new(),
                Some(io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                    return Ok(Vec::new());
                }
                _ => return Err(error.to_string()),
            },
        };
        all.extend(found.into_iter().map(|program| Program {
            interface: link.index,
            ingress,
            id: program.id(),
            name: program.name_as_str().unwrap_or_default().to_owned(),
        }));
    }
    Ok(all)
}

/// Returns the kernel's error behind one of a library.
fn cause(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    let mut error = Some(error);
    while let Some(one) = error {
        if let Some(io) = one.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        error = one.source();
    }
    None
}

impl Tc {
    /// Returns the findings.
    pub fn findings(&self, links: &Links) -> Vec<Finding> {
        let name = |index: u32| {
            links.by_index.get(&index).map_or_else(String::new, |link| link.name.clone())
        };
        let qdiscs =
            self.qdiscs.iter().filter(|qdisc| !qdisc.has_filters() && !is_queue_only(qdisc));
        let qdiscs = qdiscs.map(|qdisc| of_qdisc(qdisc, name(qdisc.interface)));
        let filters = self.filters.iter().map(|filter| {
            let interface = name(filter.interface);
            let of = filter.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
            let text = format!("filter {}{of}, preference {}", filter.kind, filter.preference);
            let way_out = format!(
                "remove it: tc filter del dev {interface} {} pref {}",
                end_name(filter.ingress),
                filter.preference
            );
            of_end(interface, filter.ingress, text, &way_out)
        });
        let programs = self.programs.iter().map(|program| {
            let text = format!("tcx program {} \"{}\"", program.id, program.name);
            of_end(name(program.interface), program.ingress, text, "detach it")
        });
        qdiscs.chain(filters).chain(programs).collect()
    }
}

fn is_queue_only(qdisc: &Qdisc) -> bool {
    QUEUES_ONLY.contains(&qdisc.kind.as_str()) && !qdisc.limits_flows
}

fn of_qdisc(qdisc: &Qdisc, interface: String) -> Finding {
    let text = format!("qdisc {} {:x}:", qdisc.kind, qdisc.handle >> 16);
    let message =
        format!("{text} of {interface} would not see accelerated packets, which leave behind it");
    let way_out = format!("remove it: tc qdisc del dev {interface} root");
    let packets = Packets::SentBy(vec![interface.clone()]);
    Finding::refuse(Kind::Tc, Place::Tc { interface, text }, packets, message, &way_out)
}

fn end_name(ingress: bool) -> &'static str {
    if ingress { "ingress" } else { "egress" }
}

fn of_end(interface: String, ingress: bool, text: String, way_out: &str) -> Finding {
    let packets = match ingress {
        true => Packets::ReceivedOn(vec![interface.clone()]),
        false => Packets::SentBy(vec![interface.clone()]),
    };
    let end = end_name(ingress);
    let message = format!("tc {text} at {end} of {interface} would not see accelerated packets");
    Finding::refuse(Kind::Tc, Place::Tc { interface, text }, packets, message, way_out)
}
