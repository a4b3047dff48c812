//! Expansion of compound elements.
//!
//! The elements of a compound `outer` become `outer/inner`, with the compound's arguments in place of its parameters.
//! First each compound in use is replaced by two tunnels, from `outer` to `outer/input` and from `outer/output` to
//! `outer`, and its elements are appended. Then each connection is followed through tunnels to the elements at its
//! ends, and tunnels are left out. The order of elements and the names are those of `click-flatten`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use crate::arguments::assign;
use crate::error::{Error, Errors};
use crate::flat::{Connection, Element, Flat};
use crate::grammar::is_config;
use crate::router::{
    ClassId, Classes, Compound, Kind, Node, Program, Router, TUNNEL, Wire, program,
};
use crate::source::Source;
use crate::syntax::Ast;
use crate::text;
use crate::variables::{Budget, Scope};

/// Elements of an expanded configuration, with two for each compound.
const MOST_ELEMENTS: usize = 1 << 16;
/// Connections of an expanded configuration.
const MOST_CONNECTIONS: usize = 1 << 18;
/// Bytes of names and configuration strings that an expansion writes.
const MOST_BYTES: usize = 32 << 20;
/// Compound elements inside of each other.
const DEEPEST: usize = 64;
/// Errors that are reported at once.
const MOST_ERRORS: usize = 20;

/// Expands the compound elements of a configuration; `parameters` replace the values of its own variables.
pub fn flatten(ast: &Ast, parameters: &[(String, String)]) -> Result<Flat, Errors> {
    let (program, errors) = program(ast);
    Errors::check(errors)?;
    let budget = Budget::new(MOST_BYTES);
    let scope = Rc::new(outermost(&program.router, parameters, &budget));
    let mut expansion = Expansion::new(&ast.source, &program, &budget);
    for node in 0..program.router.nodes.len() {
        expansion.node(&program.router.nodes[node], Some(node), "", &scope, 0);
    }
    expansion.check_bounds(&program.router.nodes);
    let Expansion { out, errors, .. } = expansion;
    Errors::check(errors)?;
    joined(&ast.source, &program.classes, out)
}

/// Variables of the whole configuration.
fn outermost(router: &Router, parameters: &[(String, String)], budget: &Budget) -> Scope {
    let mut scope = Scope::default();
    for (name, value) in &router.defines {
        let given = parameters.iter().find(|(given, _)| given == name);
        let value = given.map_or(value, |(_, value)| value);
        scope.define(name, scope.expand(value, budget));
    }
    for (name, value) in parameters {
        scope.define(name, value.clone());
    }
    scope
}

struct Expansion<'a> {
    source: &'a Source,
    classes: &'a Classes,
    budget: &'a Budget,
    out: Router,
    errors: Vec<Error>,
    too_deep: bool,
}

