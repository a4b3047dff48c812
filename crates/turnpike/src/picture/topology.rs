//! The machine drawn as a tree: nodes, caches, cores with their forwarders, ports.

use api::report::topology::{Core, Forwarder, Node, Topology, TopologyPort};
use machine::list_text;

use crate::wrap::wrap;

/// Columns of a terminal.
const WIDTH: usize = 80;

/// A line, and the branches below it.
struct Branch {
    label: String,
    below: Vec<Branch>,
}

/// Draws the nodes with their cores and ports, then the ports without a known node.
pub fn text(topology: &Topology) -> String {
    let mut lines = Vec::new();
    for node in &topology.nodes {
        draw(&of_node(node, topology), "", "", &mut lines);
    }
    let nowhere = ports(topology, |port| port.node.is_none());
    if !nowhere.is_empty() {
        let label = "no node known (virtual devices, other network namespaces)".to_owned();
        draw(&Branch { label, below: nowhere }, "", "", &mut lines);
    }
    lines.join("\n")
}

/// Draws a branch, whose first line begins with `first` and whose others with `rest`.
fn draw(branch: &Branch, first: &str, rest: &str, lines: &mut Vec<String>) {
    let stem = if branch.below.is_empty() { "    " } else { "|   " };
    let width = WIDTH - rest.len() - stem.len();
    for (index, text) in wrap(&branch.label, width).iter().enumerate() {
        let margin = if index == 0 { first.to_owned() } else { format!("{rest}{stem}") };
        lines.push(format!("{margin}{text}"));
    }
    for (index, below) in branch.below.iter().enumerate() {
        let (corner, stem) =
            if index + 1 == branch.below.len() { ("`- ", "   ") } else { ("|- ", "|  ") };
        draw(below, &format!("{rest}{corner}"), &format!("{rest}{stem}"), lines);
    }
}

fn of_node(node: &Node, topology: &Topology) -> Branch {
    let mut below = of_caches(node, topology);
    below.extend(ports(topology, |port| port.node == Some(node.node)));
    Branch { label: node_label(node, topology), below }
}

fn node_label(node: &Node, topology: &Topology) -> String {
    let mut label = format!("node {}", node.node);
    if let (Some(total), Some(free)) = (node.memory_kb, node.free_kb) {
        label += &format!(": {}, {} free", size(total), size(free));
    }
    for pages in node.hugepages.iter().filter(|pages| pages.total > 0) {
        let (size, free, total) = (size(pages.size_kb), pages.free, pages.total);
        label += &format!("; hugepages of {size}: {free} of {total} free");
    }
    let others = topology.nodes.iter().zip(&node.distances);
    for (other, distance) in others.filter(|(other, _)| other.node != node.node) {
        label += &format!("; distance to node {}: {distance}", other.node);
    }
    label
}

/// Groups the cores by the cache that most of them share: the last one.
fn of_caches(node: &Node, topology: &Topology) -> Vec<Branch> {
    let mut groups: Vec<(String, Vec<&Core>)> = Vec::new();
    for core in &node.cores {
        let label = last_cache(core);
        match groups.last_mut() {
            Some((of_group, cores)) if *of_group == label => cores.push(core),
            _ => groups.push((label, vec![core])),
        }
    }
    let branch =
        |(label, cores): (String, Vec<&Core>)| Branch { label, below: of_cores(&cores, topology) };
    groups.into_iter().map(branch).collect()
}

/// Describes the last cache, if other cores share it, with those.
fn last_cache(core: &Core) -> String {
    match core.caches.last().filter(|cache| cache.level > 2) {
        Some(cache) => {
            format!("L{} {} of cores {}", cache.level, size(cache.size_kb), list_text(&cache.cores))
        }
        None => "cores".to_owned(),
    }
}

/// Returns a branch for each core with forwarders, and one for all others.
fn of_cores(cores: &[&Core], topology: &Topology) -> Vec<Branch> {
    let forwarders = |core: &Core| -> Vec<&Forwarder> {
        topology.forwarders.iter().filter(|one| core.threads.contains(&one.core)).collect()
    };
    let mut branches = Vec::new();
    let mut free = Vec::new();
    for &core in cores {
        let here = forwarders(core);
        match here.is_empty() {
            true => free.push(list_text(&core.threads)),
            false => branches.push(of_core(core, &here)),
        }
    }
    if !free.is_empty() {
        let title = if branches.is_empty() { "no forwarder" } else { "others" };
        branches.push(Branch { label: format!("{title}: {}", free.join("  ")), below: Vec::new() });
    }
    branches
}

fn of_core(core: &Core, forwarders: &[&Forwarder]) -> Branch {
    let near = core.caches.iter().find(|cache| cache.level == 2);
    let near = near.map(|cache| {
        let shared = match cache.cores == core.threads {
            true => String::new(),
            false => format!(" shared by {}", list_text(&cache.cores)),
        };
        format!(" (L2 {}{shared})", size(cache.size_kb))
    });
    let label = format!("core {}{}", list_text(&core.threads), near.unwrap_or_default());
    let below = forwarders.iter().map(|forwarder| {
        let queues =
            forwarder.queues.iter().map(|queue| format!("{} rx {}", queue.port, queue.queue));
        let queues: Vec<String> = queues.collect();
        let queues = if queues.is_empty() { "no queue".to_owned() } else { queues.join(", ") };
        let Forwarder { forwarder, core, .. } = forwarder;
        Branch { label: format!("forwarder {forwarder} on {core}: {queues}"), below: Vec::new() }
    });
    Branch { label, below: below.collect() }
}

