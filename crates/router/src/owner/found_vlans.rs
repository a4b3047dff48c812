//! VLANs that come and go with the kernel's VLAN devices, on host interfaces with `vlans = "kernel"`.
//!
//! ```text
//!   kernel's threads -- VlanDevices --> sources --> prepared beside the owner's work --> made as by `apply`
//! ```
//!
//! A change of the devices is a change of the configuration that the history does not have. A change by a client goes
//! first: it keeps the VLANs of devices, and they are looked at again after it. Devices that change while a change is
//! made are part of the next one, and so thousands of devices make few changes.

use std::collections::HashSet;
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
    /// The devices that are being looked at are those of all namespaces.
    are_all: bool,
    /// The devices of all namespaces have been looked at once: their VLANs were made, or this has failed.
    are_settled: bool,
    /// Before this no further change is made.
    not_before: Option<Instant>,
    /// Devices without VLANs that the log has.
    refused: HashSet<String>,
}

impl FoundVlans {
    /// The devices, or statements that mean some of them, may have changed.
    pub(super) fn look_again(&mut self) {
        self.due = true;
    }

    /// Returns true once all devices have been looked at, and have had VLANs where that was possible. Later ones do not
    /// matter: some machines make and remove devices all the time.
    pub(super) fn are_settled(&self) -> bool {
        self.are_settled
    }

    /// Returns true if devices are to be looked at now. `is_new`: they have changed; `are_all`: those of all namespaces
    /// are known; `is_free`: no other change is in preparation.
    fn begins(&mut self, now: Instant, is_new: bool, are_all: bool, is_free: bool) -> bool {
        let is_first = are_all && !self.are_settled && self.begun.is_none();
        self.due |= is_new || is_first;
        let waits = self.not_before.is_some_and(|until| now < until);
        let begins = self.due && !waits && is_free;
        if begins {
            (self.due, self.are_all) = (false, are_all);
        }
        begins
    }

    /// The VLANs of devices that were looked at are there, or could not be made.
    fn has_ended(&mut self) {
        self.are_settled |= self.are_all;
    }

    /// A change has been made, or has failed.
    fn has_changed(&mut self, now: Instant, is_made: bool) {
        let took = self.begun.take().map_or(Duration::ZERO, |begun| now - begun);
        let pause = if is_made { (took * SHARE).clamp(PAUSE, LONGEST_PAUSE) } else { FAILED_PAUSE };
        self.not_before = Some(now + pause);
        self.due |= !is_made;
        self.has_ended();
    }
}

impl Owner {
    /// Prepares VLANs for the kernel's VLAN devices, if they are others and no other change is in preparation.
    pub(super) fn follow_vlan_devices(&mut self) {
        let now = Instant::now();
        let (found, sources) = (&mut self.found_vlans, &mut self.routing.sources);
        let config = &self.configurations.current;
        let are_all =
            found.are_settled || !config.finds_vlans() || !sources.vlan_devices_are_missing();
        let is_free = !self.configurations.are_in_preparation();
        if !found.begins(now, sources.take_new_vlan_devices(), are_all, is_free) {
            return;
        }
        let devices = sources.vlan_devices();
        let Found { vlans, refused } = config.find_vlans(&devices);
        found.say_refused(refused);
        if config.found_vlans().eq(&vlans) {
            found.has_ended();
            return;
        }
        found.begun = Some(now);
        self.prepare_beside_history(Wanted::VlanDevices(devices.into()));
    }

    /// A change has been made, or has failed.
    pub(super) fn has_followed_vlan_devices(&mut self, is_made: bool) {
        self.found_vlans.has_changed(Instant::now(), is_made);
    }
}

impl FoundVlans {
    /// Logs devices that make no VLANs, once each.
    fn say_refused(&mut self, refused: Vec<String>) {
        let is_new = |why: &&String| !self.refused.contains(why.as_str());
        let new = refused.iter().filter(is_new).count();
        refused.iter().filter(is_new).take(NAMED).for_each(|why| tracing::warn!("kernel: {why}"));
        if new > NAMED {
            tracing::warn!("kernel: {} more get none", count(new - NAMED, "VLAN device"));
        }
        self.refused = refused.into_iter().collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins a change for devices that have changed.
    fn change(found: &mut FoundVlans, now: Instant, are_all: bool) {
        assert!(found.begins(now, true, are_all, true));
        found.begun = Some(now);
    }

    #[test]
    fn devices_that_change_all_the_time_are_settled_after_the_first_change() {
        for is_made in [true, false] {
            let (mut found, now) = (FoundVlans::default(), Instant::now());
            change(&mut found, now, true);
            // Others come meanwhile.
            assert!(!found.begins(now, true, true, false) && !found.are_settled());
            found.has_changed(now, is_made);
            assert!(found.are_settled());
            change(&mut found, now + FAILED_PAUSE, true);
            assert!(found.are_settled(), "while the next is made");
            assert!(!found.begins(now + FAILED_PAUSE, true, true, false) && found.are_settled());
        }
    }

    #[test]
    fn the_devices_of_all_namespaces_are_looked_at_before_they_are_settled() {
        let (mut found, now) = (FoundVlans::default(), Instant::now());
        assert!(!found.begins(now, false, false, true), "nothing is known");
        change(&mut found, now, false);
        found.has_changed(now, true);
        assert!(!found.are_settled(), "another namespace has not been read");
        assert!(!found.begins(now, false, true, true), "not right after another change");
        // That one has no devices.
        let later = now + LONGEST_PAUSE;
        assert!(found.begins(later, false, true, true));
        found.has_ended();
        assert!(found.are_settled() && !found.begins(later, false, true, true));
    }
}