impl<'a> Expansion<'a> {
    fn new(source: &'a Source, program: &'a Program, budget: &'a Budget) -> Expansion<'a> {
        let router = &program.router;
        let mut out = Router::default();
        out.requirements.clone_from(&router.requirements);
        for node in &router.nodes {
            out.names.insert(node.name.clone(), out.nodes.len());
            out.nodes.push(Node { wires: Vec::new(), ..node.clone() });
        }
        for &wire in &router.wires {
            out.connect(wire);
        }
        let classes = &program.classes;
        Expansion { source, classes, budget, out, errors: Vec::new(), too_deep: false }
    }

    fn error(&mut self, at: usize, message: impl Into<String>) {
        if self.errors.len() < MOST_ERRORS {
            self.errors.push(self.source.error(at, message));
        }
    }

    fn is_full(&self) -> bool {
        self.budget.is_spent()
            || self.out.nodes.len() > MOST_ELEMENTS
            || self.out.wires.len() > MOST_CONNECTIONS
    }

    fn check_bounds(&mut self, nodes: &[Node]) {
        let at = nodes.first().map_or(0, |node| node.at);
        if self.is_full() {
            let most = format!(
                "{MOST_ELEMENTS} elements, {MOST_CONNECTIONS} connections or {MOST_BYTES} bytes"
            );
            self.error(
                at,
                format!("configuration expands to more than {most}; use fewer compound elements"),
            );
        }
        if self.too_deep {
            self.error(at, format!("compound elements nested more than {DEEPEST} deep"));
        }
    }

    /// Expands an element, and returns its number in the result; `place` is that of an element of the outermost scope.
    fn node(
        &mut self,
        node: &Node,
        place: Option<usize>,
        prefix: &str,
        scope: &Rc<Scope>,
        depth: usize,
    ) -> Option<usize> {
        if self.is_full() {
            return None;
        }
        self.budget.spend(prefix.len() + node.name.len());
        match &self.classes.kinds[node.class] {
            Kind::Tunnel | Kind::Primitive(_) => {
                self.primitive(node, node.class, place, prefix, scope)
            }
            _ => self.resolved(node, place, prefix, scope, depth),
        }
    }

    fn primitive(
        &mut self,
        node: &Node,
        class: ClassId,
        place: Option<usize>,
        prefix: &str,
        scope: &Scope,
    ) -> Option<usize> {
        let config = scope.expand(&node.config, self.budget);
        if let Some(place) = place {
            self.out.nodes[place].class = class;
            self.out.nodes[place].config = config;
            return Some(place);
        }
        let name = format!("{prefix}{}", node.name);
        if class == TUNNEL {
            return Some(self.out.get(&name, TUNNEL, "", node.at));
        }
        if let Some(&first) = self.out.names.get(&name) {
            self.declared_twice(&name, node.at, first);
        }
        Some(self.out.get(&name, class, &config, node.at))
    }

    fn declared_twice(&mut self, name: &str, at: usize, first: usize) {
        let first = self.source.place(self.out.nodes[first].at);
        self.error(at, format!("element \"{name}\" is declared twice; first at {first}"));
    }

    /// Expands an element whose class depends on its arguments and ports.
    fn resolved(
        &mut self,
        node: &Node,
        place: Option<usize>,
        prefix: &str,
        scope: &Rc<Scope>,
        depth: usize,
    ) -> Option<usize> {
        let arguments = text::split_arguments(&scope.expand(&node.config, self.budget));
        let ports = self.ports_of(node, place);
        let (class, values) = self.resolve(node, node.class, ports, &arguments)?;
        let Kind::Compound(compound) = &self.classes.kinds[class] else {
            return self.primitive(node, class, place, prefix, scope);
        };
        self.compound(node, compound, &values, (place, prefix, scope), depth)
    }

    /// Numbers of ports in use.
    fn ports_of(&self, node: &Node, place: Option<usize>) -> (usize, usize) {
        match place {
            Some(place) => self.out.port_counts(place),
            None => node.counts,
        }
    }

    /// The alternative of a class that fits the ports and arguments, or the one whose errors will be the clearest.
    fn resolve(
        &mut self,
        node: &Node,
        class: ClassId,
        ports: (usize, usize),
        arguments: &[String],
    ) -> Option<(ClassId, Vec<String>)> {
        let candidates = self.candidates(class);
        self.budget.spend(candidates.len() * 16);
        let mut closest = None;
        for &id in &candidates {
            let Kind::Compound(compound) = &self.classes.kinds[id] else {
                return Some((id, Vec::new()));
            };
            let Some(values) = assign(arguments, &compound.parameters) else { continue };
            if (compound.inputs, compound.outputs) == ports {
                return Some((id, values));
            }
            closest = Some((id, values));
        }
        if candidates.len() != 1 || closest.is_none() {
            self.no_match(node, class, ports, arguments.len(), &candidates);
        }
        closest
    }

    /// Alternatives of a class in their order; a primitive one is the last.
    fn candidates(&self, mut class: ClassId) -> Vec<ClassId> {
        let mut all = Vec::new();
        loop {
            match &self.classes.kinds[class] {
                Kind::Synonym(_, of) => {
                    class = *of;
                    continue;
                }
                Kind::Compound(compound) => {
                    all.push(class);
                    match compound.overload {
                        Some(next) => class = next,
                        None => return all,
                    }
                }
                _ => {
                    all.push(class);
                    return all;
                }
            }
        }
    }

    fn no_match(
        &mut self,
        node: &Node,
        class: ClassId,
        ports: (usize, usize),
        arguments: usize,
        candidates: &[ClassId],
    ) {
        let name = shown(self.classes.name(class));
        let used = format!("{}, {}", counted(arguments, "argument"), ported(ports));
        let known: Vec<String> = candidates.iter().filter_map(|&id| self.signature(id)).collect();
        let message = format!("no match for {name}[{used}]; candidates are {}", known.join(", "));
        self.error(node.at, message);
    }

    /// `Name(<arg>, KEYWORD)[1 input, 1 output] at FILE:LINE:COLUMN`
    fn signature(&self, class: ClassId) -> Option<String> {
        let Kind::Compound(compound) = &self.classes.kinds[class] else { return None };
        let keywords = compound.parameters.iter().map(|(keyword, _)| match keyword.as_str() {
            "" => "<arg>",
            "__REST__" => "...",
            keyword => keyword,
        });
        let keywords = keywords.collect::<Vec<_>>().join(", ");
        let ports = ported((compound.inputs, compound.outputs));
        let (name, place) = (shown(&compound.name), self.source.place(compound.at));
        Some(format!("{name}({keywords})[{ports}] at {place}"))
    }

    fn compound(
        &mut self,
        node: &Node,
        compound: &Compound,
        values: &[String],
        (place, prefix, scope): (Option<usize>, &str, &Rc<Scope>),
        depth: usize,
    ) -> Option<usize> {
        if depth == DEEPEST {
            self.too_deep = true;
            return None;
        }
        let name = format!("{prefix}{}", node.name);
        let inner = Rc::new(inner_scope(compound, values, scope, self.budget));
        if let Some(place) = place {
            self.out.nodes[place].class = TUNNEL;
        }
        let (input, output) = (format!("{name}/input"), format!("{name}/output"));
        for (from, to) in [(&name, &input), (&output, &name)] {
            if let Err(taken) = self.out.tunnel(from, to, node.at) {
                self.declared_twice(&taken, node.at, self.out.names[&taken]);
            }
        }
        self.contents(&compound.router, &format!("{name}/"), &inner, depth + 1);
        self.out.names.get(&name).copied()
    }

    /// Appends the elements and connections of a compound.
    fn contents(&mut self, router: &Router, prefix: &str, scope: &Rc<Scope>, depth: usize) {
        let mut numbers = Vec::with_capacity(router.nodes.len());
        for node in &router.nodes {
            numbers.push(self.node(node, None, prefix, scope, depth));
        }
        self.join_groups(router, &numbers);
        for wire in &router.wires {
            if let (Some(from), Some(to)) = (numbers[wire.from.0], numbers[wire.to.0]) {
                self.out.connect(Wire {
                    from: (from, wire.from.1),
                    to: (to, wire.to.1),
                    at: wire.at,
                });
            }
        }
        self.out.requirements.extend(router.requirements.iter().cloned());
    }

    /// Tunnels of groups in a compound are tunnels of its expansion.
    fn join_groups(&mut self, router: &Router, numbers: &[Option<usize>]) {
        for (node, number) in router.nodes.iter().zip(numbers) {
            let output = node.tunnel_output.and_then(|output| numbers[output]);
            if let (Some(from), Some(to)) = (*number, output) {
                self.out.nodes[from].tunnel_output = Some(to);
                self.out.nodes[to].tunnel_input = Some(from);
            }
        }
    }
}

fn inner_scope(
    compound: &Compound,
    values: &[String],
    around: &Rc<Scope>,
    budget: &Budget,
) -> Scope {
    let mut scope = Scope::declared_at(compound.router.depth, around);
    for ((_, name), value) in compound.parameters.iter().zip(values) {
        scope.define(name, value.clone());
    }
    for (name, value) in &compound.router.defines {
        scope.define(name, around.expand(value, budget));
    }
    scope
}

fn shown(name: &str) -> &str {
    if name.is_empty() { "<anonymous>" } else { name }
}

fn counted(count: usize, of: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {of}{plural}")
}

fn ported((inputs, outputs): (usize, usize)) -> String {
    format!("{}, {}", counted(inputs, "input"), counted(outputs, "output"))
}

// --- connections ----------------------------------------------------------------------------------

/// A port of an element.
type Port = (usize, usize);

/// Follows connections through tunnels, and leaves tunnels out.
fn joined(source: &Source, classes: &Classes, router: Router) -> Result<Flat, Errors> {
    Errors::check(unused_ports(source, &router))?;
    Errors::check(broken_configs(source, &router))?;
    let wires = straight(source, &router)?;
    let mut numbers = vec![usize::MAX; router.nodes.len()];
    let mut elements = Vec::new();
    for (index, node) in router.nodes.iter().enumerate() {
        if node.class != TUNNEL {
            numbers[index] = elements.len();
            elements.push(element(source, classes, node));
        }
    }
    let connections = wires.into_iter().map(|((from, to), at)| Connection {
        from: (numbers[from.0], from.1),
        to: (numbers[to.0], to.1),
        place: source.place(at),
    });
    let mut connections: Vec<Connection> = connections.collect();
    connections.sort_by_key(|connection| (connection.from, connection.to));
    let mut requirements = router.requirements;
    let mut seen = HashSet::new();
    requirements.retain(|requirement| seen.insert(requirement.clone()));
    Ok(Flat { elements, connections, requirements })
}

fn element(source: &Source, classes: &Classes, node: &Node) -> Element {
    let arguments = text::split_arguments(&node.config);
    Element {
        name: node.name.clone(),
        class: classes.name(node.class).to_owned(),
        config: text::join_arguments(&arguments),
        arguments,
        place: source.place(node.at),
    }
}

/// Configuration strings in which a variable's value has left a bracket or quote open.
fn broken_configs(source: &Source, router: &Router) -> Vec<Error> {
    let broken = router.nodes.iter().filter(|node| !is_config(&node.config));
    let error = |node: &Node| {
        let shown: String = node.config.chars().take(80).collect();
        let message = format!("\"{}\": brackets or quotes do not match in ({shown})", node.name);
        source.error(node.at, message)
    };
    broken.take(MOST_ERRORS).map(error).collect()
}

/// Ports of compound elements that are connected on one side only.
fn unused_ports(source: &Source, router: &Router) -> Vec<Error> {
    let inputs: HashSet<Port> = router.wires.iter().map(|wire| wire.to).collect();
    let outputs: HashSet<Port> = router.wires.iter().map(|wire| wire.from).collect();
    let mut errors = BTreeMap::new();
    for wire in &router.wires {
        let (from, to) = (&router.nodes[wire.from.0], &router.nodes[wire.to.0]);
        if let Some(other) = to.tunnel_output
            && !outputs.contains(&(other, wire.to.1))
        {
            let place = (0, wire.to);
            errors
                .entry(place)
                .or_insert_with(|| unused(router, wire.to.0, other, wire.to.1, false));
        }
        if let Some(other) = from.tunnel_input
            && !inputs.contains(&(other, wire.from.1))
        {
            let place = (1, wire.from);
            errors
                .entry(place)
                .or_insert_with(|| unused(router, other, wire.from.0, wire.from.1, true));
        }
    }
    errors.into_values().take(MOST_ERRORS).map(|(at, message)| source.error(at, message)).collect()
}

/// Position and error of a tunnel without connections behind it, or before it if `backwards`.
fn unused(
    router: &Router,
    input: usize,
    output: usize,
    port: usize,
    backwards: bool,
) -> (usize, String) {
    let (inside, outside) = (&router.nodes[input], &router.nodes[output]);
    let message = if outside.name == format!("{}/input", inside.name) {
        let name = &inside.name;
        if backwards {
            format!("\"{name}\" input {port} unused")
        } else {
            format!("\"{name}\" has no input {port}")
        }
    } else {
        let name = &outside.name;
        if backwards {
            format!("\"{name}\" has no output {port}")
        } else {
            format!("\"{name}\" output {port} unused")
        }
    };
    (outside.at, message)
}

/// Connections between elements, each with the position of its last part.
fn straight(source: &Source, router: &Router) -> Result<BTreeMap<(Port, Port), usize>, Errors> {
    let mut by_output: HashMap<Port, Vec<Wire>> = HashMap::new();
    for &wire in &router.wires {
        by_output.entry(wire.from).or_default().push(wire);
    }
    let mut found = BTreeMap::new();
    let mut steps = 0;
    for wire in router.wires.iter().filter(|wire| router.nodes[wire.from.0].class != TUNNEL) {
        let mut seen = HashSet::new();
        let mut open = vec![*wire];
        while let Some(next) = open.pop() {
            steps += 1;
            if steps > 8 * MOST_CONNECTIONS {
                let message =
                    format!("more than {MOST_CONNECTIONS} connections through compound elements");
                return Err(source.error(wire.at, message).into());
            }
            let end = &router.nodes[next.to.0];
            if end.class != TUNNEL {
                found.entry((wire.from, next.to)).or_insert(next.at);
            } else if let Some(output) = end.tunnel_output {
                let behind = by_output.get(&(output, next.to.1)).into_iter().flatten();
                open.extend(behind.filter(|wire| seen.insert((wire.from, wire.to))));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{parse, resolve};

    fn flat(text: &str) -> Result<Flat, Errors> {
        flatten(&parse("f", text)?, &[])
    }

    fn error(text: &str) -> String {
        flat(text).expect_err("an error").all()[0].message.clone()
    }

    #[test]
    fn parameters_replace_definitions() {
        let ast = parse("f", "define($a 1, $b <$a>); Message($a $b $c)").unwrap();
        let given = [("a".to_owned(), "2".to_owned()), ("c".to_owned(), "3".to_owned())];
        assert_eq!(flatten(&ast, &given).unwrap().elements[0].arguments, ["2 <2> 3"]);
    }

    #[test]
    fn elements_know_their_places() {
        let flat = flat("elementclass C {\n  x :: Idle } \n c :: C;\nIdle -> Discard").unwrap();
        let found: Vec<String> =
            flat.elements.iter().map(|e| format!("{} {}", e.name, e.place)).collect();
        assert_eq!(found, ["Idle@2 f:4:1", "Discard@3 f:4:9", "c/x f:2:3"]);
        assert_eq!(flat.connections[0].place.to_string(), "f:4:6");
        assert_eq!(flat.find("c/x"), Some(2));
    }

    #[test]
    fn expansions_are_bounded() {
        let level = |n: u32| format!("elementclass A{n} {{ A{0}; A{0}; A{0} }}\n", n + 1);
        let classes: String = (0..40).rev().map(level).collect();
        let text = format!("elementclass A40 {{ Idle }}\n{classes}A0;");
        assert!(error(&text).contains("expands to more than 65536 elements"), "{}", error(&text));
        let chain = |n: u32| format!("elementclass A{n} {{ A{} }}\n", n + 1);
        let classes: String = (0..1000).rev().map(chain).collect();
        let text = format!("elementclass A1000 {{ Idle }}\n{classes}A0;");
        assert!(error(&text).contains("nested more than 64 deep"));
    }

    #[test]
    fn no_name_has_a_part_of_digits_only() {
        assert!(error("12 :: Idle").contains("\"12\" has a part of digits only"));
        assert!(error("Idle -> 12/0800").contains("\"12/0800@2\" has a part of digits only"));
        assert!(flat("a1/2b :: Idle").is_ok());
    }

    #[test]
    fn values_of_variables_leave_no_bracket_open() {
        assert_eq!(
            error("define($a (1, $b 2)); Message($a)"),
            "\"Message@1\": brackets or quotes do not match in ((1)"
        );
        assert!(flat("define($a (1, $b 2)); Message($a, $b)").is_ok());
        assert!(flat("define($a '1, $b 2'); Message($b)").is_ok());
    }

    #[test]
    fn variables_are_bounded() {
        let defines: String =
            (1..60).map(|n| format!("define($v{n} $v{0}$v{0});", n - 1)).collect();
        assert!(
            error(&format!("define($v0 xxxxxxxx);{defines} Message($v59)"))
                .contains("expands to more than")
        );
    }

    #[test]
    fn connections_are_bounded() {
        let fan = "{ [0] -> [0]; [0] -> [1]; [1] -> [0]; [1] -> [1] }";
        let fans = format!("[0,1] => [0,1] {fan} ").repeat(100);
        let text = format!("a, b :: Idle; a {fans} [0,1] => [0,1] b");
        assert_eq!(flat(&text).unwrap().connections.len(), 4);
        let many =
            format!("elementclass C {{ Idle => [0-4000] {} }} {}", "x :: Idle", "C; ".repeat(100));
        assert!(error(&many).contains("262144 connections"));
        let long = format!("Idle -> {} Discard", "{ -> } -> ".repeat(15_000));
        assert_eq!(flat(&long).unwrap().connections.len(), 1);
    }

    /// Pieces of configurations, which are often right.
    fn configuration() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "a",
            "b",
            "C",
            "Idle",
            "Queue",
            "::",
            "->",
            "=>",
            "{",
            "}",
            "(",
            ")",
            "[1]",
            "[0,1]",
            "[]",
            ",",
            ";",
            "||",
            "|",
            "...",
            "$x",
            "K $y",
            "elementclass C {",
            "input ->",
            "-> output",
            "($x, 1)",
            "(\"$x\")",
            "define($x 1)",
            "require(p)",
            "require(package \"a, b $c\")",
            "require(\"\")",
            "a :: Idle;",
            "C -> C;",
            "\n# 3\n",
        ]);
        prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.join(" "))
    }

    proptest! {
        #[test]
        fn no_configuration_is_too_odd(text in configuration()) {
            if let Ok(first) = flat(&text) {
                let _ = resolve(&first);
                let printed = first.to_string();
                // An element of one scope may have the name of a class of another.
                let ambiguous = first.elements.iter().any(|e| first.find(&e.class).is_some());
                prop_assume!(!ambiguous);
                let again = flat(&printed).map_err(|errors| TestCaseError::fail(format!("{printed}\n{errors}")))?;
                prop_assert_eq!(again.to_string(), printed);
            }
        }
    }
}
