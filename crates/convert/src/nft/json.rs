//! `nft -j list ruleset` (libnftables-json(5)).

use serde_json::Value;

use crate::Unreadable;
use crate::nft::syntax::{
    Chain, Hook, Listing, Op, Pairs, Rule, Set, Statement, Tuple, Values, limit,
};
use crate::rules::{Limit, Origin, Verdict};

/// Most characters of a rule's text in a message.
const TEXT_MAX: usize = 300;

pub fn read(input: &str) -> Result<Listing, Unreadable> {
    let wrong =
        |why: String| Unreadable(format!("{why}; read is what `nft -j list ruleset` prints"));
    let all: Value = serde_json::from_str(input).map_err(|error| wrong(error.to_string()))?;
    let objects = all.get("nftables").and_then(Value::as_array);
    let objects = objects.ok_or_else(|| wrong("there is no list \"nftables\"".into()))?;
    let mut listing = Listing::default();
    for object in objects {
        let Some((kind, of)) = object.as_object().and_then(|object| object.iter().next()) else {
            continue;
        };
        match kind.as_str() {
            "chain" => listing.chains.push(chain(of)),
            "set" | "map" => {
                let key = (string(of, "family"), string(of, "table"), string(of, "name"));
                let set = set(of)
                    .ok_or_else(|| wrong(format!("set {}: an element of no known form", key.2)))?;
                listing.sets.insert(key, set);
            }
            "rule" => {
                let names = (string(of, "family"), string(of, "table"), string(of, "chain"));
                let mut chains = listing.chains.iter_mut();
                let chain = chains.find(|chain| {
                    (&chain.family, &chain.table, &chain.name) == (&names.0, &names.1, &names.2)
                });
                let chain = chain.ok_or_else(|| {
                    wrong(format!("a rule of chain {}, which is not listed", names.2))
                })?;
                chain.rules.push(rule(of));
            }
            _ => {}
        }
    }
    Ok(listing)
}

fn string(of: &Value, key: &str) -> String {
    of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn chain(of: &Value) -> Chain {
    let name = string(of, "name");
    let hook = of.get("hook").and_then(Value::as_str).map(|hook| Hook {
        kind: string(of, "type"),
        hook: hook.to_owned(),
        priority: of.get("prio").and_then(Value::as_i64).unwrap_or(0),
        accepts: of.get("policy").and_then(Value::as_str) != Some("drop"),
    });
    let (family, table) = (string(of, "family"), string(of, "table"));
    let place = format!("{family} {table} {name}");
    let origin = Origin { place, text: format!("chain {name}") };
    Chain { origin, family, table, name, hook, rules: Vec::new() }
}

fn rule(of: &Value) -> Rule {
    let (family, table, chain) = (string(of, "family"), string(of, "table"), string(of, "chain"));
    let handle = of.get("handle").and_then(Value::as_u64).unwrap_or(0);
    let none = Vec::new();
    let expressions = of.get("expr").and_then(Value::as_array).unwrap_or(&none);
    let mut text = expressions.iter().map(Value::to_string).collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = text.char_indices().nth(TEXT_MAX) {
        text.truncate(end);
        text.push('…');
    }
    Rule {
        origin: Origin { place: format!("{family} {table} {chain}, handle {handle}"), text },
        statements: expressions.iter().map(statement).collect(),
        comment: of.get("comment").and_then(Value::as_str).map(str::to_owned),
    }
}

fn set(of: &Value) -> Option<Set> {
    let flags = list(of.get("flags").unwrap_or(&Value::Null));
    let is_dynamic = of.get("timeout").is_some()
        || flags.iter().any(|flag| matches!(flag.as_str(), Some("dynamic" | "timeout")));
    let elements = list(of.get("elem").unwrap_or(&Value::Null));
    if of.get("map").is_some() {
        // A map to anything but verdicts has no use here.
        let verdicts = pairs(&elements).unwrap_or_default();
        return Some(Set { verdicts, is_dynamic, ..Set::default() });
    }
    let elements = elements.iter().map(tuple).collect::<Option<_>>()?;
    Some(Set { elements, is_dynamic, ..Set::default() })
}

/// Reads one value or a list of them.
fn list(of: &Value) -> Vec<Value> {
    match of {
        Value::Null => Vec::new(),
        Value::Array(values) => values.clone(),
        one => vec![one.clone()],
    }
}

fn pairs(elements: &[Value]) -> Option<Vec<(Tuple, Verdict)>> {
    let pair = |element: &Value| match element.as_array().map(Vec::as_slice) {
        Some([key, end]) => Some((tuple(key)?, verdict(end)?)),
        _ => None,
    };
    elements.iter().map(pair).collect()
}

fn tuple(of: &Value) -> Option<Tuple> {
    if let Some(parts) = of.get("concat").and_then(Value::as_array) {
        return parts.iter().map(word).collect();
    }
    if let Some(value) = of.get("elem").and_then(|element| element.get("val")) {
        return tuple(value);
    }
    Some(vec![word(of)?])
}

/// Returns a value as it is written in the text form.
fn word(of: &Value) -> Option<String> {
    match of {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is) => Some(if *is { "exists" } else { "missing" }.to_owned()),
        Value::Object(_) => {
            if let Some(prefix) = of.get("prefix") {
                return Some(format!("{}/{}", word(prefix.get("addr")?)?, prefix.get("len")?));
            }
            if let Some([low, high]) = of.get("range").and_then(Value::as_array).map(Vec::as_slice)
            {
                return Some(format!("{}..{}", word(low)?, word(high)?));
            }
            word(of.get("elem")?.get("val")?)
        }
        _ => None,
    }
}

