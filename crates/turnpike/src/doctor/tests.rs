//! Tests of each check on machines made of files: correct, wrong, and without the file.

use machine::tasks::Task;
use machine::testing::Tree;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

fn pci(name: &str, address: &str) -> Port {
    Port {
        name: name.to_owned(),
        device: Device::Pci(address.to_owned()),
        driver: None,
        blocks: true,
        queues: 1,
        control_queue: true,
    }
}

fn kernel(name: &str, interface: &str) -> Port {
    Port {
        name: name.to_owned(),
        device: Device::Kernel(interface.to_owned()),
        driver: None,
        blocks: true,
        queues: 1,
        control_queue: true,
    }
}

/// Returns a router with forwarders on these cores that needs 300 MB.
fn wanted(cores: &[usize], ports: Vec<Port>) -> Wanted {
    Wanted {
        file: Some("r.lua".into()),
        cores: cores.iter().copied().collect(),
        ports,
        memory_mb: 300,
        later_mb: 200,
        ..Wanted::default()
    }
}

fn no_xdp(_: &str) -> io::Result<Option<Xdp>> {
    Ok(None)
}

fn with<T>(tree: &Tree, wanted: &Wanted, look: impl FnOnce(&Patient<'_>) -> T) -> T {
    let machine = tree.machine();
    let cpus = machine.cpus();
    let dpdk = DpdkVersions { built: "DPDK 22.11.1".into(), running: "DPDK 22.11.1".into() };
    look(&Patient { machine: &machine, cpus, wanted, dpdk, xdp: &no_xdp })
}

/// Returns the findings of one check, abbreviated: severity and value.
fn found(
    check: fn(&Patient<'_>) -> Vec<Finding>,
    tree: &Tree,
    wanted: &Wanted,
) -> Vec<(Severity, String)> {
    let findings = with(tree, wanted, check);
    findings.into_iter().map(|finding| (finding.severity, finding.found)).collect()
}

fn mends(check: fn(&Patient<'_>) -> Vec<Finding>, tree: &Tree, wanted: &Wanted) -> Vec<String> {
    with(tree, wanted, check).into_iter().flat_map(|finding| finding.mend).collect()
}

fn is(severity: Severity, text: &str) -> Vec<(Severity, String)> {
    vec![(severity, text.to_owned())]
}

use Severity::{Error, Note, Ok as Fine, Warning};

#[test]
fn hugepages_are_judged_by_node() {
    let tree = Tree::two_nodes();
    tree.write("proc/meminfo", "Hugepagesize:    2048 kB\n");
    let wanted = Wanted { memory_mb: 3000, ..wanted(&[1, 2, 5], vec![]) };
    let both = found(memory::hugepages, &tree, &wanted);
    assert_eq!(
        both,
        [
            (Fine, "node 0: 2000 MB are free in pages of 2 MB, 2000 MB are needed".to_owned()),
            (Fine, "node 1: 2000 MB are free in pages of 2 MB, 1000 MB are needed".to_owned()),
        ]
    );
    // Enough on the machine, but not on the node: 2,000 of the 3,000 MB are needed where 250 are
    // free.
    tree.hugepages(0, 2048, 130, 125);
    tree.hugepages(1, 2048, 2048, 2000);
    let findings = with(&tree, &wanted, memory::hugepages);
    assert_eq!((findings[0].severity, findings[1].severity), (Warning, Fine));
    assert!(findings[0].cost.as_ref().unwrap().contains("another node's memory"));
    assert_eq!(
        findings[0].mend,
        [
            "echo 1005 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
            "mkdir -p /etc/default/grub.d",
            "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugepages=0:1005,1:2048\"' > \
             /etc/default/grub.d/turnpike-hugepages.cfg",
            "update-grub    # then reboot",
        ]
    );
    // Too few on the machine: the router uses ordinary memory, for which PCI ports need an IOMMU.
    tree.hugepages(1, 2048, 0, 0);
    let findings = with(&tree, &wanted, memory::hugepages);
    assert!(findings[0].cost.as_ref().unwrap().contains("ordinary memory"), "{findings:?}");
    let with_pci = Wanted { ports: vec![pci("wan", "0000:03:00.0")], ..wanted.clone() };
    let severity = || found(memory::hugepages, &tree, &with_pci)[0].0;
    assert_eq!(severity(), Error);
    // A group without an IOMMU, then with one, then a driver without IOMMU support.
    tree.write("sys/kernel/iommu_groups/0/name", "vfio-noiommu\n");
    assert_eq!(severity(), Error);
    tree.write("sys/kernel/iommu_groups/1/type", "DMA-FQ\n");
    assert_eq!(severity(), Warning);
    tree.pci("0000:03:00.0", Some("uio_pci_generic"), "0");
    assert_eq!(severity(), Error);
    let unwanted = Wanted { no_huge: true, ..wanted.clone() };
    let note = "250 MB are free, and the configuration asks for ordinary memory";
    assert_eq!(found(memory::hugepages, &tree, &unwanted), is(Note, note));
    let file = "cannot tell: /sys/devices/system/node/node*/hugepages is absent or unreadable";
    assert_eq!(found(memory::hugepages, &Tree::new(&[]), &wanted), is(Note, file));
}

#[test]
fn hugepages_are_of_the_size_that_dpdk_chooses() {
    let tree = Tree::two_nodes();
    let wanted = wanted(&[1], vec![]);
    for node in 0..2 {
        tree.hugepages(node, 2048, 10, 10);
        tree.hugepages(node, 1 << 20, 1, 1);
    }
    let text = "node 0: 1024 MB are free in pages of 1 GB, 300 MB are needed";
    assert_eq!(found(memory::hugepages, &tree, &wanted), is(Fine, text));
    // A kernel without NUMA; set at each boot by sysctl.
    let tree = Tree::new(&[
        ("sys/devices/system/cpu/online", "0-1"),
        ("proc/meminfo", "MemTotal: 1 kB\nHugepagesize:    2048 kB\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0"),
    ]);
    assert_eq!(
        mends(memory::hugepages, &tree, &wanted),
        [
            "echo 150 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "echo 'vm.nr_hugepages = 150' > /etc/sysctl.d/80-turnpike-hugepages.conf",
        ]
    );
}

#[test]
fn memory_is_enough_short_or_missing() {
    let wanted = wanted(&[1], vec![]);
    for (available_mb, severity) in [(1012, Fine), (1011, Warning), (299, Error)] {
        let meminfo = format!("MemAvailable:  {} kB\n", available_mb * 1024);
        let tree = Tree::new(&[("proc/meminfo", &meminfo)]);
        let text =
            format!("{available_mb} MB are available; a router takes 300 MB of packet memory");
        assert_eq!(found(memory::size, &tree, &wanted), is(severity, &text));
    }
    let absent = is(Note, "cannot tell: /proc/meminfo is absent or unreadable");
    assert_eq!(found(memory::size, &Tree::new(&[]), &wanted), absent);
}

#[test]
fn strict_overcommitment_is_an_error_where_it_refuses() {
    let wanted = wanted(&[1], vec![]);
    let tree = Tree::new(&[
        ("proc/sys/vm/overcommit_memory", "0\n"),
        ("proc/meminfo", "CommitLimit:  1024000 kB\nCommitted_AS:  512000 kB\n"),
    ]);
    assert_eq!(found(memory::overcommit, &tree, &wanted)[0].0, Fine);
    tree.write("proc/sys/vm/overcommit_memory", "2\n");
    assert_eq!(found(memory::overcommit, &tree, &wanted)[0].0, Fine);
    tree.write("proc/meminfo", "CommitLimit:  1024000 kB\nCommitted_AS:  512001 kB\n");
    assert_eq!(found(memory::overcommit, &tree, &wanted)[0].0, Error);
    assert_eq!(mends(memory::overcommit, &tree, &wanted)[0], "sysctl -w vm.overcommit_memory=0");
    tree.write("proc/meminfo", "");
    assert_eq!(found(memory::overcommit, &tree, &wanted)[0].0, Note);
}

#[test]
fn locked_memory_is_a_matter_of_privilege_or_limit() {
    let tree = Tree::new(&[
        ("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n"),
        (
            "proc/self/limits",
            "Max locked memory         8388608              8388608              bytes\n",
        ),
    ]);
    let (xdp, vfio) =
        (wanted(&[1], vec![kernel("wan", "eth1")]), wanted(&[1], vec![pci("wan", "x")]));
    let text = "8192 kB may be locked by user 1000";
    assert_eq!(found(memory::locked, &tree, &xdp), is(Warning, text));
    assert_eq!(found(memory::locked, &tree, &vfio), is(Error, text));
    assert!(
        mends(memory::locked, &tree, &xdp)
            .iter()
            .any(|line| line.contains("LimitMEMLOCK=infinity"))
    );
    tree.write("proc/self/status", "CapEff:\t0000000000004000\n");
    assert_eq!(found(memory::locked, &tree, &vfio)[0].0, Fine);
    tree.write("proc/self/status", "CapEff:\t0000000000000000\n");
    tree.write(
        "proc/self/limits",
        "Max locked memory         unlimited            unlimited            bytes\n",
    );
    assert_eq!(found(memory::locked, &tree, &vfio), is(Fine, "no limit"));
    tree.remove("proc/self/limits");
    assert_eq!(found(memory::locked, &tree, &vfio)[0].0, Note);
}

#[test]
fn drivers_give_devices_away_or_keep_them() {
    let tree = Tree::two_nodes();
    let wanted = wanted(&[1], vec![pci("wan", "0000:03:00.0")]);
    assert_eq!(found(devices::drivers, &tree, &wanted), []);
    for (driver, severity) in [
        (Some("vfio-pci"), Fine),
        (Some("mlx5_core"), Fine),
        (Some("uio_pci_generic"), Note),
        (Some("e1000e"), Error),
    ] {
        tree.pci("0000:03:00.0", driver, "0");
        assert_eq!(found(devices::drivers, &tree, &wanted)[0].0, severity, "{driver:?}");
    }
    assert_eq!(mends(devices::drivers, &tree, &wanted), ["turnpike bind 0000:03:00.0"]);
    // The router binds it itself.
    let mut bound = wanted.clone();
    bound.ports[0].driver = Some(Driver::VfioPci);
    let text = "port \"wan\": 0000:03:00.0 is bound to e1000e, to vfio-pci when the router starts";
    assert_eq!(found(devices::drivers, &tree, &bound), is(Fine, text));
    // Behind an IOMMU that translates, the device cannot access memory.
    tree.write("sys/kernel/iommu_groups/4/type", "DMA-FQ\n");
    tree.pci("0000:03:00.0", Some("uio_pci_generic"), "0");
    tree.link("sys/bus/pci/devices/0000:03:00.0/iommu_group", "../../../kernel/iommu_groups/4");
    assert_eq!(found(devices::drivers, &tree, &wanted)[0].0, Error);
    tree.write("sys/kernel/iommu_groups/4/type", "identity\n");
    assert_eq!(found(devices::drivers, &tree, &wanted)[0].0, Note);
    tree.remove("sys/bus/pci/devices/0000:03:00.0/driver");
    let text = "port \"wan\": 0000:03:00.0 has no driver";
    assert_eq!(found(devices::drivers, &tree, &wanted), is(Error, text));
}

#[test]
fn an_iommu_is_on_off_or_done_without() {
    let tree = Tree::two_nodes();
    tree.pci("0000:03:00.0", Some("vfio-pci"), "0");
    let (none, wan) = (wanted(&[1], vec![]), wanted(&[1], vec![pci("wan", "0000:03:00.0")]));
    let absent = "cannot tell: /sys/kernel/iommu_groups is absent or unreadable";
    assert_eq!(found(devices::iommu, &tree, &wan), is(Note, absent));
    tree.write("sys/kernel/iommu_groups/1/type", "");
    tree.write("sys/class/iommu/dmar0/name", "");
    assert_eq!(found(devices::iommu, &tree, &wan), is(Fine, "on (dmar0), 1 groups"));
    tree.remove("sys/kernel/iommu_groups/1");
    assert_eq!(found(devices::iommu, &tree, &wan), is(Error, "off"));
    assert_eq!(found(devices::iommu, &tree, &none)[0].0, Note);
    tree.write("proc/cpuinfo", "vendor_id\t: GenuineIntel\n");
    let commands = mends(devices::iommu, &tree, &wan);
    assert!(commands[1].contains("$GRUB_CMDLINE_LINUX intel_iommu=on"), "{commands:?}");
    assert!(
        commands.iter().any(|line| line.contains("enable_unsafe_noiommu_mode")),
        "{commands:?}"
    );
    tree.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
    tree.write("sys/kernel/iommu_groups/0/name", "vfio-noiommu\n");
    assert_eq!(found(devices::iommu, &tree, &wan)[0].0, Warning);
    tree.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N\n");
    tree.pci("0000:03:00.0", Some("uio_pci_generic"), "0");
    assert_eq!(found(devices::iommu, &tree, &wan)[0].0, Note);
    tree.pci("0000:03:00.0", Some("mlx5_core"), "0");
    assert_eq!(found(devices::iommu, &tree, &wan)[0].0, Note);
}

#[test]
fn interrupts_are_remapped_or_vfio_is_told() {
    const ALLOWED: &str = "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
    let tree = Tree::two_nodes();
    tree.pci("0000:03:00.0", Some("vfio-pci"), "0");
    tree.write("sys/kernel/iommu_groups/1/type", "");
    let wan = wanted(&[1], vec![pci("wan", "0000:03:00.0")]);
    let severity = || found(devices::interrupt_remapping, &tree, &wan)[0].0;
    assert_eq!(found(devices::interrupt_remapping, &tree, &wan), [], "AMD's can");
    tree.write("sys/class/iommu/dmar0/intel-iommu/ecap", "f0105e\n");
    assert_eq!(severity(), Fine);
    // QEMU's with intremap=off.
    tree.write("sys/class/iommu/dmar0/intel-iommu/ecap", "f00f46\n");
    assert_eq!(severity(), Error);
    assert_eq!(found(devices::interrupt_remapping, &tree, &wanted(&[1], vec![]))[0].0, Note);
    let commands = mends(devices::interrupt_remapping, &tree, &wan);
    assert!(
        commands[0]
            .ends_with("echo Y > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts")
    );
    tree.write(ALLOWED, "Y\n");
    assert_eq!(severity(), Note);
    tree.write("sys/class/iommu/dmar0/intel-iommu/ecap", "f0105e\n");
    let text = "on, and vfio allows unsafe interrupts (allow_unsafe_interrupts)";
    assert_eq!(found(devices::interrupt_remapping, &tree, &wan), is(Note, text));
    tree.write(ALLOWED, "N\n");
    tree.write("proc/cmdline", "quiet intremap=nosid,off\n");
    assert_eq!(severity(), Error);
    tree.write("sys/class/iommu/dmar0/intel-iommu/ecap", "what?\n");
    assert_eq!(severity(), Note);
}

#[test]
fn a_group_is_given_away_as_a_whole() {
    let tree = Tree::two_nodes();
    let group = |address: &str| {
        tree.link(
            &format!("sys/bus/pci/devices/{address}/iommu_group"),
            "../../../kernel/iommu_groups/7",
        );
        tree.write(&format!("sys/kernel/iommu_groups/7/devices/{address}"), "");
    };
    tree.pci("0000:03:00.0", Some("vfio-pci"), "0");
    let wan = wanted(&[1], vec![pci("wan", "0000:03:00.0")]);
    assert_eq!(found(devices::groups, &tree, &wan), []);
    group("0000:03:00.0");
    let alone = "port \"wan\": 0000:03:00.0 is in group 7, alone";
    assert_eq!(found(devices::groups, &tree, &wan), is(Fine, alone));
    tree.pci("0000:00:1c.0", Some("pcieport"), "0");
    group("0000:00:1c.0");
    tree.pci("0000:03:00.1", None, "0");
    group("0000:03:00.1");
    assert_eq!(found(devices::groups, &tree, &wan)[0].0, Fine);
    tree.pci("0000:03:00.1", Some("e1000e"), "0");
    let used = "port \"wan\": 0000:03:00.0 is in group 7 with 0000:03:00.1 (e1000e), which the kernel uses";
    assert_eq!(found(devices::groups, &tree, &wan), is(Error, used));
    assert!(
        mends(devices::groups, &tree, &wan)[0]
            .starts_with("turnpike bind 0000:03:00.0 0000:03:00.1 ")
    );
}

#[test]
fn modules_are_judged_by_need() {
    let tree = Tree::two_nodes();
    tree.pci("0000:03:00.0", Some("e1000e"), "0");
    let (none, wan) = (wanted(&[1], vec![]), wanted(&[1], vec![pci("wan", "0000:03:00.0")]));
    let severities = |wanted| {
        let findings = found(devices::modules, &tree, wanted);
        [findings[0].0, findings[1].0]
    };
    assert_eq!(severities(&wan), [Note, Note]);
    tree.write(
        "lib/modules/6.1.0-41-amd64/modules.dep",
        "kernel/drivers/vfio/pci/vfio-pci.ko: x\n",
    );
    assert_eq!((severities(&wan), severities(&none)), ([Warning, Note], [Fine, Note]));
    assert_eq!(mends(devices::modules, &tree, &wan)[0], "modprobe vfio-pci");
    tree.write("lib/modules/6.1.0-41-amd64/modules.dep", "");
    assert_eq!((severities(&wan), severities(&none)), ([Error, Note], [Note, Note]));
    tree.write("sys/module/vfio_pci/refcnt", "1");
    assert_eq!(severities(&wan), [Fine, Note]);
    tree.pci("0000:03:00.0", Some("uio_pci_generic"), "0");
    assert_eq!(severities(&wan), [Fine, Error]);
}

#[test]
fn isolation_tick_and_rcu_are_judged_by_core() {
    let tree = Tree::two_nodes();
    let wanted = wanted(&[1, 2], vec![]);
    let text = "the scheduler may run anything on the forwarders' cores: 1-2";
    assert_eq!(found(cores::isolated, &tree, &wanted), is(Warning, text));
    assert_eq!(
        mends(cores::isolated, &tree, &wanted)[1],
        "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX isolcpus=managed_irq,domain,1-2\"' > \
         /etc/default/grub.d/turnpike-isolcpus.cfg"
    );
    // Another isolated core stays so; the parameter's value is replaced.
    tree.write("sys/devices/system/cpu/isolated", "2,7\n");
    tree.write("proc/cmdline", "quiet isolcpus=2,7\n");
    let text = "the scheduler may run anything on the forwarders' cores: 1";
    assert_eq!(found(cores::isolated, &tree, &wanted), is(Warning, text));
    let commands = mends(cores::isolated, &tree, &wanted);
    assert!(
        commands[0]
            .starts_with("sed -i 's/\\bisolcpus=[^ \"]*/isolcpus=managed_irq,domain,1-2,7/'")
    );
    tree.write("sys/devices/system/cpu/isolated", "1-2\n");
    assert_eq!(found(cores::isolated, &tree, &wanted)[0].0, Fine);
    assert_eq!(
        (found(cores::tick, &tree, &wanted)[0].0, found(cores::rcu, &tree, &wanted)[0].0),
        (Warning, Warning)
    );
    tree.write("proc/cmdline", "quiet rcu_nocbs=all\n");
    assert_eq!(found(cores::rcu, &tree, &wanted)[0].0, Fine);
    // A core without a tick needs no setting for RCU.
    tree.write("proc/cmdline", "quiet\n");
    tree.write("sys/devices/system/cpu/nohz_full", "1-2\n");
    assert_eq!(
        (found(cores::tick, &tree, &wanted)[0].0, found(cores::rcu, &tree, &wanted)[0].0),
        (Fine, Fine)
    );
    tree.write("proc/cmdline", "rcu_nocbs=1-N\n");
    assert_eq!(
        found(cores::rcu, &tree, &wanted),
        is(Note, "cannot tell: rcu_nocbs=1-N is not a list of cores")
    );
    tree.remove("sys/devices/system/cpu/nohz_full");
    assert_eq!(found(cores::tick, &tree, &wanted)[0].0, Note);
}

#[test]
fn the_first_core_is_left_to_linux() {
    let tree = Tree::two_nodes();
    let first = wanted(&[0], vec![]);
    assert_eq!(mends(cores::isolated, &tree, &first), ["turnpike.cores { forward = \"1\" }"]);
    let both = wanted(&[0, 1], vec![]);
    assert!(mends(cores::tick, &tree, &both)[1].contains("nohz_full=1\""));
}

#[test]
fn siblings_are_shared_by_forwarders_or_with_linux() {
    let tree = Tree::two_nodes();
    let both = wanted(&[1, 9], vec![]);
    let text = "forwarders on cores 1 and 9, which are threads of one physical core";
    assert_eq!(found(cores::smt, &tree, &both), is(Warning, text));
    assert_eq!(mends(cores::smt, &tree, &both), ["turnpike.cores { forward = \"1-2\" }"]);
    let one = wanted(&[1], vec![]);
    let text = "Linux may run anything on the siblings of forwarders' cores: 9";
    assert_eq!(found(cores::smt, &tree, &one), is(Warning, text));
    assert_eq!(mends(cores::smt, &tree, &one), ["echo 0 > /sys/devices/system/cpu/cpu9/online"]);
    tree.write("sys/devices/system/cpu/isolated", "9");
    assert_eq!(found(cores::smt, &tree, &one)[0].0, Fine);
}

#[test]
fn the_control_plane_needs_a_core() {
    let tree = Tree::new(&[("sys/devices/system/cpu/online", "0-1")]);
    let (some, all) = (wanted(&[1], vec![]), wanted(&[0, 1], vec![]));
    assert_eq!(
        found(cores::control_plane, &tree, &some),
        is(Fine, "cores beside the forwarders': 0")
    );
    assert_eq!(
        found(cores::control_plane, &tree, &all),
        is(Warning, "forwarders have every core: 0-1")
    );
    assert_eq!(mends(cores::control_plane, &tree, &all), ["turnpike.cores { forward = \"1\" }"]);
    assert_eq!(found(cores::control_plane, &Tree::new(&[]), &all)[0].0, Note);
}

#[test]
fn workqueues_belong_on_other_cores() {
    let tree = Tree::two_nodes();
    let wanted = wanted(&[1, 2], vec![]);
    assert_eq!(found(cores::workqueues, &tree, &wanted)[0].0, Note);
    tree.write("sys/devices/virtual/workqueue/cpumask", "ffff\n");
    let text = "the kernel's workqueues may use the forwarders' cores: 1-2";
    assert_eq!(found(cores::workqueues, &tree, &wanted), is(Warning, text));
    let mend = mends(cores::workqueues, &tree, &wanted);
    assert_eq!(mend, ["echo fff9 > /sys/devices/virtual/workqueue/cpumask"]);
    tree.write("sys/devices/virtual/workqueue/cpumask", "fff9\n");
    assert_eq!(found(cores::workqueues, &tree, &wanted)[0].0, Fine);
}

fn thread(name: &str, core: usize, allowed: &[usize]) -> Task {
    let allowed = allowed.iter().copied().collect();
    Task { name: name.to_owned(), core, allowed, ..Task::default() }
}

#[test]
fn threads_beside_forwarders_are_named_with_the_way_out() {
    let tree = Tree::new(&[("sys/devices/system/cpu/online", "0-2")]);
    let wanted = wanted(&[1, 2], vec![]);
    assert_eq!(found(tasks::processes, &tree, &wanted)[0].0, Note);
    tree.link("proc/self", "50");
    tree.task(50, 50, &thread("turnpike", 1, &[0, 1, 2]));
    tree.task(60, 61, &thread("forwarder-0", 1, &[1]));
    tree.task(60, 60, &thread("turnpike", 0, &[0]));
    // A thread bound to its core by the kernel, and one that has been moved away.
    tree.task(14, 14, &Task { of_kernel: true, ..thread("ksoftirqd/1", 1, &[1]) });
    tree.task(70, 70, &thread("moved", 1, &[0]));
    assert_eq!(found(tasks::processes, &tree, &wanted)[0].0, Fine);
    tree.task(80, 80, &thread("bgpd", 2, &[0, 1, 2]));
    tree.task(80, 81, &thread("bgpd_io", 1, &[0, 1, 2]));
    tree.task(15, 15, &Task { of_kernel: true, ..thread("kswapd0", 1, &[0, 1, 2]) });
    let all = found(tasks::processes, &tree, &wanted);
    let expected = [
        (Warning, "programs that ran last on the forwarders' cores: bgpd (80)".to_owned()),
        (
            Note,
            "the kernel's threads that ran last on the forwarders' cores: kswapd0 (15)".to_owned(),
        ),
    ];
    assert_eq!(all, expected);
    assert!(
        mends(tasks::processes, &tree, &wanted)[0]
            .starts_with("for p in 80; do taskset -acp 0 $p;")
    );
    for process in 81..88 {
        tree.task(process, process, &thread("x", 1, &[1]));
    }
    assert!(found(tasks::processes, &tree, &wanted)[0].1.ends_with("x (84), and 3 more"));
}

#[test]
fn forwarders_that_lose_their_core_are_named() {
    let tree = Tree::new(&[]);
    let none = wanted(&[1], vec![]);
    assert_eq!(found(tasks::preemption, &tree, &none)[0].0, Note);
    tree.write("proc/uptime", "110.00 9.00\n");
    assert_eq!(found(tasks::preemption, &tree, &none), is(Fine, "no router runs now"));
    let after = |involuntary| {
        let began = std::time::Duration::from_secs(100);
        let forwarder = thread("forwarder-3", 7, &[7]);
        tree.task(60, 61, &Task { began, involuntary, ..forwarder });
        tree.task(60, 60, &Task { began, involuntary: 9999, ..thread("turnpike", 0, &[0]) });
        found(tasks::preemption, &tree, &none)
    };
    assert_eq!(after(200), is(Fine, "none above 20 times a second"));
    let text = "other threads take the core from forwarder-3 (core 7) 25 times a second";
    assert_eq!(after(250), is(Warning, text));
}

#[test]
fn what_the_kernel_receives_is_on_the_right_cores() {
    let tree = Tree::new(&[("sys/devices/system/cpu/online", "0-2")]);
    let wanted = wanted(&[1, 2], vec![kernel("wan", "eth1")]);
    assert_eq!(found(interrupts::of_ports, &tree, &wanted), []);
    assert_eq!(found(interrupts::steering, &tree, &wanted), []);
    for (number, cores) in [(30, "0-2"), (31, "2"), (32, "1")] {
        tree.write(&format!("proc/irq/{number}/smp_affinity_list"), cores);
        tree.write(&format!("proc/irq/{number}/handler/x"), "");
    }
    for number in [30, 31] {
        tree.write(&format!("sys/class/net/eth1/device/msi_irqs/{number}"), "msi\n");
    }
    // Only 32 belongs to no port.
    assert_eq!(
        found(interrupts::affinity, &tree, &wanted)[0].1,
        "1 on the forwarders' cores: IRQ 32"
    );
    let text = "cores of control serve interrupts of ports: IRQ 30";
    assert_eq!(found(interrupts::of_ports, &tree, &wanted), is(Warning, text));
    let mend = "for i in 30; do echo 1-2 > /proc/irq/$i/smp_affinity_list; done";
    assert_eq!(mends(interrupts::of_ports, &tree, &wanted), [mend]);
    tree.write("proc/irq/30/smp_affinity_list", "1");
    assert_eq!(found(interrupts::of_ports, &tree, &wanted)[0].0, Fine);

    let steer = |interface: &str, mask: &str| {
        tree.write(&format!("sys/class/net/{interface}/queues/rx-0/rps_cpus"), mask);
    };
    steer("eth0", "0\n");
    steer("eth1", "6\n");
    assert_eq!(found(interrupts::steering, &tree, &wanted)[0].0, Fine);
    steer("eth0", "3\n");
    steer("eth1", "7\n");
    let expected = [
        (Warning, "eth0: the kernel receives on forwarders' cores 1".to_owned()),
        (Warning, "eth1: the kernel receives on control's cores 0".to_owned()),
    ];
    assert_eq!(found(interrupts::steering, &tree, &wanted), expected);
    let mend = mends(interrupts::steering, &tree, &wanted);
    assert_eq!(mend[0], "for q in /sys/class/net/eth0/queues/rx-*; do echo 1 > $q/rps_cpus; done");
    assert_eq!(mend[1], "for q in /sys/class/net/eth1/queues/rx-*; do echo 6 > $q/rps_cpus; done");
}

#[test]
fn better_cores_are_near_to_the_ports() {
    let tree = Tree::two_nodes();
    tree.pci("0000:83:00.0", Some("vfio-pci"), "1");
    let far = wanted(&[1, 2], vec![pci("wan", "0000:83:00.0")]);
    let text = "port \"wan\": on node 1; forwarders on other nodes: 1-2";
    assert_eq!(found(numa::ports, &tree, &far), is(Warning, text));
    assert_eq!(mends(numa::ports, &tree, &far), ["turnpike.cores { forward = \"4-5\" }"]);
    tree.write("sys/devices/system/cpu/isolated", "2-3,6-7");
    assert_eq!(mends(numa::ports, &tree, &far), ["turnpike.cores { forward = \"6-7\" }"]);
    let near = wanted(&[4, 5], vec![pci("wan", "0000:83:00.0")]);
    assert_eq!(found(numa::ports, &tree, &near)[0].0, Fine);
    let one_node = Tree::new(&[("sys/devices/system/cpu/online", "0-1")]);
    assert_eq!(found(numa::ports, &one_node, &near), is(Fine, "one node"));
    assert_eq!(found(numa::balancing, &one_node, &near), []);
    assert_eq!(found(numa::balancing, &tree, &near)[0].0, Note);
    tree.write("proc/sys/kernel/numa_balancing", "1\n");
    assert_eq!(found(numa::balancing, &tree, &near), is(Warning, "on"));
    tree.write("proc/sys/kernel/numa_balancing", "0\n");
    assert_eq!(found(numa::balancing, &tree, &near), is(Fine, "off"));
}

#[test]
fn governors_turbo_and_idle_states_are_those_of_the_forwarders_cores() {
    const CPU: &str = "sys/devices/system/cpu";
    let tree = Tree::two_nodes();
    let wanted = wanted(&[1, 2], vec![]);
    let severities = || {
        [power::governor, power::turbo, power::idle_states]
            .map(|check| found(check, &tree, &wanted)[0].0)
    };
    assert_eq!(severities(), [Note, Note, Note]);
    for core in 0..3 {
        tree.write(&format!("{CPU}/cpu{core}/cpufreq/scaling_governor"), "performance\n");
        for (state, latency) in [(0, 0), (1, 2), (2, 133)] {
            let base = format!("{CPU}/cpu{core}/cpuidle/state{state}");
            tree.write(&format!("{base}/latency"), latency.to_string());
            tree.write(&format!("{base}/name"), format!("C{state}"));
            tree.write(&format!("{base}/disable"), "0\n");
        }
    }
    tree.write(&format!("{CPU}/cpu0/cpufreq/scaling_governor"), "powersave\n");
    tree.write(&format!("{CPU}/cpufreq/boost"), "1\n");
    assert_eq!(severities(), [Fine, Fine, Warning]);
    assert_eq!(
        found(power::idle_states, &tree, &wanted),
        is(Warning, "C2 takes 133 µs to leave; cores 1-2")
    );
    assert_eq!(
        mends(power::idle_states, &tree, &wanted)[1],
        "for s in 2; do echo 1 > /sys/devices/system/cpu/cpu2/cpuidle/state$s/disable; done"
    );
    for core in 1..3 {
        tree.write(&format!("{CPU}/cpu{core}/cpuidle/state2/disable"), "1\n");
    }
    tree.write(&format!("{CPU}/cpu2/cpufreq/scaling_governor"), "powersave\n");
    tree.write(&format!("{CPU}/intel_pstate/no_turbo"), "1\n");
    let governors = found(power::governor, &tree, &wanted);
    assert_eq!(governors[1], (Warning, "powersave on the forwarders' cores: 2".to_owned()));
    assert_eq!(found(power::turbo, &tree, &wanted), is(Note, "off"));
    assert_eq!(found(power::idle_states, &tree, &wanted)[0].0, Fine);
    tree.write(&format!("{CPU}/cpu1/cpuidle/state1/latency"), "60\n");
    assert_eq!(found(power::idle_states, &tree, &wanted)[0].0, Note);
}

#[test]
fn af_xdp_is_of_the_kernel_and_of_the_driver() {
    let tree = Tree::new(&[]);
    let wan = wanted(&[1], vec![kernel("wan", "eth1")]);
    let by_packet = Port { driver: Some(Driver::AfPacket), ..kernel("lan", "eth2") };
    let none = wanted(&[1], vec![by_packet, pci("x", "y")]);
    assert_eq!(
        (found(xdp::sockets, &tree, &none), found(xdp::zero_copy, &tree, &none)),
        (vec![], vec![])
    );
    assert_eq!(found(xdp::sockets, &tree, &wan)[0].0, Note);
    tree.write("proc/self/net/protocols", "protocol  size\nXDPX  1\nTCP  2\n");
    assert_eq!(found(xdp::sockets, &tree, &wan)[0].0, Warning);
    tree.write("proc/self/net/protocols", "protocol  size\nXDP   1088\n");
    assert_eq!(found(xdp::sockets, &tree, &wan)[0].0, Fine);
    tree.write("proc/sys/net/core/bpf_jit_enable", "0\n");
    assert_eq!(found(xdp::sockets, &tree, &wan), is(Warning, "BPF programs are interpreted"));

    let copies = Xdp { native: true, redirect: true, ..Xdp::default() };
    let zero_copy = Xdp { zero_copy: true, zero_copy_segments: Some(17), ..copies };
    for (answer, severity, text) in [
        (Ok(Some(zero_copy)), Fine, "its driver has it, up to 17 buffers a packet"),
        (Ok(Some(copies)), Note, "its driver has XDP, but copies packets to AF_XDP"),
        (Ok(Some(Xdp::default())), Note, "its driver has no XDP"),
        (Ok(None), Note, "cannot tell: the kernel tells since Linux 6.3"),
        (Err(()), Note, "cannot tell: No such device (os error 19)"),
    ] {
        let ask = move |_: &str| answer.map_err(|()| io::Error::from_raw_os_error(19));
        let finding = with(&tree, &wan, |patient| {
            let patient = Patient {
                xdp: &ask,
                cpus: patient.cpus.clone(),
                dpdk: patient.dpdk.clone(),
                ..*patient
            };
            xdp::zero_copy(&patient).remove(0)
        });
        assert_eq!(
            (finding.severity, finding.found),
            (severity, format!("port \"wan\": eth1: {text}"))
        );
    }
}

#[test]
fn interrupts_are_counted_on_the_forwarders_cores() {
    let tree = Tree::two_nodes();
    let wanted = wanted(&[1, 2], vec![]);
    assert_eq!(found(interrupts::affinity, &tree, &wanted)[0].0, Note);
    let irq = |number: usize, effective: &str, mask: &str, handled: bool| {
        tree.write(&format!("proc/irq/{number}/effective_affinity_list"), effective);
        tree.write(&format!("proc/irq/{number}/smp_affinity_list"), mask);
        if handled {
            tree.write(&format!("proc/irq/{number}/eth1-rx/x"), "");
        }
    };
    irq(0, "1", "0-15", true);
    irq(30, "0", "0-15", true);
    irq(31, "2", "0-15", false);
    // It moves at its next occurrence.
    irq(29, "2", "0", true);
    assert_eq!(
        found(interrupts::affinity, &tree, &wanted),
        is(Fine, "none on the forwarders' cores")
    );
    irq(32, "2", "0-15", true);
    irq(33, "", "1", true);
    assert_eq!(
        found(interrupts::affinity, &tree, &wanted),
        is(Warning, "2 on the forwarders' cores: IRQ 32-33")
    );
    assert_eq!(
        mends(interrupts::affinity, &tree, &wanted),
        ["for i in 32 33; do echo 0,3-15 > /proc/irq/$i/smp_affinity_list; done"]
    );
}

#[test]
fn irqbalance_keeps_away_or_not() {
    let tree = Tree::two_nodes();
    let wanted = wanted(&[1, 2], vec![]);
    tree.write("proc/1/comm", "systemd\n");
    assert_eq!(found(interrupts::irqbalance, &tree, &wanted), is(Fine, "does not run"));
    tree.write("proc/77/comm", "irqbalance\n");
    assert_eq!(found(interrupts::irqbalance, &tree, &wanted)[0].0, Warning);
    assert_eq!(
        mends(interrupts::irqbalance, &tree, &wanted)[0],
        "echo IRQBALANCE_BANNED_CPULIST=1-2 >> /etc/default/irqbalance"
    );
    tree.write("sys/devices/system/cpu/isolated", "1");
    tree.write("sys/devices/system/cpu/nohz_full", "2");
    assert_eq!(found(interrupts::irqbalance, &tree, &wanted)[0].0, Fine);
    tree.write("etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=3\n");
    assert_eq!(found(interrupts::irqbalance, &tree, &wanted)[0].0, Warning);
    tree.write("etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=\"1-3\"\n");
    assert_eq!(found(interrupts::irqbalance, &tree, &wanted)[0].0, Fine);
}

#[test]
fn versions_kernel_processor_and_privileges() {
    let tree = Tree::two_nodes();
    let wanted = wanted(&[1], vec![]);
    assert_eq!(found(system::versions, &tree, &wanted)[0].0, Fine);
    let other = with(&tree, &wanted, |patient| {
        let dpdk = DpdkVersions { built: "DPDK 22.11.0".into(), running: "DPDK 22.11.1".into() };
        system::versions(&Patient { dpdk, cpus: patient.cpus.clone(), ..*patient }).remove(0)
    });
    assert!(
        other.severity == Note && other.found.ends_with("DPDK 22.11.1; compiled with DPDK 22.11.0")
    );
    assert_eq!(found(system::kernel, &tree, &wanted), is(Fine, "Linux 6.1.0-41-amd64"));
    tree.write("proc/sys/kernel/osrelease", "5.10.0\n");
    assert_eq!(found(system::kernel, &tree, &wanted), is(Note, "Linux 5.10.0"));
    assert_eq!(found(system::processor, &tree, &wanted)[0].0, Note);
    tree.write("proc/cpuinfo", "model name\t: Some CPU @ 3 GHz\n");
    let (severity, text) = found(system::processor, &tree, &wanted).remove(0);
    assert!(severity == Fine && text.starts_with("Some CPU @ 3 GHz, 16 cores"), "{text}");
    assert_eq!(found(system::privileges, &tree, &wanted)[0].0, Note);
    tree.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000002000\n");
    let text = "user 1000 lacks CAP_NET_ADMIN, CAP_BPF";
    assert_eq!(found(system::privileges, &tree, &wanted), is(Warning, text));
    assert_eq!(mends(system::privileges, &tree, &wanted), ["sudo turnpike doctor r.lua"]);
    // CAP_SYS_ADMIN is enough for BPF.
    tree.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000203000\n");
    assert_eq!(found(system::privileges, &tree, &wanted)[0].0, Fine);
}

#[test]
fn problems_of_the_configuration_are_errors() {
    let tree = Tree::new(&[]);
    let right = wanted(&[1], vec![]);
    assert_eq!(
        found(system::configuration, &tree, &right),
        is(Fine, "r.lua: right for this machine")
    );
    let wrong = Wanted {
        problems: vec!["r.lua:3: core 9".into(), "r.lua:4: eth9".into()],
        ..right.clone()
    };
    let problems = [(Error, "r.lua:3: core 9".to_owned()), (Error, "r.lua:4: eth9".to_owned())];
    assert_eq!(found(system::configuration, &tree, &wrong), problems);
    let none = Wanted { file: None, ..right };
    assert_eq!(found(system::configuration, &tree, &none)[0].0, Note);
}

#[test]
fn the_heaviest_comes_first_and_is_the_exit_status() {
    let report = |wanted: &Wanted| with(&Tree::two_nodes(), wanted, examine);
    let wrong = Wanted { problems: vec!["wrong".into()], ..wanted(&[1], vec![]) };
    let (with_error, without) = (report(&wrong), report(&wanted(&[1], vec![])));
    assert_eq!((with_error.worst, with_error.exit_status()), (Error, 2));
    assert_eq!((without.worst, without.exit_status()), (Warning, 1));
    assert!(with_error.findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.severity)));
    let fine = Report { file: None, worst: Note, findings: vec![] };
    assert_eq!(fine.exit_status(), 0);
    let json = serde_json::to_value(&with_error).unwrap();
    let expected = serde_json::json!({
        "check": "configuration", "severity": "error", "found": "wrong", "cost": "The router does not start.",
    });
    assert_eq!((&json["worst"], &json["findings"][0]), (&"error".into(), &expected));
}

#[test]
fn an_empty_machine_is_examined_without_an_error() {
    let everything = vec![pci("wan", "0000:03:00.0"), kernel("lan", "eth1")];
    let report = with(&Tree::new(&[]), &wanted(&[1], everything), examine);
    assert!(report.worst <= Warning, "{report:#?}");
    assert!(
        report.findings.iter().filter(|finding| finding.found.contains("cannot tell")).count() > 15
    );
}

#[test]
fn this_machine_is_examined() {
    let machine = Machine::here();
    let dpdk = DpdkVersions { built: dpdk::version_built(), running: dpdk::version() };
    let wanted = wanted(&[0], vec![kernel("lo", "lo")]);
    let patient = Patient {
        machine: &machine,
        cpus: machine.cpus(),
        wanted: &wanted,
        dpdk,
        xdp: &control::netlink::netdev::xdp,
    };
    let report = examine(&patient);
    assert!(report.findings.len() > 15, "{report:#?}");
    let form = |version: &str| version.starts_with("DPDK ") && version.split('.').count() == 3;
    assert!(form(&patient.dpdk.built) && form(&patient.dpdk.running), "{:?}", patient.dpdk);
}

/// Returns a machine on which every check finds its files.
fn full() -> Tree {
    let tree = Tree::two_nodes();
    tree.pci("0000:03:00.0", Some("vfio-pci"), "1");
    tree.link("sys/bus/pci/devices/0000:03:00.0/iommu_group", "../../../kernel/iommu_groups/7");
    for (path, text) in [
        (
            "proc/meminfo",
            "MemAvailable: 9000000 kB\nHugepagesize: 2048 kB\nCommitLimit: 1 kB\nCommitted_AS: 2 kB\n",
        ),
        ("proc/sys/vm/overcommit_memory", "2\n"),
        ("proc/sys/kernel/numa_balancing", "1\n"),
        ("proc/sys/net/core/bpf_jit_enable", "1\n"),
        ("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"),
        ("proc/self/limits", "Max locked memory  8388608  8388608  bytes\n"),
        ("proc/self/net/protocols", "XDP  1088\n"),
        ("proc/cpuinfo", "vendor_id : GenuineIntel\nmodel name : Some CPU\nflags : avx2\n"),
        ("proc/irq/30/effective_affinity_list", "1\n"),
        ("proc/irq/30/eth1/x", ""),
        ("proc/77/comm", "irqbalance\n"),
        ("etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=1\n"),
        ("sys/kernel/iommu_groups/7/devices/0000:03:00.1", ""),
        ("sys/class/iommu/dmar0/intel-iommu/ecap", "f0105e\n"),
        ("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N\n"),
        ("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "N\n"),
        ("lib/modules/6.1.0-41-amd64/modules.dep", "kernel/drivers/vfio/pci/vfio-pci.ko: x\n"),
        ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
        ("sys/devices/system/cpu/cpu1/cpuidle/state2/latency", "133\n"),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n"),
    ] {
        tree.write(path, text);
    }
    tree
}

/// With any content of the kernel's files, and with any of them absent, every check ends, and the
/// report can be printed.
#[test]
fn no_content_makes_a_check_panic() {
    let tree = full();
    let files = tree.files();
    let original: Vec<_> = files.iter().map(|file| tree.machine().read(file).unwrap()).collect();
    let ports = vec![pci("wan", "0000:03:00.0"), kernel("lan", "eth1")];
    let wanted = wanted(&[1, 9], ports);
    let changes = prop::collection::vec((0..files.len(), odd()), 1..30);
    let default = ProptestConfig::default();
    let config = ProptestConfig { cases: default.cases.div_ceil(5), ..default };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&changes, |changes| {
        for (file, content) in &changes {
            match content {
                Some(bytes) => tree.write(&files[*file], bytes),
                None if tree.machine().is_file(&files[*file]) => tree.remove(&files[*file]),
                None => {}
            }
        }
        let report = with(&tree, &wanted, examine);
        changes.iter().for_each(|(file, _)| tree.write(&files[*file], &original[*file]));
        prop_assert!(text(&report).contains("errors "));
        prop_assert!(serde_json::to_string(&report).is_ok());
        Ok(())
    });
    outcome.unwrap();
}

/// Content that the kernel would not write: none, bytes, or text similar to its own.
fn odd() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![
        Just(None),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Some),
        "[0-9a-fNY:,=\\-\n \u{b5}]{0,30}".prop_map(|text| Some(text.into_bytes())),
        Just(Some(b"18446744073709551615".to_vec())),
        Just(Some(b"-1".to_vec())),
        Just(Some(b"0-4095".to_vec())),
    ]
}

