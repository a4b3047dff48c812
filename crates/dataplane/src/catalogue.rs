//! The catalogue of steps that graphs consist of: the built-in ones, and those of external modules.
//!
//! A [`StepSpec`] declares the facts about packets that a step requires and provides, so that a composition can
//! be checked before it runs:
//!
//! | fact | provided by |
//! |---|---|
//! | IPv4, IPv6 | `classify`: Ethertype, and the minimal header is present |
//! | valid | `ip4-validate`, `ip6-validate` |
//! | routed | the lookups: next hop and egress port are set |
//! | grouped | `ip4-multicast`, `ip6-multicast`: the egress ports of a multicast packet are set |
//! | rewritten | `ip4-rewrite`, `ip6-rewrite`: the Ethernet header is the egress port's |
//!
//! A step may follow any output whose packets have all facts that it requires; where paths join, the facts are
//! those common to all of them. To transmit, a packet must be routed and rewritten; to replicate, grouped.

use std::fmt;
use std::sync::Arc;

use crate::features::Feature;
use crate::graph::{Output, Step};
use crate::params::{Args, Param};
use crate::port::PortId;
use crate::tables::Tables;

/// Facts about the packets on an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts(u8);

impl Facts {
    /// No facts: any frame.
    pub const FRAME: Self = Self(0);
    /// Ethertype IPv4, and the bytes of the minimal header are present.
    pub const IP4: Self = Self(1);
    /// Ethertype IPv6, and the bytes of the header are present.
    pub const IP6: Self = Self(2);
    /// The IP header is valid, link padding is cut off.
    pub const VALID: Self = Self(4);
    /// Next hop and egress port are set.
    pub const ROUTED: Self = Self(8);
    /// The Ethernet header is the egress port's.
    pub const REWRITTEN: Self = Self(16);
    /// To a group, and the egress ports are set.
    pub const GROUPED: Self = Self(32);
    /// The facts that transmission requires.
    pub const SENDABLE: Self = Self::ROUTED.with(Self::REWRITTEN);

    /// These facts and those.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The facts common to both.
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns true if all of `wanted` are known.
    pub const fn satisfy(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Kinds of packets by their names in configurations.
    pub const NAMED: [(&str, Self); 7] = [
        ("frame", Self::FRAME),
        ("ip4", Self::IP4),
        ("ip6", Self::IP6),
        ("valid-ip4", Self::IP4.with(Self::VALID)),
        ("valid-ip6", Self::IP6.with(Self::VALID)),
        ("routed-ip4", Self::IP4.with(Self::VALID).with(Self::ROUTED)),
        ("routed-ip6", Self::IP6.with(Self::VALID).with(Self::ROUTED)),
    ];
}

/// For messages: `routed valid IPv4 packets`.
impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fact, word) in [
            (Self::GROUPED, "grouped "),
            (Self::REWRITTEN, "rewritten "),
            (Self::ROUTED, "routed "),
            (Self::VALID, "valid "),
        ] {
            if self.satisfy(fact) {
                f.write_str(word)?;
            }
        }
        f.write_str(match (self.satisfy(Self::IP4), self.satisfy(Self::IP6)) {
            (true, _) => "IPv4 packets",
            (_, true) => "IPv6 packets",
            _ => "frames",
        })
    }
}

/// By output: the facts that the step adds to those of its input.
pub type Provides = &'static [(&'static str, Facts)];

/// The context in which a step is made for one forwarder.
pub struct MakeContext<'a> {
    /// The step's name in the graph.
    pub name: &'a str,
    /// Its arguments.
    pub args: &'a Args,
    /// The tables that the forwarder reads.
    pub tables: &'a Arc<Tables>,
    /// The names of the router's ports, by their numbers.
    pub ports: &'a [String],
}

impl MakeContext<'_> {
    /// Returns the port of this name, if the router has it.
    pub fn port(&self, name: &str) -> Option<PortId> {
        let index = self.ports.iter().position(|port| port == name && !name.is_empty())?;
        PortId::new(index as u16)
    }
}

