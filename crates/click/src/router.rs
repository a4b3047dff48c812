//! Elements, connections and classes of a configuration, before compound elements are expanded.
//!
//! Names mean here what they mean to Click: a name that is a class, declared or used as one before, makes an element
//! without a name; a name of an element is a reference; any other is an unknown class, and makes an element of it.
//! Each compound element, each group and each compound in use is joined with its surroundings by *tunnels*: pairs of
//! pseudoelements, of which one takes the connections that the other gives.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::error::Error;
use crate::flat::Requirement;
use crate::source::Source;
use crate::syntax::{
    Ast, Chain, Class, Config, Link, Member, PortList, Statement, Subject, Variant,
};
use crate::text;

/// Errors that are reported at once.
const MOST_ERRORS: usize = 20;

/// Variables of a scope.
const MOST_VARIABLES: usize = 1024;

/// Number of a class in [`Classes`].
pub(crate) type ClassId = usize;

/// The class of tunnels.
pub(crate) const TUNNEL: ClassId = 0;

#[derive(Debug)]
pub(crate) enum Kind {
    /// A pseudoelement.
    Tunnel,
    /// An element of its own.
    Primitive(String),
    /// Another name for a class.
    Synonym(String, ClassId),
    Compound(Box<Compound>),
}

#[derive(Debug)]
pub(crate) struct Compound {
    /// Empty without a name.
    pub name: String,
    pub router: Router,
    /// Keywords, which are empty for positional parameters, and names.
    pub parameters: Vec<(String, String)>,
    pub inputs: usize,
    pub outputs: usize,
    /// The alternative if this one does not fit.
    pub overload: Option<ClassId>,
    pub at: usize,
}

#[derive(Debug)]
pub(crate) struct Classes {
    pub kinds: Vec<Kind>,
    primitives: HashMap<String, ClassId>,
}

/// Elements and connections in one scope.
#[derive(Debug, Default)]
pub(crate) struct Router {
    /// Compound elements around its declaration.
    pub depth: usize,
    pub nodes: Vec<Node>,
    pub names: HashMap<String, usize>,
    pub wires: Vec<Wire>,
    known: HashSet<((usize, usize), (usize, usize))>,
    pub defines: Vec<(String, String)>,
    pub requirements: Vec<Requirement>,
    classes: HashMap<String, ClassId>,
    parameters: Vec<(String, String)>,
}

/// An element. Names of elements without a name begin with `;` until all are known.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub name: String,
    pub class: ClassId,
    pub config: String,
    pub at: usize,
    /// Numbers of inputs and outputs in use, of an element of a compound.
    pub counts: (usize, usize),
    /// The other pseudoelement, which takes the packets that come to this one.
    pub tunnel_output: Option<usize>,
    pub tunnel_input: Option<usize>,
    /// Its connections, by their numbers.
    pub wires: Vec<usize>,
}

/// A connection: element and port at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub from: (usize, usize),
    pub to: (usize, usize),
    pub at: usize,
}

impl Classes {
    fn add(&mut self, kind: Kind) -> ClassId {
        self.kinds.push(kind);
        self.kinds.len() - 1
    }

    /// Name of a class, empty for a compound without one.
    pub fn name(&self, id: ClassId) -> &str {
        match &self.kinds[id] {
            Kind::Tunnel => "",
            Kind::Primitive(name) => name,
            Kind::Synonym(name, _) => name,
            Kind::Compound(compound) => &compound.name,
        }
    }
}

impl Node {
    fn new(name: &str, class: ClassId, config: &str, at: usize) -> Node {
        let (name, config) = (name.to_owned(), config.to_owned());
        Node {
            name,
            class,
            config,
            at,
            counts: (0, 0),
            tunnel_output: None,
            tunnel_input: None,
            wires: Vec::new(),
        }
    }
}

impl Router {
    /// The element with a name, which is made if there is none.
    pub fn get(&mut self, name: &str, class: ClassId, config: &str, at: usize) -> usize {
        if let Some(&known) = self.names.get(name) {
            return known;
        }
        self.names.insert(name.to_owned(), self.nodes.len());
        self.nodes.push(Node::new(name, class, config, at));
        self.nodes.len() - 1
    }

    pub fn connect(&mut self, wire: Wire) {
        if !self.known.insert((wire.from, wire.to)) {
            return;
        }
        self.nodes[wire.from.0].wires.push(self.wires.len());
        if wire.from.0 != wire.to.0 {
            self.nodes[wire.to.0].wires.push(self.wires.len());
        }
        self.wires.push(wire);
    }

