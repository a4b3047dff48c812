//! The division of the machine's cores among forwarders and control, which is everything else: slow path
//! workers, the owner, the API, DPDK's own threads.
//!
//! ```text
//!   forward given          those cores
//!   else                   isolated cores, which the operator has set aside for this;
//!                          else the last core not configured for control
//!   control given          those cores
//!   else                   every other core that is not isolated; else every other core;
//!                          else none is left, and control shares the forwarders' cores
//! ```

use std::collections::BTreeSet;

/// The cores that a process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// All allowed cores.
    pub allowed: BTreeSet<usize>,
    /// Cores excluded from the kernel's scheduling (`isolcpus`).
    pub isolated: BTreeSet<usize>,
}

/// Cores by use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorePlacement {
    /// Cores of everything but forwarders, ascending.
    pub control: Vec<usize>,
    /// Cores of forwarders, one on each, ascending; with an event device that of the receiver first.
    pub forward: Vec<usize>,
    /// The first forwarder receives and sends for the others, which an event device gives packets to.
    pub receiver: bool,
    /// One more forwarder, for control traffic, runs on the cores for control.
    pub control_forwarder: bool,
}

impl CorePlacement {
    /// Divides the cores; an empty list leaves the choice to the router. Configured cores are used
    /// as they are, without a check that they exist.
    ///
    /// # Errors
    /// No core is left for forwarders.
    pub fn new(control: &[usize], forward: &[usize], supply: &Supply) -> Result<Self, String> {
        let forward = match forward {
            [] => forwarders(control, supply)?,
            given => given.to_vec(),
        };
        let control = match control {
            [] => others(&forward, supply),
            given => given.to_vec(),
        };
        Ok(Self { control, forward, receiver: false, control_forwarder: false })
    }

    /// The same with a forwarder that only receives and sends, on this core, or in place of the first one.
    ///
    /// # Errors
    /// No core is left for those that forward.
    pub fn around_events(mut self, receive: Option<usize>) -> Result<Self, String> {
        self.receiver = true;
        match (receive, &self.forward[..]) {
            (Some(core), _) => self.forward.insert(0, core),
            (None, [_, _, ..]) => {}
            (None, cores) => {
                let core = cores.first().copied().unwrap_or_default();
                return Err(format!(
                    "mode \"events\" needs a core to receive and at least one to forward, and forwarders have core \
                     {core} only; name more in cores, or receive_core = {core} to share it"
                ));
            }
        }
        Ok(self)
    }

    /// Returns the number of forwarders that have queues of ports, apart from that for control traffic.
    pub fn served(&self) -> usize {
        if self.receiver { 1 } else { self.forward.len() }
    }

    /// A core of each forwarder, in the order of their numbers; the control forwarder is the last.
    pub fn seats(&self) -> Vec<usize> {
        let control = self.control.first().filter(|_| self.control_forwarder);
        self.forward.iter().chain(control).copied().collect()
    }

    /// Returns the cores that forwarders and control share, ascending.
    pub fn shared(&self) -> Vec<usize> {
        let shared: BTreeSet<usize> =
            self.forward.iter().copied().filter(|core| self.control.contains(core)).collect();
        shared.into_iter().collect()
    }
}

/// Selects the cores for forwarders if only those of control are configured, or none.
fn forwarders(
    control: &[usize],
    Supply { allowed, isolated }: &Supply,
) -> Result<Vec<usize>, String> {
    let free: Vec<usize> = allowed.iter().copied().filter(|core| !control.contains(core)).collect();
    let set_aside: Vec<usize> =
        free.iter().copied().filter(|core| isolated.contains(core)).collect();
    let has_control = !control.is_empty() || set_aside.len() < allowed.len();
    match (set_aside.as_slice(), free.last()) {
        // If every core is isolated, the first is for control.
        ([_, rest @ ..], _) if !has_control && !rest.is_empty() => Ok(rest.to_vec()),
        ([_, ..], _) => Ok(set_aside),
        ([], Some(&last)) => Ok(vec![last]),
        ([], None) => Err(no_core_left(allowed)),
    }
}

fn no_core_left(allowed: &BTreeSet<usize>) -> String {
    let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    format!(
        "control has every core that this process may use ({}), and none is left for forwarders; name fewer, or \
         leave control out on a machine of one core",
        allowed.join(", ")
    )
}