#[test]
fn ports_without_receive_interrupts_are_named() {
    let tree = Tree::new(&[]);
    let vdev = |name: &str, device: &str| {
        let device = Device::Vdev(device.to_owned());
        Port { name: name.to_owned(), device, ..kernel("", "") }
    };
    let found = |ports| found(interrupts::receive, &tree, &wanted(&[1], ports));
    assert_eq!(found(vec![]), []);
    assert_eq!(
        found(vec![kernel("lan", "eth0"), vdev("tap", "net_tap0")]),
        is(Fine, "of all ports")
    );
    let ports = vec![vdev("link", "net_memif0"), kernel("lan", "eth0"), vdev("sink", "net_null1")];
    assert_eq!(found(ports.clone()), is(Note, "not of link, sink"));
    let polled = ports.into_iter().map(|port| Port { blocks: false, ..port }).collect();
    assert_eq!(found(polled), []);
}

#[test]
fn control_queues_are_looked_at_for_each_port() {
    let tree = Tree::new(&[("proc/sys/kernel/osrelease", "6.12.0\n")]);
    let by_packet = Port { driver: Some(Driver::AfPacket), ..kernel("old", "eth2") };
    let without = Port { control_queue: false, ..kernel("none", "eth3") };
    let ports = vec![kernel("wan", "eth1"), by_packet, without, pci("nic", "0000:03:00.0")];
    let off = wanted(&[1], ports.clone());
    let shared = "control traffic comes by the queues of all packets";
    assert_eq!(found(control_queues::ports, &tree, &off), is(Note, shared));
    assert_eq!(found(control_queues::ports, &tree, &wanted(&[1], vec![])), []);
    let on = Wanted { control_queues: true, ..off };
    let of = |tree: &Tree| found(control_queues::ports, tree, &on);
    assert_eq!(
        of(&tree),
        [
            (Fine, "port \"wan\": by an XDP program".to_owned()),
            (Note, "port \"old\": by AF_PACKET, which has none".to_owned()),
            (Note, "port \"nic\": if its device has rules and an RSS table".to_owned()),
        ]
    );
    for queue in ["rx-0", "rx-1", "tx-0"] {
        tree.write(&format!("sys/class/net/eth1/queues/{queue}/x"), "");
    }
    let more = "port \"wan\": eth1 has 2 receive queues and the port uses 1";
    assert_eq!(of(&tree)[0], (Warning, more.to_owned()));
    let findings = with(&tree, &on, control_queues::ports);
    assert_eq!(findings[0].mend, ["ethtool -L eth1 combined 1"]);
    tree.write("proc/sys/kernel/osrelease", "6.1.0-41-amd64\n");
    let old = "port \"wan\": Linux 6.1 has no tcx, Linux 6.6 has";
    assert_eq!(of(&tree)[0], (Warning, old.to_owned()));
}