    /// Joins two pseudoelements, which are made if there are none; an error is the name that is taken.
    pub fn tunnel(&mut self, input: &str, output: &str, at: usize) -> Result<(), String> {
        let from = self.get(input, TUNNEL, "", at);
        let to = self.get(output, TUNNEL, "", at);
        let taken = |router: &Router, end: usize| router.nodes[end].class != TUNNEL;
        if taken(self, from) || self.nodes[from].tunnel_output.is_some() {
            return Err(input.to_owned());
        }
        if taken(self, to) || self.nodes[to].tunnel_input.is_some() {
            return Err(output.to_owned());
        }
        self.nodes[from].tunnel_output = Some(to);
        self.nodes[to].tunnel_input = Some(from);
        Ok(())
    }

    /// Name of an element without one: its number is its place among all elements of the scope.
    fn anonymous(&self, class: &str) -> String {
        let pseudoelements = if self.depth == 0 { 0 } else { 2 };
        format!(";{class}@{}", self.nodes.len() - pseudoelements + 1)
    }

    /// Gives elements without a name theirs; a number that is taken is counted up.
    fn name_anonymous(&mut self) {
        // Numbers that are known to be taken, by class, so that none is looked up twice.
        let mut taken: HashMap<String, std::ops::Range<usize>> = HashMap::new();
        for index in 0..self.nodes.len() {
            let Some(name) = self.nodes[index].name.strip_prefix(';') else { continue };
            let mut name = name.to_owned();
            let (prefix, first) = numbered(&name);
            let mut number = first;
            while self.names.contains_key(&name) {
                let known = taken.get(&prefix).filter(|known| known.contains(&number));
                number = known.map_or(number + 1, |known| known.end);
                name = format!("{prefix}@{number}");
            }
            if number > first {
                taken.insert(prefix, first..number);
            }
            self.names.remove(&self.nodes[index].name);
            self.names.insert(name.clone(), index);
            self.nodes[index].name = name;
        }
    }

    fn is_defined(&self, variable: &str) -> bool {
        let parameter = self.parameters.iter().any(|(_, name)| name == variable);
        parameter || self.defines.iter().any(|(name, _)| name == variable)
    }
}

/// `Class@12` and `Class@12/input` into the class and the number.
fn numbered(name: &str) -> (String, usize) {
    let Some((prefix, number)) = name.rsplit_once('@') else { return (name.to_owned(), 1) };
    let digits = number.split('/').next().unwrap_or_default();
    (prefix.to_owned(), digits.parse().unwrap_or(0))
}

/// A configuration whose names are resolved.
#[derive(Debug)]
pub(crate) struct Program {
    pub classes: Classes,
    pub router: Router,
}

/// Resolves the names of a configuration.
pub(crate) fn program(ast: &Ast) -> (Program, Vec<Error>) {
    let classes = Classes { kinds: vec![Kind::Tunnel], primitives: HashMap::new() };
    let scopes = vec![Router::default()];
    let mut builder =
        Builder { source: &ast.source, classes, scopes, errors: Vec::new(), unnamed: 0 };
    builder.statements(&ast.statements);
    let mut router = builder.scopes.pop().expect("the scope of the file");
    router.name_anonymous();
    (Program { classes: builder.classes, router }, builder.errors)
}

struct Builder<'a> {
    source: &'a Source,
    classes: Classes,
    /// Scopes of the compounds around the current statement, and its own at the end.
    scopes: Vec<Router>,
    errors: Vec<Error>,
    /// Compounds without a name so far.
    unnamed: usize,
}

/// An element of a connection, and the ports written beside it.
struct End {
    element: usize,
    inputs: Side,
    outputs: Side,
}

#[derive(Clone, Default)]
struct Side {
    ports: Vec<usize>,
    open: bool,
}

/// A member of which only the class is known.
struct Draft<'m> {
    member: &'m Member,
    name: String,
    class: Option<ClassId>,
    declared: Option<ClassId>,
    inputs: Side,
    outputs: Side,
}

impl Side {
    fn of(list: Option<&PortList>) -> Side {
        list.map_or_else(Side::default, |list| Side { ports: list.ports.clone(), open: list.open })
    }

    fn counted(ports: usize) -> Side {
        Side { ports: (0..ports).collect(), open: false }
    }

    fn is_written(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Ports at least.
    fn least(&self) -> usize {
        self.ports.len().max(1)
    }
}

impl Builder<'_> {
    fn scope(&mut self) -> &mut Router {
        self.scopes.last_mut().expect("the scope of the file")
    }