/// Selects the cores for control if only those of forwarders are known.
fn others(forward: &[usize], Supply { allowed, isolated }: &Supply) -> Vec<usize> {
    let free: Vec<usize> = allowed.iter().copied().filter(|core| !forward.contains(core)).collect();
    let housekeeping: Vec<usize> =
        free.iter().copied().filter(|core| !isolated.contains(core)).collect();
    match (housekeeping.is_empty(), free.is_empty()) {
        (false, _) => housekeeping,
        (true, false) => free,
        (true, true) => forward.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn supply(allowed: &[usize], isolated: &[usize]) -> Supply {
        let set = |cores: &[usize]| cores.iter().copied().collect();
        Supply { allowed: set(allowed), isolated: set(isolated) }
    }

    fn place(control: &[usize], forward: &[usize], supply: &Supply) -> (Vec<usize>, Vec<usize>) {
        let placement = CorePlacement::new(control, forward, supply).unwrap();
        (placement.control, placement.forward)
    }

    #[test]
    fn the_machine_decides_what_the_configuration_leaves_out() {
        let eight: Vec<usize> = (0..8).collect();
        let plain = supply(&eight, &[]);
        assert_eq!(place(&[], &[], &plain), ((0..7).collect(), vec![7]));
        assert_eq!(place(&[7], &[], &plain), (vec![7], vec![6]));
        assert_eq!(place(&[], &[1, 2], &plain), (vec![0, 3, 4, 5, 6, 7], vec![1, 2]));
        let isolating = supply(&eight, &[2, 3, 4, 5, 6, 7]);
        assert_eq!(place(&[], &[], &isolating), (vec![0, 1], (2..8).collect()));
        assert_eq!(place(&[0, 2], &[], &isolating), (vec![0, 2], (3..8).collect()));
        // Isolated cores without a forwarder stay unused rather than being given to control.
        assert_eq!(place(&[], &[3], &isolating), (vec![0, 1], vec![3]));
        assert_eq!(place(&[], &[], &supply(&[4, 5, 6], &[4, 5, 6])), (vec![4], vec![5, 6]));
        assert_eq!(place(&[], &[4], &supply(&[4, 5], &[4, 5])), (vec![5], vec![4]));
    }

    #[test]
    fn where_no_core_is_left_they_share_and_it_can_be_seen() {
        let one = CorePlacement::new(&[], &[], &supply(&[3], &[])).unwrap();
        assert_eq!((one.shared(), &one.control), (vec![3], &one.forward));
        let all = CorePlacement::new(&[], &[0, 1], &supply(&[0, 1], &[])).unwrap();
        assert_eq!(all.shared(), [0, 1]);
        let apart = CorePlacement::new(&[], &[], &supply(&[0, 1], &[])).unwrap();
        assert!(apart.shared().is_empty());
        let with = CorePlacement { control_forwarder: true, ..apart.clone() };
        assert_eq!((apart.seats(), with.seats()), (vec![1], vec![1, 0]));
        let error = CorePlacement::new(&[0, 1], &[], &supply(&[0, 1], &[])).unwrap_err();
        assert!(error.contains("may use (0, 1), and none is left for forwarders"), "{error}");
    }

    #[test]
    fn a_receiver_has_a_core_before_those_that_forward() {
        let eight = supply(&(0..8).collect::<Vec<_>>(), &[]);
        let around = |forward: &[usize], receive| {
            CorePlacement::new(&[], forward, &eight).unwrap().around_events(receive)
        };
        let placement = around(&[1, 2, 3], None).unwrap();
        assert_eq!((&placement.forward[..], placement.served()), (&[1, 2, 3][..], 1));
        let sharing = around(&[1, 2], Some(2)).unwrap();
        assert_eq!((&sharing.forward[..], sharing.control.contains(&2)), (&[2, 1, 2][..], false));
        let on_control = around(&[1], Some(0)).unwrap();
        assert_eq!((&on_control.forward[..], on_control.shared()), (&[0, 1][..], vec![0]));
        let error = around(&[4], None).unwrap_err();
        assert!(
            error.contains("have core 4 only") && error.ends_with("receive_core = 4 to share it"),
            "{error}"
        );
    }

    fn any_supply() -> impl Strategy<Value = Supply> {
        let allowed = prop::collection::btree_set(0_usize..24, 1..12);
        allowed.prop_flat_map(|allowed| {
            let cores: Vec<usize> = allowed.iter().copied().collect();
            let most = cores.len();
            prop::sample::subsequence(cores, 0..=most).prop_map(move |isolated| Supply {
                allowed: allowed.clone(),
                isolated: isolated.into_iter().collect(),
            })
        })
    }

    proptest! {
        #[test]
        fn forwarders_and_control_are_disjoint_allowed_and_cover_the_machine(supply in any_supply()) {
            let placement = CorePlacement::new(&[], &[], &supply).unwrap();
            let CorePlacement { control, forward, .. } = &placement;
            prop_assert!(!control.is_empty() && !forward.is_empty());
            prop_assert!(control.is_sorted() && forward.is_sorted());
            prop_assert_eq!(placement.shared().is_empty(), supply.allowed.len() > 1);
            let used: BTreeSet<usize> = control.iter().chain(forward).copied().collect();
            prop_assert_eq!(&used, &supply.allowed);
            // Forwarders use other cores only if no isolated core is available, and control uses an
            // isolated core only if there is no other.
            if supply.isolated.len() < supply.allowed.len() && !supply.isolated.is_empty() {
                prop_assert_eq!(forward, &supply.isolated.iter().copied().collect::<Vec<_>>());
            }
        }

        #[test]
        fn given_cores_are_kept_and_the_rest_keeps_away(supply in any_supply(), first in 0_usize..24) {
            let all: Vec<usize> = supply.allowed.iter().copied().collect();
            let given = [all[first % all.len()]];
            let placement = CorePlacement::new(&[], &given, &supply).unwrap();
            prop_assert_eq!(&placement.forward[..], &given[..]);
            prop_assert_eq!(placement.shared().is_empty(), all.len() > 1);
            match CorePlacement::new(&given, &[], &supply) {
                Ok(placement) => {
                    prop_assert_eq!(&placement.control[..], &given[..]);
                    prop_assert!(placement.shared().is_empty());
                    prop_assert!(placement.forward.iter().all(|core| supply.allowed.contains(core)));
                }
                Err(_) => prop_assert_eq!(all.len(), 1),
            }
        }
    }
}
