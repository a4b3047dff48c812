//! Drawings of the graph: as text, as DOT for Graphviz, as mermaid for Markdown; each with the
//! number of packets on each edge.

pub mod topology;

use std::fmt::Write;

use api::report::{Edge, Graph};
use dataplane::words::count;

/// Draws the steps in the order of execution, each with its outputs.
pub fn text(graph: &Graph) -> String {
    let mut text = String::new();
    for step in &graph.steps {
        let _ = writeln!(text, "{}  {}", step.name, count(step.packets as usize, "packet"));
        let width = step.outputs.iter().map(|edge| edge.name.len()).max().unwrap_or(0);
        for (index, edge) in step.outputs.iter().enumerate() {
            let corner = if index + 1 == step.outputs.len() { '`' } else { '|' };
            let Edge { name, to, packets } = edge;
            let _ = writeln!(text, "  {corner}- {name:width$} -> {to:<22} {packets:>12}");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// Draws a directed graph in Graphviz's language; edges with packets are bold.
pub fn dot(graph: &Graph) -> String {
    let mut text = String::from(
        "digraph turnpike {\n  rankdir=LR;\n  node [shape=box, fontname=monospace];\n  \
         edge [fontname=monospace, fontsize=10];\n  \"transmit\" [shape=ellipse];\n  \
         \"replicate\" [shape=ellipse];\n  \"slow-path\" [shape=ellipse];\n  \"drop\" [shape=ellipse];\n",
    );
    for step in &graph.steps {
        let _ = writeln!(text, "  \"{0}\" [label=\"{0}\\n{1}\"];", step.name, step.packets);
        for edge in &step.outputs {
            let style = if edge.packets > 0 { "bold" } else { "solid" };
            let _ = writeln!(
                text,
                "  \"{}\" -> \"{}\" [label=\"{} {}\", style={style}];",
                step.name, edge.to, edge.name, edge.packets
            );
        }
    }
    text.push('}');
    text
}

/// Draws a mermaid flowchart.
pub fn mermaid(graph: &Graph) -> String {
    let mut text = String::from("flowchart LR\n");
    for end in ["transmit", "replicate", "slow-path", "drop"] {
        let _ = writeln!(text, "  {end}([{end}])");
    }
    for step in &graph.steps {
        let _ = writeln!(text, "  {0}[\"{0}<br/>{1}\"]", step.name, step.packets);
        for edge in &step.outputs {
            let arrow = if edge.packets > 0 { "==>" } else { "-->" };
            let _ = writeln!(
                text,
                "  {} {arrow}|\"{} {}\"| {}",
                step.name, edge.name, edge.packets, edge.to
            );
        }
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::report::Step;

    fn graph() -> Graph {
        let edge =
            |name: &str, to: &str, packets| Edge { name: name.into(), to: to.into(), packets };
        Graph {
            steps: vec![
                Step {
                    name: "classify".into(),
                    packets: 3,
                    outputs: vec![edge("ip4", "ip4-ttl", 3), edge("runt", "drop", 0)],
                },
                Step {
                    name: "ip4-ttl".into(),
                    packets: 3,
                    outputs: vec![edge("ok", "transmit", 2), edge("ttl", "slow-path", 1)],
                },
            ],
        }
    }

    #[test]
    fn text_shows_order_and_counts() {
        let expected = "\
classify  3 packets
  |- ip4  -> ip4-ttl                           3
  `- runt -> drop                              0
ip4-ttl  3 packets
  |- ok  -> transmit                          2
  `- ttl -> slow-path                         1";
        assert_eq!(text(&graph()), expected);
    }

    #[test]
    fn dot_names_nodes_and_edges() {
        let dot = dot(&graph());
        assert!(dot.starts_with("digraph turnpike {") && dot.ends_with('}'));
        assert!(dot.contains("\"classify\" -> \"ip4-ttl\" [label=\"ip4 3\", style=bold];"));
        assert!(dot.contains("\"classify\" -> \"drop\" [label=\"runt 0\", style=solid];"));
    }

    #[test]
    fn mermaid_names_nodes_and_edges() {
        let mermaid = mermaid(&graph());
        assert!(mermaid.starts_with("flowchart LR\n"));
        assert!(mermaid.contains("  ip4-ttl[\"ip4-ttl<br/>3\"]"));
        assert!(mermaid.contains("  ip4-ttl ==>|\"ttl 1\"| slow-path"));
    }
}
