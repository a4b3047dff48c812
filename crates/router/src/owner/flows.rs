//! The commands `show flows` and `flow del`.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use api::report::{Change, Flow, Flows};
use api::{Answer, FlowSelection, query};
use dataplane::flows::{FlowTable, Phase, Selection};
use dataplane::words::count;
use tokio::sync::oneshot;

use super::Owner;
use super::questions::answer;

impl Owner {
    /// Answers from another thread: there may be millions.
    pub(super) fn list_flows(&self, of: &FlowSelection, most: usize, to: oneshot::Sender<Answer>) {
        let (selection, table) = (selection(of), self.filtering.filters.flows.clone());
        let vrfs = self.configurations.current.vrf_names();
        tokio::task::spawn_blocking(move || {
            let flows = match table {
                Some(table) => report(&table, &selection, most, &vrfs),
                None => Flows::default(),
            };
            answer(to, &query::FLOWS, Ok(flows));
        });
    }

    /// Forgets flows: their packets are new again to filters.
    pub(super) fn forget_flows(&self, of: &FlowSelection) -> Result<Change> {
        let flows = self.filtering.filters.flows.as_ref();
        let flows = flows.context("no filter asks for the state of connections: there are none")?;
        let forgotten = flows.forget(&selection(of), dpdk::tsc());
        Ok(Change { change: format!("{} forgotten", count(forgotten, "flow")), note: None })
    }
}

fn selection(of: &FlowSelection) -> Selection {
    Selection { prefix: of.prefix, port: of.port, protocol: of.protocol }
}

fn report(table: &FlowTable, selection: &Selection, most: usize, vrfs: &[String]) -> Flows {
    let mut found = table.flows(selection, dpdk::tsc());
    let total = found.len();
    let bytes = |flow: &dataplane::flows::Flow| flow.traffic[0].1 + flow.traffic[1].1;
    found.sort_by_cached_key(|flow| (std::cmp::Reverse(bytes(flow)), flow.from, flow.to));
    found.truncate(if most == 0 { total } else { most });
    let counts = table.counts();
    Flows {
        room: table.room(),
        entered: counts.entered,
        pushed_out: counts.pushed_out,
        refused: counts.refused,
        total,
        flows: found.into_iter().map(|flow| shown(&flow, vrfs)).collect(),
    }
}

fn shown(flow: &dataplane::flows::Flow, vrfs: &[String]) -> Flow {
    let end = |(address, port): (IpAddr, u16)| match port {
        0 => address.to_string(),
        port => SocketAddr::new(address, port).to_string(),
    };
    let [(packets_there, bytes_there), (packets_back, bytes_back)] = flow.traffic;
    let protocol = match flow.protocol {
        wire::ip::PROTOCOL_FRAGMENT => "fragments".to_owned(),
        protocol => acl::text::protocol_name(protocol),
    };
    let state = match flow.phase {
        Phase::Unanswered => "unanswered",
        Phase::Opening => "opening",
        Phase::Assured => "assured",
        Phase::Closing => "closing",
    };
    Flow {
        vrf: vrfs.get(usize::from(flow.vrf)).cloned().unwrap_or_else(|| flow.vrf.to_string()),
        protocol,
        from: end(flow.from),
        to: end(flow.to),
        state: state.to_owned(),
        packets_there,
        bytes_there,
        packets_back,
        bytes_back,
        age_s: flow.age.as_secs(),
        idle_s: flow.idle.as_secs(),
    }
}
