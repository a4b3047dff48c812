//! Clock and idle states of the forwarders' cores.

use std::collections::{BTreeMap, BTreeSet};

use machine::list_text;

use super::{Finding, Patient};

const CPUS: &str = "/sys/devices/system/cpu";

/// Checks the frequency governors.
pub fn governor(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "governor";
    let mut by_name: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for &core in &patient.wanted.cores {
        let name = patient.machine.read(&format!("{CPUS}/cpu{core}/cpufreq/scaling_governor"));
        let Some(name) = name else {
            let file = format!("{CPUS}/cpu{core}/cpufreq");
            return vec![Finding::unknown(CHECK, &file).hint("virtual machines have none")];
        };
        by_name.entry(name).or_default().insert(core);
    }
    let finding = |(name, cores): (&String, &BTreeSet<usize>)| {
        let found = format!("{name} on the forwarders' cores: {}", list_text(cores));
        if name == "performance" {
            return Finding::ok(CHECK, found);
        }
        let set =
            |core: &usize| format!("echo performance > {CPUS}/cpu{core}/cpufreq/scaling_governor");
        Finding::warning(CHECK, found)
            .cost("A forwarder that was idle works at a low clock for its first milliseconds.")
            .mend(cores.iter().map(set))
    };
    by_name.iter().map(finding).collect()
}

/// Checks for frequencies above the nominal one.
pub fn turbo(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "turbo";
    let (intel, others) =
        (format!("{CPUS}/intel_pstate/no_turbo"), format!("{CPUS}/cpufreq/boost"));
    let number = |file: &str| patient.machine.number::<u8>(file);
    let (on, mend) = match (number(&intel), number(&others)) {
        (Some(off), _) => (off == 0, format!("echo 0 > {intel}")),
        (None, Some(on)) => (on != 0, format!("echo 1 > {others}")),
        (None, None) => return vec![Finding::unknown(CHECK, &format!("{intel} or {others}"))],
    };
    if on {
        return vec![Finding::ok(CHECK, "on")];
    }
    let cost = "The clock stays at its nominal value: steady, but slower than the processor can.";
    vec![Finding::note(CHECK, "off").cost(cost).mend([mend])]
}

/// An idle state of a core.
struct IdleState {
    number: usize,
    name: String,
    /// Microseconds to wake up from it.
    latency: u32,
}

/// Wake-up time in microseconds that is not reported: as long as a forwarder's own short sleeps.
const SHORT: u32 = 10;

/// Microseconds in which a 10 Gb/s port fills a queue of 1,024 packets with the smallest ones.
const LONG: u32 = 68;

/// Checks for idle states of forwarders' cores with a long wake-up time.
pub fn idle_states(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "idle-states";
    let Some(&core) = patient.wanted.cores.first() else { return Vec::new() };
    let base = format!("{CPUS}/cpu{core}/cpuidle");
    if !patient.machine.has(&base) {
        return vec![Finding::unknown(CHECK, &base).hint("virtual machines have none")];
    }
    let (mut deep, mut cores) = (Vec::new(), BTreeSet::new());
    for &core in &patient.wanted.cores {
        let states = slow_states(patient, core);
        if !states.is_empty() {
            cores.insert(core);
            deep.push((core, states));
        }
    }
    let slowest = deep.iter().flat_map(|(_, states)| states).max_by_key(|state| state.latency);
    let Some(slowest) = slowest else {
        return vec![Finding::ok(CHECK, format!("none above {SHORT} µs on the forwarders' cores"))];
    };
    let found = format!(
        "{} takes {} µs to leave; cores {}",
        slowest.name,
        slowest.latency,
        list_text(&cores)
    );
    let finding = if slowest.latency > LONG { Finding::warning } else { Finding::note };
    let off = |(core, states): &(usize, Vec<IdleState>)| {
        let numbers: Vec<String> = states.iter().map(|state| state.number.to_string()).collect();
        let disable = format!("{CPUS}/cpu{core}/cpuidle/state$s/disable");
        format!("for s in {}; do echo 1 > {disable}; done", numbers.join(" "))
    };
    let cost = format!(
        "A forwarder that found no packet sleeps up to 50 µs; the first packet behind waits {} µs more.",
        slowest.latency
    );
    vec![finding(CHECK, found).cost(cost).mend(deep.iter().map(off))]
}

/// Returns the enabled states of a core with a long wake-up time.
fn slow_states(patient: &Patient<'_>, core: usize) -> Vec<IdleState> {
    let base = format!("{CPUS}/cpu{core}/cpuidle");
    let state = |directory: &String| {
        let read = |file: &str| patient.machine.read(&format!("{base}/{directory}/{file}"));
        let number = directory.strip_prefix("state")?.parse().ok()?;
        let latency = read("latency")?.parse().ok()?;
        let disabled = read("disable").is_some_and(|disable| disable != "0");
        let name = read("name").unwrap_or_else(|| directory.clone());
        (latency > SHORT && !disabled).then_some(IdleState { number, name, latency })
    };
    patient.machine.names(&base).iter().filter_map(state).collect()
}
