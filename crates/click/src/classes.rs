//! Classes of elements: ports, push and pull, flow.
//!
//! - *Ports* are `INPUTS/OUTPUTS`; each is a number, a range `1-2`, `1-` (or more) or `-` (any). `=` stands for as many
//!   outputs as there are inputs, each `+` behind it for one more.
//! - *Processing* has a letter for each port, of which the last stands for all further ones: `h` push, `l` pull, `a`
//!   agnostic, which is what the port at the other end is.
//! - *Flow* has a letter for each port: packets of an input may leave by outputs with the same letter. `#` stands for
//!   the port's own number, `[^#]` for any other.
//!
//! The values are those of Click's elements, of FastClick's for classes that Click has not, and of `FromOcteon` and
//! `ToOcteon`, which are in neither.

use std::fmt;

use crate::Flow;

/// A class of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: &'static str,
    /// Numbers of inputs and outputs.
    pub ports: &'static str,
    /// Push, pull or agnostic, of each port.
    pub processing: &'static str,
    /// Outputs that packets of an input may reach.
    pub flow: &'static str,
}

/// Numbers of ports that a class may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// At least.
    pub least: usize,
    /// At most.
    pub most: usize,
}

/// The class with a name.
pub fn find(name: &str) -> Option<&'static Class> {
    let place = CLASSES.binary_search_by(|class| class.name.cmp(name));
    place.ok().map(|place| &CLASSES[place])
}

/// The known class whose name is most like one that is not known.
pub fn nearest(name: &str) -> Option<&'static str> {
    nearest_of(name, CLASSES.iter().map(|class| class.name))
}

/// The word most like a given one, if any is.
pub fn nearest_of<'w>(word: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let short: String = word.chars().take(64).collect();
    let rated = words.map(|known| (strsim::jaro_winkler(&short, known), known));
    let best = rated.max_by(|(first, _), (second, _)| first.total_cmp(second));
    best.filter(|(likeness, _)| *likeness > 0.75).map(|(_, known)| known)
}

impl Class {
    /// Numbers of inputs.
    pub fn inputs(&self) -> Count {
        Count::of(self.halves(self.ports).0)
    }

    /// Numbers of outputs of an element with a number of inputs.
    pub fn outputs(&self, inputs: usize) -> Count {
        let code = self.halves(self.ports).1;
        match code.strip_prefix('=') {
            Some(more) => Count { least: inputs + more.len(), most: inputs + more.len() },
            None => Count::of(code),
        }
    }

    /// Direction of an input; `None` if it is agnostic.
    pub fn input(&self, port: usize) -> Option<Flow> {
        direction(self.halves(self.processing).0, port)
    }

    /// Direction of an output; `None` if it is agnostic.
    pub fn output(&self, port: usize) -> Option<Flow> {
        direction(self.halves(self.processing).1, port)
    }

    /// If packets of an input may leave by an output.
    pub fn flows(&self, input: usize, output: usize) -> bool {
        if self.flow == "x/x" {
            return true;
        }
        let (from, to) = self.halves(self.flow);
        let (from, to) = (component(from, input), component(to, output));
        let letters = (b'a'..=b'z').chain(b'A'..=b'Z').map(Sign::Letter);
        let mut signs = letters.chain([Sign::Port(input), Sign::Port(output)]);
        signs.any(|sign| has(from, input, sign) && has(to, output, sign))
    }

    fn halves(&self, code: &'static str) -> (&'static str, &'static str) {
        code.split_once('/').unwrap_or((code, code))
    }
}

impl Count {
    fn of(code: &str) -> Count {
        let (least, most) =
            code.split_once('-').map_or((code, code), |(least, most)| (least, most));
        let least = least.parse().unwrap_or(0);
        Count { least, most: most.parse().unwrap_or(usize::MAX) }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Count { least, most } if least == most => write!(f, "{least}"),
            Count { least, most: usize::MAX } => write!(f, "{least} or more"),
            Count { least, most } => write!(f, "{least} to {most}"),
        }
    }
}