    fn error(&mut self, at: usize, message: impl Into<String>) {
        let error = self.source.error(at, message);
        if self.errors.len() < MOST_ERRORS && !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            match statement {
                Statement::Chain(chain) => self.chain(chain),
                Statement::Class { at, name, class } => self.class_declaration(*at, name, class),
                Statement::Require(config) => self.require(config),
                Statement::Define(config) => self.define(config),
            }
        }
    }

    // --- classes ---

    fn declared_class(&self, name: &str) -> Option<ClassId> {
        self.scopes.iter().rev().find_map(|scope| scope.classes.get(name)).copied()
    }

    fn known_class(&self, name: &str) -> Option<ClassId> {
        self.declared_class(name).or_else(|| self.classes.primitives.get(name).copied())
    }

    /// The class with a name, which is taken for a primitive one if it is not known.
    fn force_class(&mut self, at: usize, name: &str) -> ClassId {
        if let Some(known) = self.known_class(name) {
            return known;
        }
        if self.scope().names.contains_key(name) {
            self.error(at, format!("\"{name}\" is the name of an element; expected a class"));
        }
        let id = self.classes.add(Kind::Primitive(name.to_owned()));
        self.classes.primitives.insert(name.to_owned(), id);
        id
    }

    fn class_declaration(&mut self, at: usize, declared: &str, class: &Class) {
        if self.scope().names.contains_key(declared) {
            return self.error(at, format!("\"{declared}\" is the name of an element already"));
        }
        let id = match class {
            Class::Name { at, name } => {
                let of = self.force_class(*at, name);
                self.classes.add(Kind::Synonym(declared.to_owned(), of))
            }
            Class::Compound { .. } => self.class(declared, class),
        };
        self.scope().classes.insert(declared.to_owned(), id);
    }

    fn class(&mut self, name: &str, class: &Class) -> ClassId {
        match class {
            Class::Name { at, name } => self.force_class(*at, name),
            Class::Compound { at, variants, extends } => {
                self.compound(name, *at, variants, *extends)
            }
        }
    }

    fn compound(&mut self, name: &str, at: usize, variants: &[Variant], extends: bool) -> ClassId {
        if name.is_empty() {
            self.unnamed += 1;
        }
        if extends && name.is_empty() {
            self.error(
                at,
                "`...` in a compound element without a name; only a declared one can be extended",
            );
        }
        let ids: Vec<ClassId> =
            variants.iter().map(|variant| self.variant(name, variant)).collect();
        let extended = extends.then(|| self.extended_class(at, name, ids[ids.len() - 1]));
        let next = ids[1..].iter().copied().map(Some).chain([extended]);
        for (&id, next) in ids.iter().zip(next) {
            if let Kind::Compound(compound) = &mut self.classes.kinds[id] {
                compound.overload = next;
            }
        }
        ids[0]
    }

    /// The class that `...` stands for. As in Click the name is looked up in the alternative before it first.
    fn extended_class(&mut self, at: usize, name: &str, before: ClassId) -> ClassId {
        let Kind::Compound(before) = &self.classes.kinds[before] else {
            return self.force_class(at, name);
        };
        match before.router.classes.get(name) {
            Some(&own) => own,
            None => self.force_class(at, name),
        }
    }

    fn variant(&mut self, name: &str, variant: &Variant) -> ClassId {
        let mut router = Router { depth: self.scopes.len(), ..Router::default() };
        let input = router.get("input", TUNNEL, "", variant.at);
        let output = router.get("output", TUNNEL, "", variant.at);
        self.scopes.push(router);
        self.parameters(variant);
        self.statements(&variant.statements);
        let shown = self.shown(name);
        let inputs = self.check_pseudoelement(input, false, &shown, variant.at);
        let outputs = self.check_pseudoelement(output, true, &shown, variant.at);
        let mut router = self.scopes.pop().expect("the compound's scope");
        router.name_anonymous();
        router.count_ports();
        let parameters = router.parameters.clone();
        let (name, at) = (name.to_owned(), variant.at);
        let compound = Compound { name, router, parameters, inputs, outputs, overload: None, at };
        self.classes.add(Kind::Compound(Box::new(compound)))
    }

    fn shown(&self, name: &str) -> String {
        if name.is_empty() { format!("<anonymous{}>", self.unnamed) } else { name.to_owned() }
    }

    fn parameters(&mut self, variant: &Variant) {
        for parameter in &variant.parameters {
            let (at, name, keyword) = (parameter.at, &parameter.name, &parameter.keyword);
            let before = &self.scope().parameters;
            let last = before.last().map_or("", |(keyword, _)| keyword);
            let out_of_order = keyword.is_empty() && !last.is_empty() || last == "__REST__";
            let again = !keyword.is_empty() && before.iter().any(|(known, _)| known == keyword);
            if self.scope().is_defined(name) {
                self.error(at, format!("parameter ${name} appears twice"));
                continue;
            }
            if again {
                self.error(at, format!("keyword {keyword} appears twice"));
            }
            if out_of_order {
                let order = "positional ones, then keywords, then __REST__";
                self.error(at, format!("parameter ${name} is out of order; expected {order}"));
            }
            self.scope().parameters.push((keyword.clone(), name.clone()));
        }
    }

    /// Ports of a compound's `input` or `output`, which must be used from the first to the last.
    fn check_pseudoelement(&mut self, node: usize, is_output: bool, of: &str, at: usize) -> usize {
        let name = if is_output { "output" } else { "input" };
        let (to, from): (Vec<usize>, Vec<usize>) = self.scope().ports_in_use(node);
        let (used, wrong) = if is_output { (to, from) } else { (from, to) };
        if !wrong.is_empty() {
            let way = if is_output { "sends no packets" } else { "takes no packets" };
            self.error(
                at,
                format!("\"{of}\": pseudoelement \"{name}\" {way} inside of the compound"),
            );
        }
        let count = used.iter().max().map_or(0, |last| last + 1);
        let used: HashSet<usize> = used.into_iter().collect();
        for missing in (0..count).filter(|port| !used.contains(port)) {
            self.error(at, format!("\"{of}\" {name} {missing} missing; a higher one is used"));
        }
        count
    }

    // --- connections ---

    fn chain(&mut self, chain: &Chain) {
        let mut before: Option<Vec<End>> = None;
        for link in &chain.links {
            let ends = self.ends(link);
            match (before, link.arrow) {
                (Some(outputs), Some(arrow)) => self.connect(&outputs, &ends, arrow.at, arrow.wide),
                _ => self.check_useless(
                    &ends,
                    link,
                    |end| &end.inputs,
                    "input ports before the first element",
                ),
            }
            before = Some(ends);
        }
        if let (Some(ends), Some(link)) = (before, chain.links.last()) {
            self.check_useless(
                &ends,
                link,
                |end| &end.outputs,
                "output ports behind the last element",
            );
        }
    }

    fn check_useless(
        &mut self,
        ends: &[End],
        link: &Link,
        side: impl Fn(&End) -> &Side,
        which: &str,
    ) {
        let useless = ends.iter().zip(&link.members).find(|(end, _)| side(end).is_written());
        if let Some((_, member)) = useless {
            self.error(member.at, format!("{which} of a chain are not connected; remove them"));
        }
    }

    fn ends(&mut self, link: &Link) -> Vec<End> {
        let mut drafts: Vec<Draft> = Vec::with_capacity(link.members.len());
        for member in &link.members {
            let draft = self.draft(member, drafts.last());
            drafts.push(draft);
        }
        drafts.into_iter().map(|draft| self.end(draft)).collect()
    }

    fn draft<'m>(&mut self, member: &'m Member, last: Option<&Draft<'m>>) -> Draft<'m> {
        let (mut inputs, mut outputs) =
            (Side::of(member.inputs.as_ref()), Side::of(member.outputs.as_ref()));
        let (name, class) = match &member.subject {
            Subject::Name(name) => (name.clone(), self.known_class(name)),
            Subject::Compound(class) => (String::new(), Some(self.class("", class))),
            Subject::Implicit(name) => ((*name).to_owned(), None),
            Subject::Group(statements) => {
                let (name, ports) = self.group(statements, member.at);
                if !inputs.is_written() {
                    inputs = Side::counted(ports.0);
                }
                if !outputs.is_written() {
                    outputs = Side::counted(ports.1);
                }
                (name, None)
            }
        };
        let declared = match last.filter(|last| shares_class(last.member, member)) {
            Some(last) => last.declared,
            None => member.class.as_ref().map(|class| self.class("", class)),
        };
        if let Some(config) =
            member.config.as_ref().filter(|_| self.scope().names.contains_key(&name))
        {
            self.error(config.at, format!("element \"{name}\" exists already; its configuration belongs to its declaration"));
        }
        Draft { member, name, class, declared, inputs, outputs }
    }

    /// Finds or makes the element.
    fn end(&mut self, draft: Draft<'_>) -> End {
        let Draft { member, mut name, mut class, declared, inputs, outputs } = draft;
        let known = if class.is_none() { self.scope().names.get(&name).copied() } else { None };
        if let Some(element) = known {
            if declared.is_some() {
                let first = self.scope().nodes[element].at;
                let first = self.source.place(first);
                self.error(
                    member.at,
                    format!("element \"{name}\" is declared twice; first at {first}"),
                );
            }
            return End { element, inputs, outputs };
        }
        match declared {
            Some(of) if class.is_some() || name == self.classes.name(of) => {
                self.error(member.at, format!("class \"{name}\" used as the name of an element"));
            }
            None if class.is_none() => class = Some(self.force_class(member.at, &name)),
            _ => {}
        }
        if let Some(class) = class {
            name = self.scopes[self.scopes.len() - 1].anonymous(self.classes.name(class));
        }
        self.check_name(&name, member.at);
        let config = member.config.as_ref().map_or("", |config| &config.text);
        let class = class.or(declared).expect("a class");
        let element = self.scope().get(&name, class, config, member.at);
        End { element, inputs, outputs }
    }

    fn check_name(&mut self, name: &str, at: usize) {
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let name = name.trim_start_matches(';');
        if name.split('/').any(digits) {
            self.error(at, format!("element name \"{name}\" has a part of digits only"));
        }
    }

    /// Reads a group, and returns its name and numbers of ports.
    fn group(&mut self, statements: &[Statement], at: usize) -> (String, (usize, usize)) {
        let name = self.scope().anonymous("");
        let (inside, outside) = (format!("{name}/input"), format!("{name}/output"));
        let scope = self.scope();
        let joined = scope.tunnel(&name, &inside, at).and(scope.tunnel(&outside, &name, at));
        joined.expect("a new name");
        let (input, output) = (scope.names[&inside], scope.names[&outside]);
        let around = [("input", input), ("output", output)]
            .map(|(name, node)| (name, scope.names.insert(name.to_owned(), node)));
        self.statements(statements);
        let inputs = self.check_pseudoelement(input, false, "<anonymous group>", at);
        let outputs = self.check_pseudoelement(output, true, "<anonymous group>", at);
        for (name, node) in around {
            match node {
                Some(node) => self.scope().names.insert(name.to_owned(), node),
                None => self.scope().names.remove(name),
            };
        }
        (name, (inputs, outputs))
    }

    fn connect(&mut self, outputs: &[End], inputs: &[End], at: usize, wide: bool) {
        let from: Vec<(usize, &Side)> =
            outputs.iter().map(|end| (end.element, &end.outputs)).collect();
        let to: Vec<(usize, &Side)> = inputs.iter().map(|end| (end.element, &end.inputs)).collect();
        let least =
            [&from, &to].map(|side| side.iter().map(|(_, ports)| ports.least()).sum::<usize>());
        let open = [&from, &to].map(|side| side.iter().filter(|(_, ports)| ports.open).count());
        if open[0] + open[1] > 1 {
            self.error(
                at,
                "more than one list of ports without an end at this arrow; write the ports",
            );
        }
        let open = self.open_sides(open, least, [&from, &to], wide);
        let many = [0, 1].map(|side| least[side] > 1 || open[side]);
        if many[0] && many[1] {
            self.check_counts(least, open, at, wide);
        }
        let extra = [0, 1]
            .map(|side| if open[side] { least[1 - side].saturating_sub(least[side]) } else { 0 });
        let (from, to) = (listed(&from, extra[0]), listed(&to, extra[1]));
        let pairs = match many {
            [true, true] => from.into_iter().zip(to).collect(),
            [true, false] => from.into_iter().map(|from| (from, to[0])).collect(),
            _ => to.into_iter().map(|to| (from[0], to)).collect::<Vec<_>>(),
        };
        for (from, to) in pairs {
            self.scope().connect(Wire { from, to, at });
        }
    }

    /// Sides (outputs, inputs) whose ports are as many as those of the other: `=>` counts unwritten ports too.
    fn open_sides(
        &self,
        open: [usize; 2],
        least: [usize; 2],
        sides: [&Vec<(usize, &Side)>; 2],
        wide: bool,
    ) -> [bool; 2] {
        let mut is_open = open.map(|count| count > 0);
        if open[0] + open[1] > 1 {
            is_open[usize::from(least[1] >= least[0])] = false;
        }
        for side in 0..2 {
            let unwritten = !sides[side][0].1.is_written();
            is_open[side] |= wide && unwritten && least[side] == 1 && least[1 - side] > 1;
        }
        is_open
    }

    fn check_counts(&mut self, least: [usize; 2], open: [bool; 2], at: usize, wide: bool) {
        let [outputs, inputs] = least;
        if !wide {
            self.error(
                at,
                format!("{outputs} outputs connected to {inputs} inputs by `->`; write `=>`"),
            );
        }
        let fits = match open {
            [false, false] => outputs == inputs,
            [_, false] => outputs <= inputs,
            [false, _] => inputs <= outputs,
            [true, true] => true,
        };
        if !fits {
            let or_more = |side: usize| if open[side] { " or more" } else { "" };
            self.error(
                at,
                format!(
                    "{outputs}{} outputs connected to {inputs}{} inputs",
                    or_more(0),
                    or_more(1)
                ),
            );
        }
    }

    // --- require, define ---

    fn require(&mut self, config: &Config) {
        for argument in text::split_arguments(&config.text) {
            let words: Vec<String> = text::split_words(&argument)
                .into_iter()
                .map(|word| String::from_utf8_lossy(&text::unquote(word)).into_owned())
                .collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (kind, value) = match words[..] {
                [] => continue,
                ["compact_config"] => ("compact_config", ""),
                ["library", file] => {
                    let message =
                        format!("library \"{file}\" is not read; put its text into this file");
                    self.error(config.at, message);
                    continue;
                }
                ["package", package] | [package] => ("package", package),
                _ => {
                    self.error(config.at, format!("require({argument}); expected `package NAME`"));
                    continue;
                }
            };
            self.scope().requirements.push(Requirement { kind: kind.into(), value: value.into() });
        }
    }

    fn define(&mut self, config: &Config) {
        for argument in text::split_arguments(&config.text).iter().filter(|text| !text.is_empty()) {
            let (word, value) = text::first_word(argument);
            let name = word.strip_prefix('$').filter(|name| is_variable(name));
            let Some(name) = name else {
                self.error(config.at, format!("define({argument}); expected `$NAME VALUE`"));
                continue;
            };
            if self.scope().is_defined(name) {
                self.error(config.at, format!("variable ${name} is defined twice"));
                continue;
            }
            if self.scope().defines.len() == MOST_VARIABLES {
                return self.error(config.at, format!("more than {MOST_VARIABLES} variables"));
            }
            self.scope().defines.push((name.to_owned(), value.to_owned()));
        }
    }
}