/// Reads flags: `["fin", "syn"]`, `{"|": ["fin", "syn"]}`.
fn flags(of: &Value) -> Option<Vec<String>> {
    let parts = of.as_array().or_else(|| of.get("|").and_then(Value::as_array));
    match parts {
        Some(parts) => {
            let words: Vec<Vec<String>> = parts.iter().map(flags).collect::<Option<_>>()?;
            Some(words.concat())
        }
        None => Some(vec![word(of)?]),
    }
}

fn statement(of: &Value) -> Statement {
    let Some((name, args)) = of.as_object().and_then(|object| object.iter().next()) else {
        return other(of, true);
    };
    if let Some(verdict) = verdict(of) {
        return Statement::Verdict(verdict);
    }
    let found = match name.as_str() {
        "match" => condition(args),
        "vmap" => vmap(args),
        "counter" => Some(Statement::Counter),
        "log" => {
            let prefix = args.get("prefix").and_then(Value::as_str).map(str::to_owned);
            Some(Statement::Log { prefix })
        }
        "limit" => rate(args).map(Statement::Limit),
        "set" => update(args),
        "mangle" => mark(args),
        _ => None,
    };
    found.unwrap_or_else(|| other(of, name == "match" || name == "xt" || name == "ct count"))
}

/// Reads a change of the DSCP.
fn mark(of: &Value) -> Option<Statement> {
    let payload = of.get("key")?.get("payload")?;
    let key = format!("{} {}", string(payload, "protocol"), string(payload, "field"));
    let is_dscp = matches!(key.as_str(), "ip dscp" | "ip6 dscp");
    is_dscp.then_some(())?;
    Some(Statement::Mark { key, value: word(of.get("value")?)? })
}

fn other(of: &Value, is_condition: bool) -> Statement {
    Statement::Other { text: of.to_string(), is_condition }
}

