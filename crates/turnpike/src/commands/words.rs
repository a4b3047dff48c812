//! Parses `route add` and `route del` word by word, like `ip route`, and lists the words that can
//! come next.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use api::change::{PathSpec, RouteAdd, RouteDel, RouteType};
use dataplane::words::did_you_mean;
use ipnet::IpNet;

const KNOWN: &str = "via ADDRESS, dev PORT, weight N, metric N, blackhole, unreachable, prohibit";

const KEYWORDS: [&str; 7] =
    ["via", "dev", "weight", "metric", "blackhole", "unreachable", "prohibit"];

/// Returns the error for an unexpected word, with the probably intended one and the known ones.
pub fn unexpected(word: &str, keywords: &[&str], known: &str) -> String {
    let guess = did_you_mean(word, keywords.iter().copied().filter(|known| *known != word));
    let guess =
        guess.map_or_else(|| ";".to_owned(), |guess| format!("; did you mean \"{guess}\"?"));
    format!("\"{word}\": not expected here{guess} known: {known}")
}

/// Parses `PREFIX via ADDRESS [dev PORT] [weight N] … [metric N]` and its other forms.
///
/// Each `via` begins a path; `dev` and `weight` belong to the path before them. `dev` without a
/// `via` before it is a path to the hosts on that port.
pub fn route_add(words: &[String]) -> Result<RouteAdd> {
    let mut words = Words(words.iter());
    let prefix = prefix(words.argument("a prefix such as 198.51.100.0/24")?)?;
    let mut paths: Vec<PathSpec> = Vec::new();
    let mut kind = None;
    let mut metric = 0;
    while let Some(word) = words.0.next() {
        match word.as_str() {
            "via" => paths.push(PathSpec::via(words.address(word)?)),
            "dev" => {
                let port = words.after(word)?;
                match paths.last_mut() {
                    Some(path) if path.port.is_none() => path.port = Some(port.to_owned()),
                    _ => paths.push(PathSpec::port(port)),
                }
            }
            "weight" => {
                let weight = words.number(word)?;
                let path = paths.last_mut();
                path.context("weight: belongs to a path; write via ADDRESS before it")?.weight =
                    weight;
            }
            "metric" => metric = words.number(word)?,
            "blackhole" | "unreachable" | "prohibit" if kind.is_none() => {
                kind = Some(refusal(word));
            }
            other => bail!("{}", unexpected(other, &KEYWORDS, KNOWN)),
        }
    }
    match kind {
        Some(_) if !paths.is_empty() => bail!(
            "route {prefix}: a route that refuses packets has no paths; leave out via and dev, or \
             the refusal"
        ),
        None if paths.is_empty() => {
            bail!("route {prefix}: no next hop; known: {KNOWN}")
        }
        kind => {
            let kind = kind.unwrap_or_default();
            Ok(RouteAdd { kind, paths, metric, ..RouteAdd::to(prefix) })
        }
    }
}

/// Parses `PREFIX [metric N]`.
pub fn route_del(words: &[String]) -> Result<RouteDel> {
    let mut words = Words(words.iter());
    let prefix = prefix(words.argument("a prefix such as 198.51.100.0/24")?)?;
    let mut metric = None;
    while let Some(word) = words.0.next() {
        match word.as_str() {
            "metric" => metric = Some(words.number(word)?),
            other => bail!("{}", unexpected(other, &["metric"], "metric N")),
        }
    }
    Ok(RouteDel { prefix, metric, vrf: None })
}

fn refusal(word: &str) -> RouteType {
    match word {
        "blackhole" => RouteType::Blackhole,
        "unreachable" => RouteType::Unreachable,
        _ => RouteType::Prohibit,
    }
}

/// Parses a destination: a prefix, a host's address, or `default`.
pub fn prefix(text: &str) -> Result<IpNet> {
    if text == "default" {
        return Ok(IpNet::V4(ipnet::Ipv4Net::default()));
    }
    let host = text.parse::<IpAddr>().map(IpNet::from);
    let net: IpNet = host.or_else(|_| text.parse()).ok().with_context(|| {
        format!(
            "\"{text}\": not an IP prefix; write it as 198.51.100.0/24 or 2001:db8::/32 (\"default\" \
             is 0.0.0.0/0)"
        )
    })?;
    if net.trunc() != net {
        bail!("\"{text}\": host bits are set; the prefix is {}", net.trunc());
    }
    Ok(net)
}