impl Router {
    /// Inputs and outputs of an element with a connection.
    pub fn ports_in_use(&self, node: usize) -> (Vec<usize>, Vec<usize>) {
        let wires = || self.nodes[node].wires.iter().map(|&wire| &self.wires[wire]);
        let inputs = wires().filter(|wire| wire.to.0 == node).map(|wire| wire.to.1);
        let outputs = wires().filter(|wire| wire.from.0 == node).map(|wire| wire.from.1);
        (inputs.collect(), outputs.collect())
    }

    fn count_ports(&mut self) {
        for node in 0..self.nodes.len() {
            self.nodes[node].counts = self.port_counts(node);
        }
    }

    /// Numbers of inputs and outputs: one more than the highest with a connection.
    pub fn port_counts(&self, node: usize) -> (usize, usize) {
        let (inputs, outputs) = self.ports_in_use(node);
        let count = |ports: Vec<usize>| ports.into_iter().max().map_or(0, |last| last + 1);
        (count(inputs), count(outputs))
    }
}

/// If two members stand for `a, b :: Class`.
fn shares_class(first: &Member, second: &Member) -> bool {
    matches!((&first.class, &second.class), (Some(first), Some(second)) if Arc::ptr_eq(first, second))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Elements and ports of one side of an arrow, with as many more ports as the other side has.
fn listed(side: &[(usize, &Side)], extra: usize) -> Vec<(usize, usize)> {
    let lonely = side.len() == 1;
    let mut extra = extra;
    let mut all = Vec::new();
    for &(element, ports) in side {
        let first = if ports.is_written() { &ports.ports[..] } else { &[0] };
        all.extend(first.iter().map(|&port| (element, port)));
        if ports.open || lonely && !ports.is_written() {
            let next = first[first.len() - 1] + 1;
            all.extend((next..next + extra).map(|port| (element, port)));
            extra = 0;
        }
    }
    all
}