fn verdict(of: &Value) -> Option<Verdict> {
    let (name, args) = of.as_object()?.iter().next()?;
    let target = || args.get("target").and_then(Value::as_str).map(str::to_owned);
    Some(match name.as_str() {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "return" => Verdict::Return,
        "continue" => Verdict::Continue,
        "jump" => Verdict::Jump(target()?),
        "goto" => Verdict::Goto(target()?),
        "reject" => {
            let with = args.get("expr").or_else(|| args.get("type"));
            Verdict::Reject(with.and_then(Value::as_str).map(str::to_owned))
        }
        _ => return None,
    })
}

fn key(of: &Value) -> Option<String> {
    let name = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
    if let Some(of) = of.get("payload") {
        return Some(format!("{} {}", name(of, "protocol")?, name(of, "field")?));
    }
    if let Some(of) = of.get("exthdr") {
        return Some(format!("{} {}", name(of, "name")?, name(of, "field")?));
    }
    if let Some(of) = of.get("meta") {
        return Some(format!("meta {}", name(of, "key")?));
    }
    let of = of.get("ct")?;
    match name(of, "dir") {
        Some(direction) => Some(format!("ct {direction} {}", name(of, "key")?)),
        None => Some(format!("ct {}", name(of, "key")?)),
    }
}

fn keys(of: &Value) -> Option<Vec<String>> {
    match of.get("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(key).collect(),
        None => Some(vec![key(of)?]),
    }
}

fn condition(args: &Value) -> Option<Statement> {
    let left = args.get("left")?;
    let (left, mask) = match left.get("&").and_then(Value::as_array).map(Vec::as_slice) {
        Some([left, mask]) => (left, Some(flags(mask)?)),
        _ => (left, None),
    };
    let op = match args.get("op").and_then(Value::as_str)? {
        "==" => Op::Eq,
        "!=" => Op::Ne,
        "<" => Op::Lt,
        ">" => Op::Gt,
        "<=" => Op::Le,
        ">=" => Op::Ge,
        "in" => Op::Implicit,
        "!" => Op::None,
        _ => return None,
    };
    let right = args.get("right")?;
    let values = match right {
        Value::String(name) if name.starts_with('@') => Values::Named(name.clone()),
        _ if right.get("set").is_some() => {
            let elements = list(right.get("set")?);
            Values::Set(elements.iter().map(tuple).collect::<Option<_>>()?)
        }
        _ if right.is_array() || right.get("|").is_some() => Values::Flags(flags(right)?),
        _ => Values::One(tuple(right)?),
    };
    Some(Statement::Match { keys: keys(left)?, mask, op, values })
}

fn vmap(args: &Value) -> Option<Statement> {
    let data = args.get("data")?;
    let pairs = match data {
        Value::String(name) => Pairs::Named(name.clone()),
        _ => Pairs::List(pairs(&list(data.get("set")?))?),
    };
    Some(Statement::Vmap { keys: keys(args.get("key")?)?, pairs })
}

fn rate(args: &Value) -> Option<Limit> {
    let text = |key: &str, default: &'static str| {
        args.get(key).and_then(Value::as_str).unwrap_or(default).to_owned()
    };
    let rate = args.get("rate")?.as_u64()?;
    let unit = text("rate_unit", "packets");
    let burst = args.get("burst").and_then(Value::as_u64);
    let burst_unit = text("burst_unit", if unit == "packets" { "packets" } else { "bytes" });
    let is_over = args.get("inv").and_then(Value::as_bool).unwrap_or(false);
    let burst = burst.map(|burst| (burst, burst_unit.as_str()));
    limit(rate, &unit, &text("per", "second"), burst, is_over)
}

fn update(args: &Value) -> Option<Statement> {
    let element = args.get("elem")?;
    let keys = keys(element.get("elem").and_then(|element| element.get("val")).unwrap_or(element))?;
    let statements = list(args.get("stmt").unwrap_or(&Value::Null));
    let limit = match &statements[..] {
        [] => None,
        [one] => Some(rate(one.get("limit")?)?),
        _ => return None,
    };
    Some(Statement::Update { keys, limit })
}
