//! `turnpike.vrf "NAME" { … }`, and VRFs in other statements.

use std::collections::HashMap;
use std::ops::Deref;

use dataplane::interface::{VRFS_MOST, VrfId};

use super::super::network::netns_name;
use super::super::script::Statement;
use super::super::value::Fields;
use super::super::{DEFAULT_VRF, Vrf};
use super::{Context, NAME_RULE, is_name};

/// Limit of a VRF's name, as of the name of a VRF device in Linux.
const NAME_MOST: usize = 15;

/// The kernel's own tables: "default", "main" and "local". Table 0, which means none, is excluded
/// too.
const KERNEL_TABLES: [u64; 3] = [253, 254, 255];

/// The VRFs besides the default one, which are found by name at once: there may be many routes in many of them.
#[derive(Default)]
pub(super) struct Vrfs {
    all: Vec<Vrf>,
    by_name: HashMap<String, VrfId>,
}

impl Vrfs {
    pub(super) fn new(all: Vec<Vrf>) -> Self {
        let by_name = all.iter().map(|vrf| (vrf.name.clone(), vrf.id)).collect();
        Self { all, by_name }
    }
}

impl Deref for Vrfs {
    type Target = [Vrf];

    fn deref(&self) -> &[Vrf] {
        &self.all
    }
}

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    routes_from_others: bool,
) -> Vec<Vrf> {
    let mut vrfs: Vec<Vrf> = Vec::new();
    for statement in statements {
        let number = u16::try_from(vrfs.len() + 1).unwrap_or(u16::MAX);
        if usize::from(number) >= VRFS_MOST {
            let message = format!(
                "vrf \"{}\": there may be {} VRFs besides the default one; take one away",
                statement.name,
                VRFS_MOST - 1
            );
            context.errors.add(Some(statement.line), message);
            break;
        }
        let what = format!("vrf \"{}\"", statement.name);
        let mut fields = context.fields(what, statement, &["table", "namespace"]);
        check_name(&mut fields, &statement.name, &vrfs);
        let table = table(&mut fields, &vrfs, routes_from_others);
        let namespace = namespace(&mut fields, &vrfs);
        if table.is_some() && namespace.is_some() {
            fields.error(
                "table",
                "table: the VRF's routes are those of its namespace; take table or namespace away",
            );
        }
        let (id, line, name) = (VrfId::new(number), statement.line, statement.name.clone());
        vrfs.push(Vrf { id, line, name, table, namespace });
    }
    vrfs
}

fn check_name(fields: &mut Fields<'_, '_>, name: &str, others: &[Vrf]) {
    if name == DEFAULT_VRF {
        fields.error("", "is always there; choose another name");
    } else if name.len() > NAME_MOST || !is_name(name) {
        fields.error("", format!("not a name; {NAME_RULE}, {NAME_MOST} characters at most"));
    }
    if let Some(other) = others.iter().find(|other| other.name == name) {
        let message =
            format!("the name is taken by the VRF on line {}; choose another", other.line);
        fields.error("", message);
    }
}

fn table(fields: &mut Fields<'_, '_>, others: &[Vrf], routes_from_others: bool) -> Option<u32> {
    let table = fields.number("table", 1..=u64::from(u32::MAX))?;
    if KERNEL_TABLES.contains(&table) {
        fields.error(
            "table",
            format!("table {table} is the kernel's for packets of no VRF; use another number"),
        );
    } else if let Some(other) =
        others.iter().find(|other| other.table.map(u64::from) == Some(table))
    {
        let message =
            format!("table {table} is that of VRF \"{}\" on line {}", other.name, other.line);
        fields.error("table", format!("{message}; use another number"));
    } else if !routes_from_others {
        fields.error(
            "table",
            "table needs a source in turnpike.routes_from; add one, or leave \
             table out",
        );
    }
    u32::try_from(table).ok()
}

fn namespace(fields: &mut Fields<'_, '_>, others: &[Vrf]) -> Option<String> {
    let name = fields.text("namespace", "a network namespace's name")?.to_owned();
    if let Err(reason) = netns_name(&name) {
        fields.error("namespace", format!("namespace \"{name}\": {reason}"));
        return None;
    }
    if let Some(other) = others.iter().find(|other| other.namespace.as_ref() == Some(&name)) {
        let message = format!(
            "namespace \"{name}\" is that of VRF \"{}\" on line {}",
            other.name, other.line
        );
        fields.error("namespace", format!("{message}; use another one"));
    }
    Some(name)
}

/// Returns the VRF named by a setting; `None` if the setting is absent or wrong.
pub(super) fn named(fields: &mut Fields<'_, '_>, key: &'static str, vrfs: &Vrfs) -> Option<VrfId> {
    let name = fields.text(key, "a VRF's name")?;
    if let Some(known) = vrfs.by_name.get(name) {
        return Some(*known);
    }
    Vrf::named(vrfs, name).map_err(|why| fields.error(key, format!("{key} {why}"))).ok()
}
