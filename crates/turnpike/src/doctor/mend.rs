//! Commands of remedies, as typed on Debian.

use std::collections::BTreeSet;

use machine::list_text;

use super::Patient;

/// Returns the commands that set a kernel parameter at boot: in a file of its own, or replacing its
/// present value.
pub fn boot_parameter(patient: &Patient<'_>, name: &str, value: &str) -> Vec<String> {
    let parameter = format!("{name}={value}");
    if patient.machine.boot_parameter(name).is_some() {
        return vec![
            format!(
                "sed -i 's/\\b{name}=[^ \"]*/{parameter}/' \
                 $(grep -ls '\\b{name}=' /etc/default/grub /etc/default/grub.d/*.cfg)"
            ),
            "update-grub    # then reboot".to_owned(),
        ];
    }
    vec![
        "mkdir -p /etc/default/grub.d".to_owned(),
        format!(
            "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {parameter}\"' \
             > /etc/default/grub.d/turnpike-{name}.cfg"
        ),
        "update-grub    # then reboot".to_owned(),
    ]
}

/// Returns the commands that set a value of `/proc/sys`, now and at each boot.
pub fn sysctl(name: &str, value: impl std::fmt::Display) -> Vec<String> {
    vec![
        format!("sysctl -w {name}={value}"),
        format!(
            "echo '{name} = {value}' > /etc/sysctl.d/80-turnpike-{}.conf",
            name.replace('.', "-")
        ),
    ]
}

/// Returns the commands that set a parameter of a module, now and whenever it is loaded.
pub fn module_parameter(module: &str, parameter: &str) -> Vec<String> {
    vec![
        format!("modprobe {module} && echo Y > /sys/module/{module}/parameters/{parameter}"),
        format!(
            "echo 'options {module} {parameter}=Y' > /etc/modprobe.d/turnpike-{parameter}.conf"
        ),
    ]
}

/// Returns the commands that load a module, now and at each boot.
pub fn load_module(module: &str) -> Vec<String> {
    vec![
        format!("modprobe {module}"),
        format!("echo {module} > /etc/modules-load.d/turnpike-{module}.conf"),
    ]
}

/// Returns the configuration's line for forwarders on these cores.
pub fn forwarders(cores: &BTreeSet<usize>) -> String {
    format!("turnpike.cores {{ forward = \"{}\" }}", list_text(cores))
}

/// Returns better cores for the forwarders, as many as they have now: one thread of each physical
/// core, not on the first core, which is the busiest with other work, near the ports if possible,
/// and among the isolated ones. Fewer if there are not enough; `None` if there are no better ones.
pub fn better_cores(patient: &Patient<'_>) -> Option<BTreeSet<usize>> {
    let Patient { cpus, wanted, machine, .. } = patient;
    let first = cpus.cores.keys().next()?;
    let near: BTreeSet<usize> =
        wanted.ports.iter().filter_map(|port| machine.node_of(&port.device)).collect();
    let isolated = machine.list("/sys/devices/system/cpu/isolated").unwrap_or_default();
    let is_far = |core| !cpus.node_of(core).is_some_and(|node| near.contains(&node));
    let mut cores: Vec<usize> = cpus.physical().into_iter().filter(|core| core != first).collect();
    cores.sort_by_key(|&core| (is_far(core), !isolated.contains(&core)));
    let cores: BTreeSet<usize> = cores.into_iter().take(wanted.cores.len()).collect();
    (!cores.is_empty() && cores != wanted.cores).then_some(cores)
}
