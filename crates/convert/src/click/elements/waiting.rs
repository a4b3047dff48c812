//! Elements that hold packets, or measure and limit their rate. Trees of schedulers: see `pull.rs`.

use std::time::Duration;

use ::click::args::Args;
use ::click::kinds;

use super::super::net::{Net, SHAPERS};
use super::super::pull;
use super::{Piece, State, Step, Translated, Value};

/// Most packets of a queue.
const CAPACITY_MOST: i64 = 65_536;

pub(super) fn queue(net: &Net<'_>, element: usize, state: State) -> Translated {
    let capacity = capacity(net, element)?;
    if net.leads_to_device(element) {
        return Ok((Piece::Nothing, state));
    }
    let mut args = vec![("capacity", Value::Number(capacity))];
    if let Some(shaper) = net.shaper_behind(element) {
        args.push(("rate", Value::Text(rate(net, shaper)?)));
    }
    if let Some(delay) = net.delay_behind(element) {
        let time = self::time(net, delay).map_err(|why| of_other(net, delay, &why))?;
        args.push(("delay", Value::Text(time)));
    }
    Ok((Piece::Steps(vec![Step::new("queue", args, &["next"])]), state))
}

/// The capacity of a queue.
pub(in super::super) fn capacity(net: &Net<'_>, queue: usize) -> Result<i64, String> {
    let to = |input| {
        net.sources(queue)
            .iter()
            .any(|&(from, output)| net.target(from, output) == Some((queue, input)))
    };
    if to(1) {
        return Err("input 1, from which packets leave first, is not supported yet".to_owned());
    }
    let mut args = net.args(queue);
    let capacity = args.optional("CAPACITY", kinds::integer(1..=CAPACITY_MOST))?;
    args.finish()?;
    Ok(capacity.unwrap_or(1000))
}

/// Pulls from a queue: as many packets as there are.
pub(super) fn unqueue(mut args: Args<'_>, state: State) -> Translated {
    args.optional("BURST", kinds::raw)?;
    args.ignore(&["SIGNAL"]);
    if args.keyword("ACTIVE", kinds::boolean)? == Some(false) {
        return Err("ACTIVE false is not supported yet; Switch(-1) drops packets".to_owned());
    }
    if args.keyword("LIMIT", kinds::integer(i64::MIN..=i64::MAX))?.is_some_and(|limit| limit >= 0) {
        return Err("LIMIT is not supported yet; leave it out".to_owned());
    }
    args.finish()?;
    Ok((Piece::Nothing, state))
}

/// The rate of the queue in front of it, see [`queue`].
pub(super) fn shaper(net: &Net<'_>, element: usize, state: State) -> Translated {
    if net.outputs(element) > 1 {
        return Err("its second output is not supported yet".to_owned());
    }
    if net.queue_of(element).is_none() {
        return Err(
            "a shaper is supported behind a queue only, with one path between them".to_owned()
        );
    }
    Ok((Piece::Nothing, state))
}

/// The delay of the queue in front of it, see [`queue`].
pub(super) fn delay(net: &Net<'_>, element: usize, state: State) -> Translated {
    if net.queue_of(element).is_none() {
        return Err(
            "a delay is supported behind a queue only, with one path between them; of several \
                    delays the first one only"
                .to_owned(),
        );
    }
    time(net, element)?;
    Ok((Piece::Nothing, state))
}

/// The time of a delay, as steps read it.
fn time(net: &Net<'_>, element: usize) -> Result<String, String> {
    let mut args = net.args(element);
    let delay = args.required("DELAY", kinds::duration)?;
    args.finish()?;
    if delay > DELAY_MOST {
        return Err(format!(
            "DELAY of {} seconds; at most {}",
            delay.as_secs(),
            DELAY_MOST.as_secs()
        ));
    }
    Ok(format!("{}us", delay.as_micros()))
}

/// Longest delay.
const DELAY_MOST: Duration = Duration::from_secs(60);

/// An error about another element.
fn of_other(net: &Net<'_>, element: usize, why: &str) -> String {
    format!("\"{}\": {why}", net.element(element).name)
}

/// An element that takes its outputs in turns by tickets.
pub(super) fn stride_switch(net: &Net<'_>, element: usize, state: State) -> Translated {
    let scope = net.scope(element);
    let read = |text: &String| {
        let tickets = pull::tickets(text, &scope);
        tickets
            .map(|tickets| tickets.to_string())
            .map_err(|why| format!("TICKETS \"{text}\": {why}"))
    };
    let tickets: Vec<String> =
        net.element(element).arguments.iter().map(read).collect::<Result<_, _>>()?;
    let (count, outputs) = (tickets.len(), net.outputs(element));
    if count != outputs || count > 15 {
        return Err(format!(
            "{count} tickets for {outputs} outputs; expected one for each, for at most 15"
        ));
    }
    let args = vec![("tickets", Value::Text(tickets.join(" ")))];
    let outputs = (0..count).map(|output| output.to_string()).collect();
    Ok((Piece::Steps(vec![Step { outputs, ..Step::new("stride-switch", args, &[]) }]), state))
}

/// The rate of a shaper, as steps read it.
pub(in super::super) fn rate(net: &Net<'_>, element: usize) -> Result<String, String> {
    let mut args = net.args(element);
    let rate = if matches!(net.class(element), "Shaper" | "RatedSplitter" | "RatedUnqueue") {
        args.required("RATE", packets)?
    } else {
        args.required("RATE", bandwidth)?
    };
    args.finish()?;
    Ok(rate)
}

type Scope<'a> = ::click::names::Scope<'a>;

/// Packets a second.
fn packets(text: &str, scope: &Scope<'_>) -> Result<String, String> {
    let rate = kinds::integer(1..=u64::MAX)(text, scope);
    rate.map(|rate| format!("{rate}pps"))
        .map_err(|_| "expected a rate in packets per second, such as 1000".to_owned())
}

/// Bits a second.
fn bandwidth(text: &str, scope: &Scope<'_>) -> Result<String, String> {
    let bytes = kinds::bandwidth(text, scope).ok().filter(|bytes| *bytes > 0);
    bytes
        .map(|bytes| format!("{}bit", 8 * bytes))
        .ok_or_else(|| "expected a rate such as 10Mbps or 1.5MBps".to_owned())
}

/// An element that sorts packets by their rate.
pub(super) fn meter(net: &Net<'_>, element: usize, state: State) -> Translated {
    let kind = if net.class(element) == "Meter" { packets } else { bandwidth };
    let scope = net.scope(element);
    let mut rates = Vec::new();
    for text in &net.element(element).arguments {
        rates.push(kind(text, &scope).map_err(|why| format!("RATE \"{text}\": {why}"))?);
    }
    let count = rates.len();
    if count == 0 || count > 15 {
        return Err(format!("{count} rates; expected 1 to 15"));
    }
    let outputs = (0..=count).map(|output| output.to_string()).collect();
    let args = vec![("rates", Value::Text(rates.join(" ")))];
    Ok((Piece::Steps(vec![Step { outputs, ..Step::new("meter", args, &[]) }]), state))
}

/// Returns true if an element of this class limits the rate of those behind which it is.
pub(in super::super) fn is_shaper(class: &str) -> bool {
    SHAPERS.contains(&class)
}
