//! The routes of each VRF, and creation and removal of VRFs.
//!
//! A removed VRF leaves its tables behind, containing only the ranges that are never forwarded:
//! graphs hold readers of them, and the next VRF of its number uses them.

use super::*;

/// The routes of one VRF.
pub(super) struct Vrf {
    pub(super) v4: Routes<Ipv4Addr>,
    pub(super) v6: Routes<Ipv6Addr>,
}

impl Vrf {
    pub(super) fn start_sweep(&mut self) {
        self.v4.start_sweep();
        self.v6.start_sweep();
    }

    pub(super) fn is_sweeping(&self) -> bool {
        self.v4.is_sweeping() || self.v6.is_sweeping()
    }

    /// Returns the numbers of routes and the sizes of the tables.
    pub(super) fn summary(&self) -> Summary {
        let Self { v4, v6 } = self;
        Summary {
            ipv4: v4.counts,
            ipv6: v6.counts,
            fib4: v4.fib().len(),
            fib6: v6.fib().len(),
            fib4_structure: v4.fib().name(),
            fib6_structure: v6.fib().name(),
            fib4_bytes: v4.fib().memory_bytes(),
            fib6_bytes: v6.fib().memory_bytes(),
            changes4: v4.changes,
            changes6: v6.changes,
            pending: v4.pending() + v6.pending(),
            ..Summary::default()
        }
    }

    /// Returns true if the FIBs reflect all changes, or have refused them.
    pub(super) fn is_synced(&self) -> bool {
        self.v4.touched().is_empty() && self.v6.touched().is_empty()
    }
}

impl Summary {
    /// Returns the sum of the routes and tables of both.
    pub(super) fn with(self, other: Self) -> Self {
        let sum = |some: [usize; RouteSource::ALL.len()], more: [usize; RouteSource::ALL.len()]| {
            std::array::from_fn(|source| some[source] + more[source])
        };
        Self {
            ipv4: sum(self.ipv4, other.ipv4),
            ipv6: sum(self.ipv6, other.ipv6),
            fib4: self.fib4 + other.fib4,
            fib6: self.fib6 + other.fib6,
            // All VRFs have the same.
            fib4_structure: other.fib4_structure,
            fib6_structure: other.fib6_structure,
            fib4_bytes: self.fib4_bytes + other.fib4_bytes,
            fib6_bytes: self.fib6_bytes + other.fib6_bytes,
            changes4: self.changes4 + other.changes4,
            changes6: self.changes6 + other.changes6,
            pending: self.pending + other.pending,
            ..self
        }
    }
}

/// Returns the VRFs with their numbers.
pub(super) fn numbered(vrfs: &[Vrf]) -> impl Iterator<Item = (VrfId, &Vrf)> {
    (0..).map(VrfId::new).zip(vrfs)
}

impl Rib {
    /// Returns the numbers of all VRFs for which there are tables.
    pub fn vrfs(&self) -> impl ExactSizeIterator<Item = VrfId> + use<> {
        (0..self.vrfs.len() as u16).map(VrfId::new)
    }

    /// Creates the tables of the next VRF and returns its number.
    ///
    /// # Errors
    /// The maximum number of VRFs exists, or the FIBs have no room for the ranges that are never
    /// forwarded.
    pub fn add_vrf(
        &mut self,
        fib4: Box<dyn Table<Ipv4Addr>>,
        fib6: Box<dyn Table<Ipv6Addr>>,
    ) -> Result<VrfId, Error> {
        if self.vrfs.len() >= VRFS_MOST {
            return Err(Error::VrfsFull);
        }
        let id = VrfId::new(self.vrfs.len() as u16);
        self.vrfs.push(Vrf { v4: Routes::new(fib4), v6: Routes::new(fib6) });
        self.checked(None, |rib| {
            rib.reserve(id);
            Ok(())
        })?;
        Ok(id)
    }

    /// Fills other, empty tables with the routes of a VRF, and gives them every change from now on, so that readers
    /// can move from one to the other: then follows [`Self::swap_twins`], and with the last reader's end
    /// [`Self::drop_twins`].
    ///
    /// # Errors
    /// They have no room for the routes.
    pub fn add_twins(
        &mut self,
        vrf: VrfId,
        fib4: Box<dyn Table<Ipv4Addr>>,
        fib6: Box<dyn Table<Ipv6Addr>>,
    ) -> Result<(), fib::Error> {
        let Some(vrf) = self.vrfs.get_mut(vrf.index()) else { return Ok(()) };
        vrf.v4.add_twin(fib4)?;
        vrf.v6.add_twin(fib6)
    }

    /// Makes the other tables of all VRFs the FIBs, and the FIBs the others. Returns false, and does nothing, if
    /// some have had no room for a change since [`Self::add_twins`].
    pub fn swap_twins(&mut self) -> bool {
        let all = self.vrfs.iter().all(|vrf| vrf.v4.has_twin() && vrf.v6.has_twin());
        if all {
            for vrf in &mut self.vrfs {
                vrf.v4.swap_twins();
                vrf.v6.swap_twins();
            }
        }
        all
    }

    /// Drops the tables that are not the FIBs.
    pub fn drop_twins(&mut self) {
        for vrf in &mut self.vrfs {
            vrf.v4.drop_twin();
            vrf.v6.drop_twin();
        }
    }

    /// Removes all routes of a VRF that were set, and returns their number: the VRF has been
    /// removed.
    pub fn clear_vrf(&mut self, vrf: VrfId) -> usize {
        self.change(|rib| rib.take_in(vrf, |candidate| candidate.source.is_settable()))
    }

    /// Adds the ranges of a VRF that are never forwarded.
    pub(super) fn reserve(&mut self, vrf: VrfId) {
        for (range, hop, _) in reserved() {
            self.put_own(vrf, range, RouteSource::Reserved, 0, hop);
        }
        self.reserve_class_e(vrf);
    }

    /// Has routes of a VRF to 240.0.0.0/4 used or withheld.
    pub(super) fn reserve_class_e(&mut self, vrf: VrfId) {
        if self.class_e {
            self.take_own(vrf, class_e(), RouteSource::Reserved, 0);
        } else {
            self.put_own(vrf, class_e(), RouteSource::Reserved, 0, MARTIAN);
        }
        let withheld = Ipv4Addr::prefix(&class_e()).filter(|_| !self.class_e);
        if let Some(routes) = self.vrfs.get_mut(vrf.index()) {
            routes.v4.withhold(withheld);
        }
    }

    /// Moves an interface, with its networks and addresses, to this VRF.
    pub fn set_vrf(&mut self, interface: InterfaceId, vrf: VrfId) {
        let Some(known) = self.interface(interface) else {
            return;
        };
        if known.vrf == vrf {
            return;
        }
        let addresses = known.addresses.clone();
        self.change(|rib| {
            rib.put_addresses(interface, &[]);
            rib.interfaces
                .iter_mut()
                .filter(|known| known.id == interface)
                .for_each(|known| known.vrf = vrf);
            rib.put_addresses(interface, &addresses);
        });
    }

    /// Returns the VRF of an interface; the default one if there is no such interface.
    pub fn vrf_of(&self, interface: InterfaceId) -> VrfId {
        let known = self.interface(interface);
        known.map_or(VrfId::DEFAULT, |known| known.vrf)
    }
}
