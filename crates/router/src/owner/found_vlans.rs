//! VLANs that come and go with the kernel's VLAN devices, on host interfaces with `vlans = "kernel"`.
//!
//! ```text
//!   kernel's threads -- VlanDevices --> sources --> prepared beside the owner's work --> made as by `apply`
//! ```
//!
//! A change of the devices is a change of the configuration that the history does not have. A change by a client goes
//! first: it keeps the VLANs of devices, and they are looked at again after it. Devices that change while a change is
//! made are part of the next one, and so thousands of devices make few changes.

use std::time::{Duration, Instant};

use control::config::{Config, Diff, Found};
use dataplane::words::count;

use super::super::prepare::Wanted;
use super::Owner;

/// Least time between two changes.
const PAUSE: Duration = Duration::from_millis(250);

/// Pause after a change, as a multiple of the time that it took.
const SHARE: u32 = 4;

/// Longest pause after a change that was made.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Pause after a change that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(10);

/// VLANs and devices that are named in the log, of those of a change.
const NAMED: usize = 16;

/// The progress of changes.
#[derive(Default)]
pub(super) struct FoundVlans {
    /// The devices may be others than those that the configuration has.
    due: bool,
    /// When the change began that is being made.
    begun: Option<Instant>,
    /// The last change has failed.
    has_failed: bool,
    /// Before this no further change is made.
    not_before: Option<Instant>,
    /// Devices without VLANs that the log has.
    refused: Vec<String>,
}

impl FoundVlans {
    /// The devices, or statements that mean some of them, may have changed.
    pub(super) fn look_again(&mut self) {
        self.due = true;
    }

    /// Returns true if all devices have been looked at, and have VLANs where that is possible.
    pub(super) fn are_settled(&self) -> bool {
        self.begun.is_none() && (!self.due || self.has_failed)
    }
}

impl Owner {
    /// Prepares VLANs for the kernel's VLAN devices, if they are others and no other change is in preparation.
    pub(super) fn follow_vlan_devices(&mut self) {
        let now = Instant::now();
        let found = &mut self.found_vlans;
        found.due |= self.routing.sources.take_new_vlan_devices();
        let waits = found.not_before.is_some_and(|until| now < until);
        if !found.due || waits || self.configurations.are_in_preparation() {
            return;
        }
        found.due = false;
        let devices = self.routing.sources.vlan_devices();
        let config = &self.configurations.current;
        let Found { vlans, refused } = config.find_vlans(&devices);
        found.say_refused(refused);
        if config.found_vlans().eq(&vlans) {
            return;
        }
        found.begun = Some(now);
        self.prepare_beside_history(Wanted::VlanDevices(devices.into()));
    }

    /// A change has been made, or has failed.
    pub(super) fn has_followed_vlan_devices(&mut self, is_made: bool) {
        let found = &mut self.found_vlans;
        let took = found.begun.take().map_or(Duration::ZERO, |begun| begun.elapsed());
        let pause = if is_made { (took * SHARE).clamp(PAUSE, LONGEST_PAUSE) } else { FAILED_PAUSE };
        found.not_before = Some(Instant::now() + pause);
        found.has_failed = !is_made;
        found.due |= !is_made;
    }
}

impl FoundVlans {
    /// Logs devices that make no VLANs, once each.
    fn say_refused(&mut self, refused: Vec<String>) {
        let is_new = |why: &&String| !self.refused.contains(why);
        let new = refused.iter().filter(is_new).count();
        refused.iter().filter(is_new).take(NAMED).for_each(|why| tracing::warn!("kernel: {why}"));
        if new > NAMED {
            tracing::warn!("kernel: {} more get none", count(new - NAMED, "VLAN device"));
        }
        self.refused = refused;
    }
}

/// Logs the VLANs that a change adds and removes.
pub(super) fn say_changes(diff: &Diff, config: &Config) {
    for (vlans, done) in [(&diff.vlans.added, "found"), (&diff.vlans.removed, "gone")] {
        if vlans.is_empty() {
            continue;
        }
        let names: Vec<&str> = vlans.iter().map(|vlan| &*vlan.name).take(NAMED).collect();
        let more = if vlans.len() > NAMED { ", …" } else { "" };
        tracing::info!(
            "kernel: {} {done}: {}{more}; {} now",
            count(vlans.len(), "VLAN device"),
            names.join(", "),
            config.found_vlans().count()
        );
    }
}
