//! What the kernel applies to the packets that it forwards, and accelerated packets would bypass: followed as it changes.
//!
//! A thread examines the kernel after each of its notifications ([`kernel_rules::Watch`]). Where something can neither be
//! followed nor left to the kernel by destination, all packets are the kernel's until it is removed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use control::config::{Acceleration, Config};
use ipnet::IpNet;
use kernel_rules::{Action, Inspection, Kind, Packets, Watch};

use super::super::acceleration::{obstacles, rules_options};
use super::kernel_flows;

/// What was found last.
#[derive(Default)]
struct Latest {
    inspection: Mutex<Option<Inspection>>,
    is_new: AtomicBool,
}

/// The watch, and what it found.
pub(super) struct KernelRules {
    _watch: Watch,
    latest: Arc<Latest>,
}

/// The effect of the kernel's rules on acceleration.
#[derive(Debug)]
pub(super) struct Verdict {
    /// The reasons for which nothing is accelerated.
    pub(super) obstacles: Vec<String>,
    /// Destinations whose packets are the kernel's.
    pub(super) stay: BTreeSet<IpNet>,
}

impl KernelRules {
    /// Starts to watch in the calling thread's network namespace. Changes put flows in doubt, where they are followed.
    ///
    /// # Errors
    /// The kernel's interfaces cannot be read, no thread can be started, or there is no table of flows.
    pub(super) fn start(interfaces: &[String], of: &Acceleration) -> Result<Self> {
        let mut options = rules_options(of);
        // The program of an accelerated interface is attached by a link, beside which no other can be.
        options.bypass.insert(Kind::Xdp);
        let latest = Arc::<Latest>::default();
        let found = latest.clone();
        let doubt =
            of.flows.then(kernel_flows::doubt).transpose().map_err(|error| anyhow!(error))?;
        let on_notice = move || doubt.iter().for_each(|doubt| doubt());
        let watch = Watch::start(interfaces, &options, on_notice, move |inspection| {
            *found.inspection.lock().unwrap_or_else(PoisonError::into_inner) = Some(inspection);
            found.is_new.store(true, Ordering::Release);
        })?;
        Ok(Self { _watch: watch, latest })
    }

    /// Returns true if there is a new verdict.
    pub(super) fn has_news(&self) -> bool {
        self.latest.is_new.load(Ordering::Acquire)
    }

    /// Returns the verdict about this configuration if it is new.
    pub(super) fn news(&self, config: &Config) -> Option<Verdict> {
        if !self.latest.is_new.swap(false, Ordering::AcqRel) {
            return None;
        }
        let inspection = self.latest.inspection.lock().unwrap_or_else(PoisonError::into_inner);
        inspection.as_ref().map(|inspection| Verdict::of(inspection, config))
    }
}

impl Verdict {
    fn of(inspection: &Inspection, config: &Config) -> Self {
        let staying = inspection.findings.iter().filter(|of| of.action == Action::Stay);
        let destinations = staying.filter_map(|of| match &of.packets {
            Packets::To(prefixes) => Some(prefixes),
            // Interfaces, groups and own addresses, which programs leave to the kernel anyway.
            _ => None,
        });
        let stay = destinations.flatten().map(IpNet::trunc).collect();
        Self { obstacles: obstacles(inspection, config), stay }
    }
}