/// Makes a step for one forwarder.
pub type Make = Arc<dyn Fn(&MakeContext<'_>) -> Box<dyn Step> + Send + Sync>;

/// The outputs of a step as a function of its arguments.
type OutputsBy = Arc<dyn Fn(&Args) -> Vec<Output> + Send + Sync>;

#[derive(Clone)]
enum Outputs {
    Fixed(Vec<Output>),
    ByArgs(OutputsBy),
}

/// A kind of step: the facts that it requires and provides, its parameters, its outputs, and its constructor.
/// Graphs use it by name, any number of times, each time with its own arguments.
///
/// ```
/// # use dataplane::catalogue::{Facts, StepSpec}; use dataplane::graph::*; use dataplane::params::*;
/// # use dataplane::{Batch, Mask};
/// const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("low")];
/// struct Floor(u8);
/// impl Step for Floor {
///     fn outputs(&self) -> &[Output] { OUTPUTS }
///     fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
///         out[0] = input.filter(|i| batch.ip4(i).ttl >= self.0);
///         out[1] = input.without(out[0]);
///     }
/// }
/// let floor = Param::new("floor", Kind::Integer(1..=255), "the lowest TTL that passes");
/// let spec = StepSpec::new("ttl-floor", OUTPUTS, |context| {
///     Box::new(Floor(context.args.integer("floor") as u8))
/// });
/// let spec = spec.requires(Facts::IP4).param(floor.or(Arg::Integer(5)));
/// # assert_eq!(spec.name(), "ttl-floor");
/// ```
#[derive(Clone)]
pub struct StepSpec {
    name: String,
    outputs: Outputs,
    requires: Facts,
    provides: Provides,
    params: Vec<Param>,
    present_if: Option<Feature>,
    moves_data: bool,
    make: Option<Make>,
}

impl StepSpec {
    /// A step of this name with these outputs, which requires and provides no facts and has no parameters.
    pub fn new(
        name: &str,
        outputs: &[Output],
        make: impl Fn(&MakeContext<'_>) -> Box<dyn Step> + Send + Sync + 'static,
    ) -> Self {
        Self { make: Some(Arc::new(make)), ..Self::described(name, outputs.to_vec()) }
    }

    /// A step that is made by the builder of the graph, as with steps in Lua.
    pub fn described(name: &str, outputs: Vec<Output>) -> Self {
        Self {
            name: name.to_owned(),
            outputs: Outputs::Fixed(outputs),
            requires: Facts::FRAME,
            provides: &[],
            params: Vec::new(),
            present_if: None,
            moves_data: false,
            make: None,
        }
    }

    /// Sets the facts that must be known about the step's packets.
    pub fn requires(mut self, facts: Facts) -> Self {
        self.requires = facts;
        self
    }

    /// Sets the facts that are known about the packets of the step's outputs.
    pub fn provides(mut self, provides: Provides) -> Self {
        self.provides = provides;
        self
    }

    /// Adds a parameter; not one of [`Self::RESERVED`].
    pub fn param(mut self, param: Param) -> Self {
        self.params.push(param);
        self
    }

    /// Sets outputs that depend on the arguments, in place of fixed ones. The steps that are made
    /// must have the same.
    pub fn outputs_by(
        mut self,
        outputs: impl Fn(&Args) -> Vec<Output> + Send + Sync + 'static,
    ) -> Self {
        self.outputs = Outputs::ByArgs(Arc::new(outputs));
        self
    }

    /// Puts the step into the default graph only if a port has this feature.
    pub fn present_if(mut self, feature: Feature) -> Self {
        self.present_if = Some(feature);
        self
    }

    /// Declares that the step moves the beginning of frames by any number of bytes. Copies for mirror sessions then share
    /// no bytes with their originals.
    pub fn moves_data(mut self) -> Self {
        self.moves_data = true;
        self
    }

    /// Returns true if the step moves the beginning of frames.
    pub fn is_moving_data(&self) -> bool {
        self.moves_data
    }

    /// Keys of a step in a graph that are not arguments.
    pub const RESERVED: [&'static str; 2] = ["as", "when"];

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The feature by which ports enable it.
    pub fn feature(&self) -> Option<Feature> {
        self.present_if
    }

    pub(crate) fn outputs(&self, args: &Args) -> Vec<Output> {
        match &self.outputs {
            Outputs::Fixed(outputs) => outputs.clone(),
            Outputs::ByArgs(outputs) => outputs(args),
        }
    }

    pub(crate) fn required(&self) -> Facts {
        self.requires
    }

    /// Returns the facts about packets at this output, given the facts `before` at the input.
    pub(crate) fn behind(&self, output: &str, before: Facts) -> Facts {
        let provided = self.provides.iter().find(|(name, _)| *name == output);
        provided.map_or(before, |(_, facts)| before.with(*facts))
    }

    /// Makes the step; `None` for one that is only described.
    pub(crate) fn make(&self, context: &MakeContext<'_>) -> Option<Box<dyn Step>> {
        self.make.as_ref().map(|make| make(context))
    }
}

impl fmt::Debug for StepSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepSpec({})", self.name)
    }
}

/// All steps available to graphs.
#[derive(Clone, Debug)]
pub struct Catalogue {
    specs: Vec<StepSpec>,
    /// Features of the router itself, whose names and slots no other may have.
    own: &'static [Feature],
}

/// [`Catalogue::default`] has the built-in steps, see `steps/builtin.rs`.
impl Catalogue {
    pub(crate) fn of(specs: Vec<StepSpec>, own: &'static [Feature]) -> Self {
        Self { specs, own }
    }

    /// Adds a step.
    ///
    /// # Errors
    /// There is one of this name, it has a parameter with a reserved name, or its feature has the
    /// name or slot of another one.
    pub fn add(&mut self, spec: StepSpec) -> Result<(), String> {
        let name = &spec.name;
        if self.find(name).is_some() {
            return Err(format!("step \"{name}\" exists already; choose another name"));
        }
        let reserved = |param: &&Param| StepSpec::RESERVED.contains(&param.name());
        if let Some(param) = spec.params.iter().find(reserved) {
            let param = param.name();
            return Err(format!(
                "step \"{name}\": parameter \"{param}\" means something else; rename it"
            ));
        }
        let clashes = |known: &Feature| spec.present_if.is_some_and(|new| new.clashes(*known));
        if let Some(known) = self.features().iter().chain(self.own).find(|known| clashes(known)) {
            let known = known.name();
            return Err(format!(
                "step \"{name}\": its feature has the name or the slot of \"{known}\"; choose others"
            ));
        }
        self.specs.push(spec);
        Ok(())
    }

    /// The step of this name.
    pub fn find(&self, name: &str) -> Option<&StepSpec> {
        self.specs.iter().find(|spec| spec.name == name)
    }

    /// The features of all, each once.
    pub fn features(&self) -> Vec<Feature> {
        let mut features = Vec::new();
        for feature in self.specs.iter().filter_map(|spec| spec.present_if) {
            if !features.contains(&feature) {
                features.push(feature);
            }
        }
        features
    }

    /// The names of all.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().map(|spec| spec.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Given;
    use crate::testing::TestTables;

    #[test]
    fn specs_declare_the_outputs_that_their_steps_have() {
        let tables = &TestTables::every_kind();
        let catalogue = Catalogue::default();
        for spec in &catalogue.specs {
            // Parameters of built-in steps without a default are names.
            let needed = spec.params().iter().filter(|param| param.is_required());
            let given = needed.map(|param| (param.name().to_owned(), Given::Text("f".into())));
            let args = &Args::read(spec.params(), &given.collect()).unwrap();
            let context = MakeContext { name: spec.name(), args, tables, ports: &["f".to_owned()] };
            let outputs = spec.outputs(args);
            assert_eq!(outputs, spec.make(&context).unwrap().outputs(), "{}", spec.name());
            for (output, _) in spec.provides {
                assert!(outputs.contains(&Output::next(output)), "{}", spec.name());
            }
        }
        assert!(catalogue.specs.len() >= 17);
    }

    #[test]
    fn a_parameter_is_not_called_as_what_means_something_else() {
        let flag = Param::new("as", crate::params::Kind::Flag, "a switch");
        let spec = StepSpec::described("x", Vec::new()).param(flag);
        let error = Catalogue::default().add(spec).unwrap_err();
        assert_eq!(error, "step \"x\": parameter \"as\" means something else; rename it");
    }

    #[test]
    fn a_name_is_taken_once() {
        let mut catalogue = Catalogue::default();
        let again = catalogue.find("ip4-ttl").unwrap().clone();
        let error = catalogue.add(again).unwrap_err();
        assert_eq!(error, "step \"ip4-ttl\" exists already; choose another name");
    }

    #[test]
    fn features_are_told_apart() {
        let mut catalogue = Catalogue::default();
        let names: Vec<_> = catalogue.features().iter().map(|feature| feature.name()).collect();
        assert_eq!(
            names,
            [
                "mirror",
                "samples",
                "bonds",
                "vlans",
                "reverse_path",
                "filter_in",
                "policy_route",
                "redirects",
                "filter_out"
            ]
        );
        let spec = |name| {
            let feature = Feature::flag(name, 1);
            StepSpec::described("x", Vec::new()).present_if(feature)
        };
        assert!(catalogue.add(spec("redirects")).is_ok());
        let error = catalogue.add(StepSpec { name: "y".into(), ..spec("other") }).unwrap_err();
        assert_eq!(
            error,
            "step \"y\": its feature has the name or the slot of \"redirects\"; choose others"
        );
        // `least_ttl` belongs to no step.
        let spec = StepSpec::described("z", Vec::new()).present_if(Feature::flag("other", 6));
        assert!(catalogue.add(spec).unwrap_err().contains("\"least_ttl\""));
    }

    #[test]
    fn facts_have_words() {
        assert_eq!(Facts::FRAME.to_string(), "frames");
        let routed = Facts::IP4.with(Facts::VALID).with(Facts::ROUTED);
        assert_eq!(routed.to_string(), "routed valid IPv4 packets");
        assert!(routed.satisfy(Facts::IP4) && !routed.satisfy(Facts::IP6));
        assert_eq!(routed.common(Facts::IP6.with(Facts::VALID)), Facts::VALID);
    }
}
