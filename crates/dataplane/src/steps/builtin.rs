//! The list of built-in steps: the facts that each requires and provides, and its constructor.
//! Graphs refer to these names; `plan.rs` checks a composition by these facts.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::bond::BONDS;
use crate::catalogue::{Catalogue, Facts, MakeContext, Provides, StepSpec};
use crate::class::LEAST_TTL;
use crate::features::Feature;
use crate::graph::{Output, Step};
use crate::mirror_sessions::MIRROR;
use crate::samples::SAMPLES;
use crate::vlan::VLANS;

const IP4: Facts = Facts::IP4;
const IP6: Facts = Facts::IP6;
const VALID4: Facts = IP4.with(Facts::VALID);
const VALID6: Facts = IP6.with(Facts::VALID);
const ROUTED4: Facts = VALID4.with(Facts::ROUTED);
const ROUTED6: Facts = VALID6.with(Facts::ROUTED);
const REWRITTEN: Facts = Facts::REWRITTEN;

/// Features of the built-in steps, and [`LEAST_TTL`]. Each has a slot; the others are free for steps of other crates.
const FEATURES: [Feature; 12] = [
    REVERSE_PATH,
    REDIRECTS,
    FILTER_IN,
    FILTER_OUT,
    POLICY_ROUTE,
    VLANS,
    LEAST_TTL,
    BONDS,
    MIRROR,
    SAMPLES,
    DHCP_RELAY,
    TRANSLATED,
];

const _: () = assert!(Feature::have_own_slots(&FEATURES), "two features have the same slot");

impl Default for Catalogue {
    fn default() -> Self {
        Self::of(specs(), &FEATURES)
    }
}