/// Returns the keywords that can follow these words of a command, with their meanings, or the value
/// required there; `None` for other commands.
pub fn next(commands: &[&str], words: &[String]) -> Option<Vec<(&'static str, &'static str)>> {
    const VIA: (&str, &str) = ("via", "A gateway: ADDRESS");
    const DEV: (&str, &str) = ("dev", "Its port: PORT");
    const METRIC: (&str, &str) = ("metric", "The smallest wins: N");
    const LLADDR: (&str, &str) = ("lladdr", "Its MAC");
    const REFUSALS: [(&str, &str); 3] = [
        ("blackhole", "Packets are dropped in silence"),
        ("unreachable", "Answered with an ICMP error: host unreachable"),
        ("prohibit", "Answered with an ICMP error: prohibited"),
    ];
    let value = |keyword: &str| match keyword {
        "via" => Some(("ADDRESS", "The gateway's")),
        "dev" => Some(("PORT", "A port")),
        "weight" | "metric" => Some(("N", "A number")),
        "lladdr" => Some(("MAC", "Such as 02:00:00:00:00:01")),
        _ => None,
    };
    let said = |keyword: &&(&str, &str)| words.iter().any(|word| word == keyword.0);
    let missing = |keywords: &[(&'static str, &'static str)]| {
        keywords.iter().filter(|keyword| !said(keyword)).copied().collect()
    };
    let keywords = match commands {
        ["route", ..] if words.is_empty() => vec![("PREFIX", "Such as 198.51.100.0/24")],
        _ if words.last().and_then(|word| value(word)).is_some() => {
            words.last().and_then(|word| value(word)).into_iter().collect()
        }
        ["route", "add"] if words.len() == 1 => [&[VIA, DEV][..], &REFUSALS].concat(),
        ["route", "add"] if words.iter().any(|word| REFUSALS.iter().any(|r| r.0 == word)) => {
            missing(&[METRIC])
        }
        ["route", "add"] => {
            let weight = ("weight", "Its share of the flows: N");
            [vec![VIA, DEV, weight], missing(&[METRIC])].concat()
        }
        ["route", "del"] => missing(&[METRIC]),
        ["neighbour", "add"] => missing(&[LLADDR, DEV]),
        ["neighbour", "del"] => missing(&[DEV]),
        _ => return None,
    };
    Some(keywords)
}

struct Words<'a>(std::slice::Iter<'a, String>);

impl<'a> Words<'a> {
    fn argument(&mut self, what: &str) -> Result<&'a str> {
        self.0.next().map(String::as_str).with_context(|| format!("expected {what}"))
    }

    fn after(&mut self, keyword: &str) -> Result<&'a str> {
        self.0
            .next()
            .map(String::as_str)
            .with_context(|| format!("{keyword}: nothing behind it; known: {KNOWN}"))
    }

    fn address(&mut self, keyword: &str) -> Result<IpAddr> {
        let text = self.after(keyword)?;
        text.parse().ok().with_context(|| {
            format!("{keyword} \"{text}\": not an IP address; write 10.0.2.2 or fd00:2::2")
        })
    }

    fn number<T: std::str::FromStr>(&mut self, keyword: &str) -> Result<T> {
        let text = self.after(keyword)?;
        text.parse().ok().with_context(|| {
            format!("{keyword} \"{text}\": not a number that fits; write {keyword} 1")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn paths_are_read_one_after_the_other() {
        let add = route_add(&words(
            "198.51.100.0/24 via 10.0.2.2 dev right weight 3 via fd00::2 metric 9",
        ))
        .unwrap();
        let first = PathSpec {
            port: Some("right".to_owned()),
            weight: 3,
            ..PathSpec::via(address("10.0.2.2"))
        };
        assert_eq!(add.paths, [first, PathSpec::via(address("fd00::2"))]);
        assert_eq!((add.prefix.to_string().as_str(), add.metric), ("198.51.100.0/24", 9));
        assert_eq!(add.kind, RouteType::Unicast);
    }

    #[test]
    fn a_port_alone_is_a_path_and_so_is_a_second_one() {
        let add = route_add(&words("10.0.0.0/8 dev left dev right weight 2")).unwrap();
        let right = PathSpec { weight: 2, ..PathSpec::port("right") };
        assert_eq!(add.paths, [PathSpec::port("left"), right]);
    }

    #[test]
    fn refusals_hosts_and_the_default_are_read() {
        for (text, kind) in [
            ("blackhole", RouteType::Blackhole),
            ("unreachable", RouteType::Unreachable),
            ("prohibit", RouteType::Prohibit),
        ] {
            assert_eq!(route_add(&words(&format!("::/0 {text}"))).unwrap().kind, kind);
        }
        assert_eq!(prefix("192.0.2.1").unwrap().to_string(), "192.0.2.1/32");
        assert_eq!(prefix("default").unwrap().to_string(), "0.0.0.0/0");
        let del = route_del(&words("192.0.2.0/24 metric 4")).unwrap();
        assert_eq!((del.prefix.to_string().as_str(), del.metric), ("192.0.2.0/24", Some(4)));
        assert_eq!(route_del(&words("192.0.2.0/24")).unwrap().metric, None);
    }

    #[test]
    fn what_is_wrong_is_named_with_the_way_out() {
        for (text, expected) in [
            ("", "expected a prefix such as 198.51.100.0/24"),
            ("hello via 10.0.0.1", "\"hello\": not an IP prefix; write it as"),
            (
                "10.0.0.1/8 via 10.0.0.1",
                "\"10.0.0.1/8\": host bits are set; the prefix is 10.0.0.0/8",
            ),
            ("10.0.0.0/8", "route 10.0.0.0/8: no next hop; known: via ADDRESS"),
            ("10.0.0.0/8 via", "via: nothing behind it"),
            ("10.0.0.0/8 via x", "via \"x\": not an IP address"),
            ("10.0.0.0/8 weight 2", "weight: belongs to a path"),
            ("10.0.0.0/8 via 10.0.0.1 weight many", "weight \"many\": not a number that fits"),
            ("10.0.0.0/8 via 10.0.0.1 blackhole", "a route that refuses packets has no paths"),
            ("10.0.0.0/8 gateway 10.0.0.1", "\"gateway\": not expected here; known: via ADDRESS"),
            (
                "10.0.0.0/8 vai x",
                "\"vai\": not expected here; did you mean \"via\"? known: via ADDRESS",
            ),
            ("10.0.0.0/8 blackhole prohibit", "\"prohibit\": not expected here"),
        ] {
            let error = route_add(&words(text)).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(route_del(&words("10.0.0.0/8 via")).is_err());
    }
}
