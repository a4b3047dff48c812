//! `offloads = { … }` of a port: work that its device must or must not do.

use dataplane::port::{Offload, OffloadWishes};

use super::super::value::Fields;

/// Reads the configured offloads. Support by the device is checked when it is opened.
pub(super) fn read(fields: &mut Fields<'_, '_>) -> OffloadWishes {
    let Some(mut table) = fields.table("offloads", &Offload::NAMES) else {
        return OffloadWishes::new();
    };
    let mut wishes = OffloadWishes::new();
    for offload in Offload::ALL {
        let name = offload.name();
        if table.get(name).is_some() {
            wishes.insert(offload, table.flag(name));
        }
    }
    if wishes.get(&Offload::FastFree) == Some(&true) {
        let message = "fast_free cannot be had: a transmit queue sends packets of several pools, and \
                       packets that others share; leave it out";
        table.error("fast_free", message);
    }
    wishes
}
