//! The ports of a kernel's bond that is accelerated by a program that forwards itself.
//!
//! The kernel runs the program of a bond in the drivers of its ports, before the bond sees a frame. So the program looks at
//! frames of those ports only by which the bond receives, not of its spares, to which switches send copies while they
//! learn; and of those whose driver leaves VLAN tags in the frames, as without them they look untagged.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use super::kernel::KernelInterface;
use super::record::Record;

/// A port of a bond, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondPort {
    /// Its name.
    pub name: String,
    /// The kernel's number of it.
    pub index: u32,
    /// True if the bond receives by it.
    pub receives: bool,
}

/// The ports that are prepared, by the kernel's numbers; dropping one puts it back as it was.
#[derive(Default)]
pub(super) struct BondPorts(BTreeMap<u32, KernelInterface>);

impl BondPorts {
    /// Puts back ports that are not in the bond any more.
    pub(super) fn keep(&mut self, ports: &[BondPort]) {
        self.0.retain(|index, _| ports.iter().any(|port| port.index == *index));
    }

    /// Prepares a port, if it is not yet.
    ///
    /// # Errors
    /// The reason why frames of this port stay with the kernel.
    pub(super) fn prepare(&mut self, port: &BondPort) -> Result<(), String> {
        if let Entry::Vacant(place) = self.0.entry(port.index) {
            place.insert(prepare(port)?);
        }
        Ok(())
    }
}

fn prepare(port: &BondPort) -> Result<KernelInterface, String> {
    let BondPort { name, index, .. } = port;
    let unreadable = |errno| format!("{name}: {errno}");
    let mut kernel = KernelInterface::open(name).map_err(unreadable)?;
    if kernel.index() != *index {
        return Err(format!("{name} is another interface now"));
    }
    kernel
        .claim(Path::new(Record::DIRECTORY))
        .map_err(|by| format!("{name} is in use by another router, {by}"))?;
    match kernel.keep_tags() {
        true => Ok(kernel),
        false => Err(format!("{name} removes VLAN tags from received frames")),
    }
}