fn ports(topology: &Topology, wanted: impl Fn(&TopologyPort) -> bool) -> Vec<Branch> {
    let ports = topology.ports.iter().filter(|port| wanted(port));
    let label = |port: &TopologyPort| {
        let rx = port.rx.iter().enumerate();
        let rx: Vec<String> =
            rx.map(|(queue, forwarder)| format!("rx {queue} -> {forwarder}")).collect();
        let TopologyPort { name, device, driver, tx_queues, .. } = port;
        format!("port {name}: {device} by {driver}; {}; tx queues {tx_queues}", rx.join(", "))
    };
    ports.map(|port| Branch { label: label(port), below: Vec::new() }).collect()
}

fn size(kilobytes: usize) -> String {
    match kilobytes {
        size if size >= 10 << 20 => format!("{} GB", size >> 20),
        size if size >= 10 << 10 || size.is_multiple_of(1 << 10) && size > 0 => {
            format!("{} MB", size >> 10)
        }
        size => format!("{size} kB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::report::topology::{Cache, Hugepages, Queue};

    fn core(number: usize, node: usize) -> Core {
        let cache =
            |level, size_kb, cores: &[usize]| Cache { level, size_kb, cores: cores.to_vec() };
        let threads = vec![number, number + 4];
        let of_node = if node == 0 { [0, 1, 4, 5] } else { [2, 3, 6, 7] };
        let caches =
            vec![cache(1, 48, &threads), cache(2, 2048, &threads), cache(3, 32 << 10, &of_node)];
        Core { threads, package: Some(node), caches }
    }

    fn node(number: usize) -> Node {
        Node {
            node: number,
            memory_kb: Some(32 << 20),
            free_kb: Some(1 << 20),
            hugepages: vec![Hugepages { size_kb: 2048, total: 1024, free: 1000 }],
            distances: if number == 0 { vec![10, 21] } else { vec![21, 10] },
            cores: vec![core(2 * number, number), core(2 * number + 1, number)],
        }
    }

    fn forwarder(number: usize, core: usize, ports: &[&str]) -> Forwarder {
        let queue = |port: &&str| Queue { port: (*port).to_owned(), queue: number };
        let queues = ports.iter().map(queue).collect();
        Forwarder { forwarder: number, core, node: Some(core / 2), queues }
    }

    fn port(name: &str, device: &str, node: Option<usize>) -> TopologyPort {
        TopologyPort {
            name: name.to_owned(),
            device: device.to_owned(),
            driver: "net_ixgbe".to_owned(),
            node,
            rx: vec![0, 1],
            tx_queues: 2,
        }
    }

    #[test]
    fn a_machine_is_drawn_as_a_tree() {
        let topology = Topology {
            nodes: vec![node(0), node(1)],
            forwarders: vec![forwarder(0, 1, &["left", "tap"]), forwarder(1, 5, &[])],
            ports: vec![port("left", "0000:03:00.0", Some(1)), port("tap", "net_tap0", None)],
        };
        let expected = "\
node 0: 32 GB, 1024 MB free; hugepages of 2 MB: 1000 of 1024 free; distance
|   to node 1: 21
`- L3 32 MB of cores 0-1,4-5
   |- core 1,5 (L2 2 MB)
   |  |- forwarder 0 on 1: left rx 0, tap rx 0
   |  `- forwarder 1 on 5: no queue
   `- others: 0,4
node 1: 32 GB, 1024 MB free; hugepages of 2 MB: 1000 of 1024 free; distance
|   to node 0: 21
|- L3 32 MB of cores 2-3,6-7
|  `- no forwarder: 2,6 3,7
`- port left: 0000:03:00.0 by net_ixgbe; rx 0 -> 0, rx 1 -> 1; tx queues 2
no node known (virtual devices, other network namespaces)
`- port tap: net_tap0 by net_ixgbe; rx 0 -> 0, rx 1 -> 1; tx queues 2";
        assert_eq!(text(&topology), expected);
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let mut wide = port("a-long-port", "0000:83:00.0", Some(0));
        wide.rx = (0..64).collect();
        let mut large = node(0);
        large.cores = (0..128).map(|number| core(2 * number, 0)).collect();
        let topology = Topology { nodes: vec![large], forwarders: vec![], ports: vec![wide] };
        let text = text(&topology);
        assert!(
            text.lines().all(|line| line.len() <= WIDTH) && text.lines().count() > 10,
            "{text}"
        );
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            [48, 512, 1024, 1280, 32 << 10, 24 << 20].map(size),
            ["48 kB", "512 kB", "1 MB", "1280 kB", "32 MB", "24 GB"]
        );
    }
}