/// All of them, in the order of the default graph.
fn specs() -> Vec<StepSpec> {
    let mut specs = vec![
        step("mirror-in", mirror_in::OUTPUTS, Facts::FRAME, &[], |make| {
            Box::new(MirrorIn::new(make.tables))
        })
        .present_if(MIRROR),
        step("sample-in", sample_in::OUTPUTS, Facts::FRAME, &[], |make| {
            Box::new(SampleIn::new(make.tables))
        })
        .present_if(SAMPLES),
        step("bond-input", bond_input::OUTPUTS, Facts::FRAME, &[], |make| {
            Box::new(BondInput::new(make.tables))
        })
        .present_if(BONDS),
        step("vlan-input", vlan_input::OUTPUTS, Facts::FRAME, &[], |make| {
            Box::new(VlanInput::new(make.tables))
        })
        .present_if(VLANS),
        step("classify", classify::OUTPUTS, Facts::FRAME, &[("ip4", IP4), ("ip6", IP6)], |make| {
            Box::new(Classify::new(make.tables))
        }),
        step("ip4-prefetch", ip4_prefetch::OUTPUTS, IP4, &[], |make| {
            Box::new(Ip4Prefetch::new(make.tables))
        }),
        step("ip4-checksum-offload", complete_checksum::OUTPUTS, IP4, &[], |_| {
            Box::new(CompleteChecksum)
        }),
        step("ip4-validate", ip4_validate::OUTPUTS, IP4, &[("ok", Facts::VALID)], |make| {
            Box::new(Ip4Validate::new(&make.tables.own))
        }),
        step("ip4-reverse-path", reverse_path::OUTPUTS, VALID4, &[], |make| {
            Box::new(Ip4ReversePath::new(make.tables.clone()))
        })
        .present_if(REVERSE_PATH),
        step("ip4-filter-in", filter::OUTPUTS, VALID4, &[], |make| {
            Box::new(FilterIn::<Ipv4Addr>::new(make.tables))
        })
        .present_if(FILTER_IN),
        step(
            "ip4-policy-route",
            policy_route::OUTPUTS,
            VALID4,
            &[("forward", Facts::ROUTED)],
            |make| policy_route::ip4(make.tables),
        )
        .present_if(POLICY_ROUTE),
        step("ip4-lookup", resolve::OUTPUTS4, VALID4, &[("forward", Facts::ROUTED)], |make| {
            Box::new(Ip4Lookup::new(make.tables.clone()))
        }),
        step(
            "ip4-multicast",
            multicast::OUTPUTS,
            VALID4,
            &[("replicate", Facts::GROUPED)],
            |make| Box::new(Ip4Multicast::new(make.tables)),
        ),
        step("ip4-ttl", ip4_ttl::OUTPUTS, IP4, &[], |_| Box::new(Ip4Ttl)),
        step("ip4-redirect", redirect::OUTPUTS, ROUTED4, &[], |make| {
            Box::new(Redirect::new(make.tables))
        })
        .present_if(REDIRECTS),
        step("ip4-mtu", mtu::OUTPUTS, ROUTED4, &[], |make| {
            Box::new(Mtu::<false>::new(make.tables))
        }),
        step("ip4-filter-out", filter::OUTPUTS, ROUTED4, &[], |make| {
            Box::new(FilterOut::<Ipv4Addr>::new(make.tables))
        })
        .present_if(FILTER_OUT),
        step("ip4-rewrite", ip4_rewrite::OUTPUTS, ROUTED4, &[("transmit", REWRITTEN)], |make| {
            Box::new(Ip4Rewrite::new(make.tables))
        }),
        step("ip6-checksum-offload", complete_checksum::OUTPUTS, IP6, &[], |_| {
            Box::new(CompleteChecksum)
        }),
        step("ip6-validate", ip6_validate::OUTPUTS, IP6, &[("ok", Facts::VALID)], |make| {
            Box::new(Ip6Validate::new(&make.tables.own))
        }),
        step("ip6-reverse-path", reverse_path::OUTPUTS, VALID6, &[], |make| {
            Box::new(Ip6ReversePath::new(make.tables.clone()))
        })
        .present_if(REVERSE_PATH),
        step("ip6-filter-in", filter::OUTPUTS, VALID6, &[], |make| {
            Box::new(FilterIn::<Ipv6Addr>::new(make.tables))
        })
        .present_if(FILTER_IN),
        step(
            "ip6-policy-route",
            policy_route::OUTPUTS,
            VALID6,
            &[("forward", Facts::ROUTED)],
            |make| policy_route::ip6(make.tables),
        )
        .present_if(POLICY_ROUTE),
        step("ip6-lookup", resolve::OUTPUTS6, VALID6, &[("forward", Facts::ROUTED)], |make| {
            Box::new(Ip6Lookup::new(make.tables.clone()))
        }),
        step(
            "ip6-multicast",
            multicast::OUTPUTS,
            VALID6,
            &[("replicate", Facts::GROUPED)],
            |make| Box::new(Ip6Multicast::new(make.tables)),
        ),
        step("ip6-hop-limit", ip6_hop_limit::OUTPUTS, IP6, &[], |_| Box::new(Ip6HopLimit)),
        step("ip6-redirect", redirect::OUTPUTS, ROUTED6, &[], |make| {
            Box::new(Redirect::new(make.tables))
        })
        .present_if(REDIRECTS),
        step("ip6-mtu", mtu::OUTPUTS, ROUTED6, &[], |make| Box::new(Mtu::<true>::new(make.tables))),
        step("ip6-filter-out", filter::OUTPUTS, ROUTED6, &[], |make| {
            Box::new(FilterOut::<Ipv6Addr>::new(make.tables))
        })
        .present_if(FILTER_OUT),
        step("ip6-rewrite", ip6_rewrite::OUTPUTS, ROUTED6, &[("transmit", REWRITTEN)], |make| {
            Box::new(Ip6Rewrite::new(make.tables))
        }),
        step("vlan-output", vlan_output::OUTPUTS, Facts::SENDABLE, &[], |make| {
            Box::new(VlanOutput::new(make.tables))
        })
        .present_if(VLANS),
        step("bond-output", bond_output::OUTPUTS, Facts::SENDABLE, &[], |make| {
            Box::new(BondOutput::new(make.tables))
        })
        .present_if(BONDS),
        filter_step("ip4-filter", VALID4, |make| {
            Box::new(filter_at::Ip4FilterAt::new(make.tables, make.args))
        }),
        filter_step("ip6-filter", VALID6, |make| {
            Box::new(filter_at::Ip6FilterAt::new(make.tables, make.args))
        }),
        step("ip4-decrement-ttl", ip4_decrement_ttl::OUTPUTS, IP4, &[], |_| {
            Box::new(Ip4DecrementTtl)
        }),
        step("ip6-decrement-hop-limit", ip6_decrement_hop_limit::OUTPUTS, IP6, &[], |_| {
            Box::new(Ip6DecrementHopLimit)
        }),
        step("prohibit", prohibit::OUTPUTS, Facts::VALID, &[], |_| Box::new(Prohibit)),
        step("reset", reset::OUTPUTS, Facts::VALID, &[], |_| Box::new(Reset)),
    ];
    specs.extend(toolbox::specs());
    #[cfg(feature = "faulty-step")]
    specs.push(step("faulty", faulty::OUTPUTS, IP4, &[], |_| Box::new(Faulty)));
    specs.shrink_to_fit();
    specs
}

/// Returns a step that is a filter at any place.
fn filter_step(
    name: &str,
    requires: Facts,
    make: fn(&MakeContext<'_>) -> Box<dyn Step>,
) -> StepSpec {
    let spec = step(name, &[], requires, &[], make).outputs_by(filter_at::outputs);
    filter_at::params().into_iter().fold(spec, StepSpec::param)
}

fn step(
    name: &str,
    outputs: &[Output],
    requires: Facts,
    provides: Provides,
    make: fn(&MakeContext<'_>) -> Box<dyn Step>,
) -> StepSpec {
    StepSpec::new(name, outputs, make).requires(requires).provides(provides)
}
