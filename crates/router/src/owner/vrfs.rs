//! VRFs that come and go while the router runs.

use anyhow::{Result, anyhow, bail};
use api::report::{self, Changes, Families};
use control::config::{Config, DEFAULT_VRF, Vrf};
use control::netlink::KernelOrder;
use control::rib::{RouteInfo, RouteSource, Target};
use dataplane::interface::VrfId;
use dataplane::words::count;

use super::Owner;
use super::initial::new_fibs;
use super::sources::kernel_vrfs;

impl Owner {
    /// The VRF with this name, the default one without a name; or which there are.
    pub(super) fn vrf_named(&self, name: Option<&str>) -> Result<VrfId> {
        let name = name.unwrap_or(DEFAULT_VRF);
        Vrf::named(&self.configurations.current.vrfs, name).map_err(|why| anyhow!("vrf {why}"))
    }

    /// A VRF's name.
    pub(super) fn name_of_vrf(&self, id: VrfId) -> String {
        Vrf::name_of(&self.configurations.current.vrfs, id).to_owned()
    }

    /// The name of a VRF, unless it is the default one.
    pub(super) fn vrf_name(&self, id: VrfId) -> Option<String> {
        (id != VrfId::DEFAULT).then(|| self.name_of_vrf(id))
    }

    /// All VRFs, the default one first.
    pub(super) fn vrf_reports(&self) -> Vec<report::Vrf> {
        let vrfs = self.configurations.current.vrfs.iter().map(|vrf| (vrf.id, Some(vrf)));
        let all = [(VrfId::DEFAULT, None)].into_iter().chain(vrfs);
        all.map(|(id, vrf)| self.vrf_report(id, vrf)).collect()
    }

    fn vrf_report(&self, id: VrfId, vrf: Option<&Vrf>) -> report::Vrf {
        let ports = self.routing.rib.interfaces().iter().filter(|port| port.vrf == id);
        let summary = self.routing.rib.vrf_summary(id);
        let (ipv4, ipv6) = (summary.ipv4.iter().sum(), summary.ipv6.iter().sum());
        let of_source = |source: RouteSource| {
            let (ipv4, ipv6) = (summary.ipv4[source.index()], summary.ipv6[source.index()]);
            (ipv4 + ipv6 > 0).then(|| (source.name().to_owned(), Families { ipv4, ipv6 }))
        };
        report::Vrf {
            name: self.name_of_vrf(id),
            table: vrf.and_then(|vrf| vrf.table),
            namespace: vrf.and_then(|vrf| vrf.namespace.clone()),
            ports: ports.map(|port| port.name.clone()).collect(),
            routes: Families { ipv4, ipv6 },
            sources: RouteSource::ALL.into_iter().filter_map(of_source).collect(),
            fib: Families { ipv4: summary.fib4, ipv6: summary.fib6 },
            changes: Changes { ipv4: summary.changes4, ipv6: summary.changes6 },
        }
    }

    /// Makes the missing tables of a configuration's VRFs. If a later step fails, they stay empty, for the next VRF.
    ///
    /// # Errors
    /// There is no room for them, or commands have routes in a VRF that is to go.
    pub(super) fn make_vrfs(&mut self, old: &Config, new: &Config) -> Result<()> {
        gone(old, new).try_for_each(|vrf| self.check_unused(vrf))?;
        let most = new.vrfs.iter().map(|vrf| vrf.id.index()).max().unwrap_or(0);
        while self.routing.rib.vrfs().len() <= most {
            let vrf = VrfId::new(self.routing.rib.vrfs().len() as u16);
            let (fib4, fib6) =
                new_fibs(vrf, new.fib, &self.routing.near.nodes(), &self.routing.readers)?;
            let readers = (fib4.readers(), fib6.readers());
            let id = self.routing.rib.add_vrf(fib4, fib6)?;
            self.routing.near.add_vrf(id, &readers);
        }
        Ok(())
    }

    /// Routes of the configuration were checked with it; those of commands may be anywhere.
    fn check_unused(&self, vrf: &Vrf) -> Result<()> {
        let of_commands =
            self.routing.rib.routes().filter(|route| route.source == RouteSource::Command);
        let used = of_commands.filter(|route| leads_to(route, vrf.id)).count();
        if used > 0 {
            bail!(
                "vrf \"{}\" cannot go: {} of commands {} in it or by it; see turnpike show routes --source \
                 command, and remove them first",
                vrf.name,
                count(used, "route"),
                if used == 1 { "is" } else { "are" }
            );
        }
        Ok(())
    }

    /// Moves each port to its configured VRF.
    pub(super) fn move_to_vrfs(&mut self, config: &Config) {
        self.routing.rib.batch(|rib| {
            config
                .interfaces()
                .for_each(|(id, _, interface)| rib.set_vrf(id, interface.settings.vrf));
        });
    }

    /// Clears removed VRFs.
    pub(super) fn leave_vrfs(&mut self, old: &Config, new: &Config) {
        for vrf in gone(old, new) {
            self.routing.rib.clear_vrf(vrf.id);
        }
    }

    /// Tells the kernel's thread the VRFs whose routes it follows, and their ports; listens to the namespaces of others.
    pub(super) fn order_vrfs(&mut self, old: &Config, new: &Config) {
        if let Err(error) = self.routing.sources.follow_spaces(new) {
            tracing::error!("{error:#}");
        }
        self.leave_spaces();
        if kernel_vrfs(old) != kernel_vrfs(new) {
            self.routing.sources.order(KernelOrder::Vrfs(kernel_vrfs(new)));
        }
    }
}

impl Owner {
    /// Forgets the routes of namespaces that are not listened to any more.
    pub(super) fn leave_spaces(&mut self) {
        let left = self.routing.sources.take_left();
        left.into_iter().for_each(|vrf| self.routing.rib.leave_apart(vrf));
    }
}

/// The VRFs that only the first has.
fn gone<'a>(old: &'a Config, new: &'a Config) -> impl Iterator<Item = &'a Vrf> {
    old.vrfs.iter().filter(|vrf| new.vrfs.iter().all(|other| other.id != vrf.id))
}

/// A route is in a VRF, or its gateways are found by this one's routes.
fn leads_to(route: &RouteInfo, vrf: VrfId) -> bool {
    let by = match &route.target {
        Target::Unicast(paths) => {
            paths.iter().any(|path| path.interface.is_none() && path.vrf == vrf)
        }
        _ => false,
    };
    by || route.vrf == vrf
}