fn direction(code: &str, port: usize) -> Option<Flow> {
    let code = code.as_bytes();
    match code.get(port).or(code.last()) {
        Some(b'h') => Some(Flow::Push),
        Some(b'l') => Some(Flow::Pull),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Sign {
    Letter(u8),
    Port(usize),
}

/// The part of one half of a flow code that is a port's: a letter, `#`, or what is in brackets.
fn component(code: &str, port: usize) -> &str {
    let mut rest = code;
    let mut last = code;
    for _ in 0..=port {
        let length = if rest.starts_with('[') {
            rest.find(']').map_or(rest.len(), |end| end + 1)
        } else {
            1
        };
        let Some((part, after)) = rest.split_at_checked(length) else { break };
        (last, rest) = (part, after);
    }
    last
}

fn has(component: &str, port: usize, sign: Sign) -> bool {
    let signs = component.trim_matches(['[', ']']);
    let (negated, signs) = signs.strip_prefix('^').map_or((false, signs), |signs| (true, signs));
    let mut signs =
        signs.bytes().map(|byte| if byte == b'#' { Sign::Port(port) } else { Sign::Letter(byte) });
    signs.any(|known| known == sign) != negated
}

const fn class(
    name: &'static str,
    ports: &'static str,
    processing: &'static str,
    flow: &'static str,
) -> Class {
    Class { name, ports, processing, flow }
}

/// All known classes, by name.
#[rustfmt::skip]
pub static CLASSES: &[Class] = &[
    class("ARPFaker", "0/1", "h/h", "x/x"),
    class("ARPPrint", "1/1", "a/a", "x/x"),
    class("ARPQuerier", "2/1-2", "h/h", "xy/x"),
    class("ARPResponder", "1/1-2", "a/ah", "x/x"),
    class("AdaptiveRED", "1/1-2", "a/ah", "x/x"),
    class("AddressInfo", "0/0", "a/a", "x/x"),
    class("AggregateCounter", "1-2/1-2", "a/a", "x/x"),
    class("AggregateIPFlows", "1/1-2", "a/ah", "x/x"),
    class("Align", "1/1", "a/a", "x/x"),
    class("AlignmentInfo", "0/0", "a/a", "x/x"),
    class("AverageCounter", "1/1", "a/a", "x/x"),
    class("AverageCounterMP", "1/1", "a/a", "x/x"),
    class("BalancedThreadSched", "0/0", "a/a", "x/x"),
    class("BandwidthMeter", "1/2-", "h/h", "x/x"),
    class("BandwidthRatedSplitter", "1/1-2", "h/h", "x/x"),
    class("BandwidthRatedUnqueue", "1/1", "l/h", "x/x"),
    class("BandwidthShaper", "1/1-2", "l/l", "x/x"),
    class("Block", "1/2", "a/a", "x/x"),
    class("Burster", "1/1", "l/h", "x/x"),
    class("ChangeUID", "0/0", "a/a", "x/x"),
    class("CheckARPHeader", "1/1-2", "a/ah", "x/x"),
    class("CheckCRC32", "1/1", "a/a", "x/x"),
    class("CheckICMPHeader", "1/1-2", "a/ah", "x/x"),
    class("CheckIP6Header", "1/1-2", "a/ah", "x/x"),
    class("CheckIPHeader", "1/1-2", "a/ah", "x/x"),
    class("CheckIPHeader2", "1/1-2", "a/ah", "x/x"),
    class("CheckLength", "1/1-2", "a/ah", "x/x"),
    class("CheckPaint", "1/1-2", "a/ah", "x/x"),
    class("CheckTCPHeader", "1/1-2", "a/ah", "x/x"),
    class("CheckUDPHeader", "1/1-2", "a/ah", "x/x"),
    class("Classifier", "1/-", "h/h", "x/x"),
    class("ControlSocket", "0/0", "a/a", "x/x"),
    class("Counter", "1/1", "a/a", "x/x"),
    class("CounterMP", "1/1", "a/a", "x/x"),
    class("DPDKInfo", "0/0", "a/a", "x/x"),
    class("DRRSched", "-/1", "l/l", "x/x"),
    class("DecIP6HLIM", "1/1-2", "a/ah", "x/x"),
    class("DecIPTTL", "1/1-2", "a/ah", "x/x"),
    class("DelayShaper", "1/1", "l/l", "x/x"),
    class("DelayUnqueue", "1/1", "l/h", "x/x"),
    class("DirectIPLookup", "1/-", "h/h", "x/x"),
    class("Discard", "1/0", "a/a", "x/x"),
    class("DriverManager", "0/0", "a/a", "x/x"),
    class("DropBroadcasts", "1/1-2", "a/ah", "x/x"),
    class("EnsureDPDKBuffer", "1/1", "a/a", "x/x"),
    class("EnsureEther", "1/1", "a/a", "x/x"),
    class("EraseIPPayload", "1/1", "a/a", "x/x"),
    class("EtherEncap", "1/1", "a/a", "x/x"),
    class("EtherMirror", "1/1", "a/a", "x/x"),
    class("EtherRewrite", "1/1", "a/a", "x/x"),
    class("EtherSwitch", "2-/=", "h/h", "#/[^#]"),
    class("EtherVLANEncap", "1/1", "a/a", "x/x"),
    class("FastTCPFlows", "0/1", "a/a", "x/x"),
    class("FastUDPFlows", "0/1", "a/a", "x/x"),
    class("FastUDPSource", "0/1", "l/l", "x/x"),
    class("FastUDPSourceIP6", "0/1", "l/l", "x/x"),
    class("FixIPSrc", "1/1", "a/a", "x/x"),
    class("FlowInfo", "0/0", "a/a", "x/x"),
    class("ForceIP", "1/1", "a/a", "x/x"),
    class("FromDPDKDevice", "0/1", "h/h", "x/x"),
    class("FromDevice", "0/1-2", "h/h", "x/x"),
    class("FromDump", "0/1-2", "a/ah", "x/x"),
    class("FromHost", "0/1", "h/h", "x/x"),
    class("FromIPSummaryDump", "0/1", "a/a", "x/x"),
    class("FromNetmapDevice", "0/1", "h/h", "x/x"),
    class("FromOcteon", "0/1", "h/h", "x/x"),
    class("FromSocket", "0-1/0-1", "h/h", "x/y"),
    class("FrontDropQueue", "1/1-2", "h/lh", "x/x"),
    class("FullNoteQueue", "1/1-2", "h/lh", "x/x"),
    class("GetIP6Address", "1/1", "a/a", "x/x"),
    class("GetIPAddress", "1/1", "a/a", "x/x"),
    class("HashSwitch", "1/1-", "h/h", "x/x"),
    class("HostEtherFilter", "1/1-2", "a/ah", "x/x"),
    class("ICMP6Error", "1/1", "a/a", "x/x"),
    class("ICMPError", "1/1", "a/a", "x/x"),
    class("ICMPPingResponder", "1/1-2", "a/ah", "x/x"),
    class("ICMPPingRewriter", "1-/1-", "h/h", "x/x"),
    class("ICMPPingSource", "0-1/1", "h/a", "x/x"),
    class("ICMPRewriter", "1/1-", "h/h", "x/x"),
    class("IP6Encap", "1/1", "a/a", "x/x"),
    class("IP6Fragmenter", "1/1-2", "h/h", "x/x"),
    class("IP6Mirror", "1/1", "a/a", "x/x"),
    class("IP6NDAdvertiser", "1/1", "a/a", "x/x"),
    class("IP6NDSolicitor", "2/1-2", "h/h", "xy/x"),
    class("IP6Print", "1/1", "a/a", "x/x"),
    class("IPAddrPairRewriter", "1-/1-", "h/h", "x/x"),
    class("IPAddrRewriter", "1-/1-", "h/h", "x/x"),
    class("IPClassifier", "1/-", "h/h", "x/x"),
    class("IPEncap", "1/1", "a/a", "x/x"),
    class("IPFilter", "1/-", "h/h", "x/x"),
    class("IPFragmenter", "1/1-2", "h/h", "x/x"),
    class("IPGWOptions", "1/1-2", "a/ah", "x/x"),
    class("IPInputCombo", "1/1", "a/a", "x/x"),
    class("IPMirror", "1/1", "a/a", "x/x"),
    class("IPOutputCombo", "1/5", "h/h", "x/x"),
    class("IPPrint", "1/1", "a/a", "x/x"),
    class("IPRateMonitor", "1-2/1-2", "a/a", "x/x"),
    class("IPReassembler", "1/1-2", "a/ah", "x/x"),
    class("IPRewriter", "1-/1-", "h/h", "x/x"),
    class("Idle", "-/-", "a/a", "x/y"),
    class("InfiniteSource", "0/1", "a/a", "x/x"),
    class("KernelTap", "0-1/1-2", "a/h", "x/y"),
    class("KernelTun", "0-1/1-2", "a/h", "x/y"),
    class("LinearIPLookup", "1/-", "h/h", "x/x"),
    class("LinkUnqueue", "1/1", "l/h", "x/x"),
    class("LinuxIPLookup", "1/1-", "a/a", "x/x"),
    class("LookupIP6Route", "1/-", "h/h", "x/x"),
    class("LookupIPRouteMP", "1/-", "h/h", "x/x"),
    class("MSQueue", "1/1-2", "h/lh", "x/x"),
    class("MarkIP6Header", "1/1", "a/a", "x/x"),
    class("MarkIPCE", "1/1", "a/a", "x/x"),
    class("MarkIPHeader", "1/1", "a/a", "x/x"),
    class("MarkMACHeader", "1/1", "a/a", "x/x"),
    class("Message", "0/0", "a/a", "x/x"),
    class("Meter", "1/2-", "h/h", "x/x"),
    class("MixedQueue", "2/1-2", "h/lh", "x/x"),
    class("NetmapInfo", "0/0", "a/a", "x/x"),
    class("NotifierQueue", "1/1-2", "h/lh", "x/x"),
    class("Null", "1/1", "a/a", "x/x"),
    class("Pad", "1/1", "a/a", "x/x"),
    class("Paint", "1/1", "a/a", "x/x"),
    class("PaintSwitch", "1/-", "h/h", "x/x"),
    class("PaintTee", "1/2", "a/ah", "x/x"),
    class("Pipeliner", "1-/1", "h/h", "x/x"),
    class("PokeHandlers", "0/0", "a/a", "x/x"),
    class("PollDevice", "0/1", "h/h", "x/x"),
    class("PortInfo", "0/0", "a/a", "x/x"),
    class("Print", "1/1", "a/a", "x/x"),
    class("PrioSched", "-/1", "l/l", "x/x"),
    class("ProgressBar", "0/0", "a/a", "x/x"),
    class("PullNull", "1/1", "l/l", "x/x"),
    class("PullSwitch", "-/1", "l/l", "x/x"),
    class("PullTee", "1/1-", "l/lh", "x/x"),
    class("PushNull", "1/1", "h/h", "x/x"),
    class("Queue", "1/1-2", "h/lh", "x/x"),
    class("QuickNoteQueue", "1/1-2", "h/lh", "x/x"),
    class("RED", "1/1-2", "a/ah", "x/x"),
    class("RIPSend", "0/1", "h/h", "x/x"),
    class("RadixIPLookup", "1/-", "h/h", "x/x"),
    class("RandomBitErrors", "1/1", "a/a", "x/x"),
    class("RandomSample", "1/1-2", "a/ah", "x/x"),
    class("RandomSource", "0/1", "a/a", "x/x"),
    class("RandomSwitch", "1/1-", "h/h", "x/x"),
    class("RangeIPLookup", "1/-", "h/h", "x/x"),
    class("RatedSource", "0/1", "a/a", "x/x"),
    class("RatedSplitter", "1/1-2", "h/h", "x/x"),
    class("RatedUnqueue", "1/1", "l/h", "x/x"),
    class("RawSocket", "0-1/0-1", "l/h", "x/y"),
    class("RoundRobinIPMapper", "0/0", "a/a", "x/x"),
    class("RoundRobinSched", "-/1", "l/l", "x/x"),
    class("RoundRobinSwitch", "1/1-", "h/h", "x/x"),
    class("ScheduleInfo", "0/0", "a/a", "x/x"),
    class("ScheduleLinux", "0/0", "a/a", "x/x"),
    class("Script", "-/-", "ah/ah", "x/x"),
    class("SetAnnoByte", "1/1", "a/a", "x/x"),
    class("SetCRC32", "1/1", "a/a", "x/x"),
    class("SetIP6Address", "1/1", "a/a", "x/x"),
    class("SetIP6DSCP", "1/1", "a/a", "x/x"),
    class("SetIPAddress", "1/1", "a/a", "x/x"),
    class("SetIPChecksum", "1/1", "a/a", "x/x"),
    class("SetIPDSCP", "1/1", "a/a", "x/x"),
    class("SetIPECN", "1/1", "a/a", "x/x"),
    class("SetPacketType", "1/1", "a/a", "x/x"),
    class("SetRandIPAddress", "1/1", "a/a", "x/x"),
    class("SetTCPChecksum", "1/1", "a/a", "x/x"),
    class("SetTimestamp", "1/1", "a/a", "x/x"),
    class("SetUDPChecksum", "1/1-2", "a/ah", "x/x"),
    class("SetVLANAnno", "1/1", "a/a", "x/x"),
    class("Shaper", "1/1-2", "l/l", "x/x"),
    class("SimplePrioSched", "-/1", "l/l", "x/x"),
    class("SimplePullSwitch", "-/1", "l/l", "x/x"),
    class("SimpleQueue", "1/1-2", "h/lh", "x/x"),
    class("SimpleRoundRobinSched", "-/1", "l/l", "x/x"),
    class("Socket", "0-1/0-1", "a/h", "x/y"),
    class("SortedIPLookup", "1/-", "h/h", "x/x"),
    class("SpinlockAcquire", "1/1", "a/a", "x/x"),
    class("SpinlockInfo", "0/0", "a/a", "x/x"),
    class("SpinlockRelease", "1/1", "a/a", "x/x"),
    class("StaticIPLookup", "1/-", "h/h", "x/x"),
    class("StaticPullSwitch", "-/1", "l/l", "x/x"),
    class("StaticSwitch", "1/-", "h/h", "x/x"),
    class("StaticThreadSched", "0/0", "a/a", "x/x"),
    class("StoreEtherAddress", "1/1-2", "a/ah", "x/x"),
    class("StoreIPAddress", "1/1-2", "a/ah", "x/x"),
    class("StrideSched", "1-/1", "l/l", "x/x"),
    class("StrideSwitch", "1/1-", "h/h", "x/x"),
    class("Strip", "1/1", "a/a", "x/x"),
    class("StripEtherVLANHeader", "1/1-2", "a/ah", "x/x"),
    class("StripIPHeader", "1/1", "a/a", "x/x"),
    class("StripToNetworkHeader", "1/1", "a/a", "x/x"),
    class("Suppressor", "-/=", "a/a", "#/#"),
    class("Switch", "1/-", "h/h", "x/x"),
    class("TCPIPSend", "0/1", "h/h", "x/x"),
    class("TCPRewriter", "1-/1-", "h/h", "x/x"),
    class("Tee", "1/1-", "h/h", "x/x"),
    class("ThreadSafeQueue", "1/1-2", "h/lh", "x/x"),
    class("TimeFilter", "1/1-2", "a/ah", "x/x"),
    class("TimedSink", "1/0", "l/l", "x/x"),
    class("TimedSource", "0/1", "h/h", "x/x"),
    class("TimedUnqueue", "1/1", "l/h", "x/x"),
    class("ToDPDKDevice", "1/0", "h/h", "x/x"),
    class("ToDevice", "1/0-2", "l/h", "x/x"),
    class("ToDump", "1/0-1", "a/a", "x/x"),
    class("ToHost", "1/0", "h/h", "x/x"),
    class("ToHostSniffers", "1/0", "h/h", "x/x"),
    class("ToIPSummaryDump", "1/0-1", "a/h", "x/x"),
    class("ToNetmapDevice", "1/0-2", "a/h", "x/x"),
    class("ToOcteon", "1/0", "h/h", "x/x"),
    class("ToSocket", "0-1/0-1", "l/l", "x/y"),
    class("Truncate", "1/1", "a/a", "x/x"),
    class("UDPIPEncap", "1/1", "a/a", "x/x"),
    class("UDPRewriter", "1-/1-", "h/h", "x/x"),
    class("UDPSource", "0/1", "a/a", "x/x"),
    class("Unqueue", "1/1", "l/h", "x/x"),
    class("Unstrip", "1/1", "a/a", "x/x"),
    class("UnstripIPHeader", "1/1", "a/a", "x/x"),
    class("VLANDecap", "1/1", "a/a", "x/x"),
    class("VLANEncap", "1/1", "a/a", "x/x"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_codes_well_formed() {
        assert!(CLASSES.windows(2).all(|pair| pair[0].name < pair[1].name));
        for class in CLASSES {
            for code in [class.ports, class.processing, class.flow] {
                assert_eq!(code.matches('/').count(), 1, "{}", class.name);
            }
            assert!(class.inputs().least <= class.inputs().most);
        }
    }

    /// The classes that a text names as literals, which are the words that have small letters behind a first capital one.
    fn named(text: &str) -> Vec<&str> {
        let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
        let lines = text[..tests].lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
        let is_class = |word: &&str| {
            word.starts_with(|first: char| first.is_ascii_uppercase())
                && word.chars().all(|letter| letter.is_ascii_alphanumeric())
                && word.chars().any(|letter| letter.is_ascii_lowercase())
        };
        words.filter(is_class).collect()
    }

    #[test]
    fn every_class_that_is_converted_or_has_handlers_is_known() {
        let sources = [
            include_str!("../../convert/src/click/elements.rs"),
            include_str!("../../convert/src/click/elements/headers.rs"),
            include_str!("../../convert/src/click/elements/sources.rs"),
            include_str!("../../convert/src/click/elements/waiting.rs"),
            include_str!("../../convert/src/click/graph.rs"),
            include_str!("../../convert/src/click/handlers.rs"),
            include_str!("../../convert/src/click/net.rs"),
            include_str!("../../convert/src/click/pull.rs"),
            include_str!("../../convert/src/click/router.rs"),
            include_str!("../../convert/src/click/router/input.rs"),
            include_str!("../../convert/src/click/router/output.rs"),
            include_str!("../../convert/src/click/router/reading.rs"),
            include_str!("../../convert/src/click/graph/splice.rs"),
            include_str!("../../router/src/handlers.rs"),
        ];
        let named: Vec<&str> = sources.into_iter().flat_map(named).collect();
        assert!(named.contains(&"FromOcteon") && named.len() > 200, "{}", named.len());
        let unknown: Vec<_> = named.iter().filter(|name| find(name).is_none()).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn codes_are_read() {
        let queue = find("Queue").unwrap();
        assert_eq!(
            (queue.inputs(), queue.outputs(1)),
            (Count { least: 1, most: 1 }, Count { least: 1, most: 2 })
        );
        assert_eq!(
            (queue.input(0), queue.output(0), queue.output(1)),
            (Some(Flow::Push), Some(Flow::Pull), Some(Flow::Push))
        );
        let suppressor = find("Suppressor").unwrap();
        assert_eq!(suppressor.outputs(3), Count { least: 3, most: 3 });
        assert!(suppressor.flows(1, 1) && !suppressor.flows(1, 2));
        let switch = find("EtherSwitch").unwrap();
        assert!(switch.flows(1, 2) && !switch.flows(1, 1));
        let querier = find("ARPQuerier").unwrap();
        assert!(querier.flows(0, 0) && querier.flows(0, 1) && !querier.flows(1, 0));
        assert!(!find("Idle").unwrap().flows(0, 0));
        assert_eq!(find("Tee").unwrap().outputs(1).to_string(), "1 or more");
    }

    #[test]
    fn the_nearest_name_is_found() {
        assert_eq!(nearest("CheckIpHeader"), Some("CheckIPHeader"));
        assert_eq!(nearest("Que"), Some("Queue"));
        assert_eq!(nearest("zzz"), None);
        assert!(find("Quux").is_none());
    }
}
