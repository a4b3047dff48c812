//! Objects for an SNMP agent: IF-MIB (RFC 2863) and the routes of IP-FORWARD-MIB (RFC 4292).
//!
//! A request names an object, or asks for the one behind it in the order of identifiers. Interfaces are asked from the
//! owner at most once a second. Routes are asked by pages from the place of the request on, and a page is kept for the
//! requests behind it: a walk over a million routes copies each page once for each column, and never the table.

use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentx::{Oid, Range, Value, VarBind};
use control::config;
use ipnet::IpNet;

use super::sflow::kind;
use super::{Ask, InterfaceRow, OwnerLink, RoutePage, RouteRow};

/// The age up to which answers of the owner are used.
const FRESH: Duration = Duration::from_secs(1);

/// Subtrees that the router has, in order.
pub const SUBTREES: [&[u32]; 6] =
    [IF_NUMBER, IF_TABLE, ROUTE_NUMBER_0, ROUTE_TABLE, IF_X_TABLE, IF_STACK_TABLE];

const IF_NUMBER: &[u32] = &[1, 3, 6, 1, 2, 1, 2, 1];
const IF_TABLE: &[u32] = &[1, 3, 6, 1, 2, 1, 2, 2];
const ROUTE_NUMBER: &[u32] = &[1, 3, 6, 1, 2, 1, 4, 24, 6];
/// net-snmp's own module has the instance.
const ROUTE_NUMBER_0: &[u32] = &[1, 3, 6, 1, 2, 1, 4, 24, 6, 0];
const ROUTE_TABLE: &[u32] = &[1, 3, 6, 1, 2, 1, 4, 24, 7];
const IF_X_TABLE: &[u32] = &[1, 3, 6, 1, 2, 1, 31, 1, 1];
const IF_STACK_TABLE: &[u32] = &[1, 3, 6, 1, 2, 1, 31, 1, 2];

/// Columns that rows have; others are of no use here, or not known.
const IF_COLUMNS: [u32; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 14, 16, 17];
const IF_LAST: u32 = 20;
const IF_X_COLUMNS: [u32; 11] = [1, 6, 7, 10, 11, 14, 15, 16, 17, 18, 19];
const ROUTE_COLUMNS: [u32; 10] = [7, 8, 9, 11, 12, 13, 14, 15, 16, 17];
const STACK_STATUS: u32 = 3;

/// A column or a single object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Interfaces,
    Interface(u32),
    Routes,
    Route(u32),
    Extended(u32),
    Stack,
}

/// Returns all of them with the beginnings of their identifiers, in order.
fn columns() -> impl Iterator<Item = (Oid, Column)> {
    let of = |table: &[u32], column: u32| Oid::new(table).with(&[1, column]);
    let interfaces = IF_COLUMNS.into_iter().chain([IF_LAST]);
    let interfaces =
        interfaces.map(move |column| (of(IF_TABLE, column), Column::Interface(column)));
    let routes = ROUTE_COLUMNS
        .into_iter()
        .map(move |column| (of(ROUTE_TABLE, column), Column::Route(column)));
    let extended = IF_X_COLUMNS
        .into_iter()
        .map(move |column| (of(IF_X_TABLE, column), Column::Extended(column)));
    [(Oid::new(IF_NUMBER), Column::Interfaces)]
        .into_iter()
        .chain(interfaces)
        .chain([(Oid::new(ROUTE_NUMBER), Column::Routes)])
        .chain(routes)
        .chain(extended)
        .chain([(of(IF_STACK_TABLE, STACK_STATUS), Column::Stack)])
}

/// The objects.
pub struct Objects {
    owner: Arc<OwnerLink>,
    interfaces: Option<(Instant, Vec<InterfaceRow>)>,
    page: Option<Page>,
}

/// Some rows of the route table.
struct Page {
    at: Instant,
    /// Rows behind this index are all there, up to the last.
    after: Vec<u32>,
    rows: Vec<(Vec<u32>, RouteRow)>,
    is_last: bool,
}

/// The owner does not answer.
#[derive(Debug)]
pub struct Silent;

impl Objects {
    /// Creates them.
    pub fn new(owner: Arc<OwnerLink>) -> Self {
        Self { owner, interfaces: None, page: None }
    }

    /// Returns an object.
    ///
    /// # Errors
    /// The owner does not answer.
    pub async fn get(&mut self, name: &Oid) -> Result<VarBind, Silent> {
        let mut value = Value::NoSuchObject;
        for (prefix, column) in columns() {
            let Some(index) = name.within(prefix.parts()) else { continue };
            let found = self.first(column, index, true).await?;
            let found = found.filter(|(found, _)| found == index);
            value = found.map_or(Value::NoSuchInstance, |(_, value)| value);
        }
        Ok(VarBind { name: name.clone(), value })
    }

    /// Returns the first object of a range.
    ///
    /// # Errors
    /// The owner does not answer.
    pub async fn next(&mut self, range: &Range) -> Result<VarBind, Silent> {
        for (prefix, column) in columns() {
            let within = range.start.within(prefix.parts());
            if within.is_none() && range.start > prefix {
                continue;
            }
            let (index, include) = (within.unwrap_or_default(), range.include || within.is_none());
            let Some((index, value)) = self.first(column, index, include).await? else { continue };
            let name = prefix.with(&index);
            if !range.end.is_null() && name >= range.end {
                break;
            }
            return Ok(VarBind { name, value });
        }
        Ok(VarBind { name: range.start.clone(), value: Value::EndOfMibView })
    }

    /// Returns the first object of a column with this index, if it is to be included, or behind it.
    async fn first(
        &mut self,
        column: Column,
        index: &[u32],
        include: bool,
    ) -> Result<Option<(Vec<u32>, Value)>, Silent> {
        let fits = |found: &[u32]| if include { found >= index } else { found > index };
        Ok(match column {
            Column::Interfaces => {
                let count = self.interfaces().await?.len() as i32;
                fits(&[0]).then(|| (vec![0], Value::Integer(count)))
            }
            Column::Interface(column) => {
                let rows = self.interfaces().await?.iter();
                let mut rows = rows.filter(|row| fits(&[row.number]));
                rows.find_map(|row| Some((vec![row.number], interface(row, column)?)))
            }
            Column::Extended(column) => {
                let rows = self.interfaces().await?.iter();
                let mut rows = rows.filter(|row| fits(&[row.number]));
                rows.find_map(|row| Some((vec![row.number], extended(row, column)?)))
            }
            Column::Stack => {
                let pairs = stack(self.interfaces().await?);
                let found = pairs.into_iter().find(|pair| fits(pair));
                found.map(|pair| (pair.to_vec(), Value::Integer(1)))
            }
            Column::Routes => {
                let count = self.owner.ask(Ask::RouteCount).await.ok_or(Silent)?;
                fits(&[0]).then(|| (vec![0], Value::Gauge32(count)))
            }
            Column::Route(column) => {
                let found = self.route(index, include).await?;
                found.map(|(index, row)| (index, route(&row, column)))
            }
        })
    }

    async fn interfaces(&mut self) -> Result<&[InterfaceRow], Silent> {
        if self.interfaces.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH) {
            let rows = self.owner.interfaces().await.ok_or(Silent)?;
            self.interfaces = Some((Instant::now(), rows));
        }
        Ok(self.interfaces.as_ref().map_or(&[], |(_, rows)| rows))
    }

    async fn route(
        &mut self,
        index: &[u32],
        include: bool,
    ) -> Result<Option<(Vec<u32>, RouteRow)>, Silent> {
        if let Some(found) = self.page.as_ref().and_then(|page| page.find(index, include)) {
            return Ok(found);
        }
        let Some(mut start) = start(index) else { return Ok(None) };
        loop {
            let page = self.owner.ask(|to| Ask::Routes(start, to)).await.ok_or(Silent)?;
            let RoutePage { rows, next } = page;
            let mut rows: Vec<_> = rows.into_iter().map(|row| (index_of(&row), row)).collect();
            rows.sort_by(|(one, _), (other, _)| one.cmp(other));
            rows.dedup_by(|(one, _), (other, _)| one == other);
            let (after, is_last) = (index.to_vec(), next.is_none());
            let page = Page { at: Instant::now(), after, rows, is_last };
            let found = page.find(index, include);
            self.page = Some(page);
            match (found, next) {
                (Some(found), _) => return Ok(found),
                (None, Some(next)) => start = Bound::Excluded(next),
                (None, None) => return Ok(None),
            }
        }
    }
}

impl Page {
    /// Returns the row with this index or behind it; `None` if it does not know.
    fn find(&self, index: &[u32], include: bool) -> Option<Option<(Vec<u32>, RouteRow)>> {
        if self.at.elapsed() > FRESH || *self.after > *index {
            return None;
        }
        let before = |(of, _): &(Vec<u32>, RouteRow)| {
            if include { **of < *index } else { **of <= *index }
        };
        match self.rows.get(self.rows.partition_point(before)) {
            Some(found) => Some(Some(found.clone())),
            None => self.is_last.then_some(None),
        }
    }
}

/// Returns a place in the RIB's order that is not behind this index; `None` if all routes are before it.
fn start(index: &[u32]) -> Option<Bound<IpNet>> {
    let byte = |place: usize| index.get(2 + place).map_or(0, |part| (*part).min(255) as u8);
    let len = index.get(1).copied().unwrap_or(0);
    let address: IpAddr = match index.first() {
        None | Some(0) => return Some(Bound::Unbounded),
        Some(1) if len < 4 => return Some(Bound::Unbounded),
        Some(1) if len == 4 => std::array::from_fn::<u8, 4, _>(byte).into(),
        Some(2) if len == 16 => std::array::from_fn::<u8, 16, _>(byte).into(),
        Some(1) => [0_u8; 16].into(),
        Some(2) if len < 16 => [0_u8; 16].into(),
        Some(_) => return None,
    };
    // The shortest prefix with this address.
    let len = match address {
        IpAddr::V4(address) => 32 - address.to_bits().trailing_zeros(),
        IpAddr::V6(address) => 128 - address.to_bits().trailing_zeros(),
    };
    Some(Bound::Included(IpNet::new(address, len as u8).ok()?))
}

fn octets(address: IpAddr) -> Vec<u32> {
    match address {
        IpAddr::V4(address) => address.octets().map(u32::from).to_vec(),
        IpAddr::V6(address) => address.octets().map(u32::from).to_vec(),
    }
}

/// Type, length and octets of an address (RFC 4001).
fn typed(address: IpAddr) -> Vec<u32> {
    let octets = octets(address);
    let kind = if address.is_ipv4() { 1 } else { 2 };
    [vec![kind, octets.len() as u32], octets].concat()
}

/// Destination, prefix length, policy `0.0`, next hop.
fn index_of(row: &RouteRow) -> Vec<u32> {
    let next_hop = row.next_hop.map_or_else(|| vec![0, 0], typed);
    let len = vec![row.prefix.prefix_len().into(), 2, 0, 0];
    [typed(row.prefix.addr()), len, next_hop].concat()
}

fn route(row: &RouteRow, column: u32) -> Value {
    match column {
        7 => Value::Integer(row.interface as i32),
        8 => Value::Integer(row.kind),
        9 => Value::Integer(row.protocol),
        11 => Value::Gauge32(0),
        12 => Value::Integer(row.metric),
        17 => Value::Integer(1),
        // Metrics that are not used.
        _ => Value::Integer(-1),
    }
}

const MEGA: u64 = 1_000_000;

fn interface(row: &InterfaceRow, column: u32) -> Option<Value> {
    let device = row.device;
    Some(match column {
        1 => Value::Integer(row.number as i32),
        2 => Value::OctetString(row.name.clone().into_bytes()),
        3 => Value::Integer(kind(&row.kind) as i32),
        4 => Value::Integer(row.mtu.into()),
        5 => {
            let speed = u64::from(device.and_then(|of| of.speed_mbps).unwrap_or(0)) * MEGA;
            Value::Gauge32(speed.try_into().unwrap_or(u32::MAX))
        }
        6 => {
            let mac = row.mac.filter(|_| row.kind != config::LOOPBACK);
            Value::OctetString(mac.map_or_else(Vec::new, |mac| mac.0.to_vec()))
        }
        7 => Value::Integer(1),
        8 => Value::Integer(match &*row.link {
            "up" => 1,
            "gone" => 6,
            _ => 2,
        }),
        // Narrow counters begin anew after their last number.
        10 => Value::Counter32(row.rx_bytes as u32),
        11 => Value::Counter32(row.rx_packets as u32),
        13 => Value::Counter32(device?.rx_missed as u32),
        14 => Value::Counter32(device?.rx_errors as u32),
        16 => Value::Counter32(row.tx_bytes as u32),
        17 => Value::Counter32(row.tx_packets as u32),
        IF_LAST => Value::Counter32(device?.tx_errors as u32),
        _ => return None,
    })
}

fn extended(row: &InterfaceRow, column: u32) -> Option<Value> {
    let truth = |is: bool| Value::Integer(if is { 1 } else { 2 });
    Some(match column {
        1 => Value::OctetString(row.name.clone().into_bytes()),
        6 => Value::Counter64(row.rx_bytes),
        7 => Value::Counter64(row.rx_packets),
        10 => Value::Counter64(row.tx_bytes),
        11 => Value::Counter64(row.tx_packets),
        14 => Value::Integer(2),
        15 => Value::Gauge32(row.device.and_then(|of| of.speed_mbps).unwrap_or(0)),
        16 => truth(row.device.is_some_and(|of| of.promiscuous)),
        17 => truth(row.kind == "port"),
        18 => Value::OctetString(Vec::new()),
        19 => Value::TimeTicks(0),
        _ => return None,
    })
}

/// Returns the pairs of a higher interface and the one below it, 0 for none, in order.
fn stack(rows: &[InterfaceRow]) -> Vec<[u32; 2]> {
    let below = |row: &InterfaceRow| -> Option<[u32; 2]> {
        let parent = row.parent?;
        // A port belongs to its bond, which is above it.
        Some(if row.kind == "port" { [parent, row.number] } else { [row.number, parent] })
    };
    let mut pairs: Vec<_> = rows.iter().filter_map(below).collect();
    for row in rows {
        if pairs.iter().all(|[_, lower]| *lower != row.number) {
            pairs.push([0, row.number]);
        }
        if pairs.iter().all(|[higher, _]| *higher != row.number) {
            pairs.push([row.number, 0]);
        }
    }
    pairs.sort();
    pairs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::sync::mpsc;

    use super::super::super::server::Question;
    use super::*;

    fn row(prefix: &str, next_hop: Option<&str>) -> RouteRow {
        RouteRow {
            prefix: prefix.parse().unwrap(),
            next_hop: next_hop.map(|hop| hop.parse().unwrap()),
            interface: 2,
            kind: 4,
            protocol: 3,
            metric: 0,
        }
    }

    /// Routes in the RIB's order, each prefix once or twice.
    fn routes() -> Vec<RouteRow> {
        let mut rows = vec![row("0.0.0.0/0", Some("10.0.2.9"))];
        for n in 0..20 {
            rows.push(row(&format!("10.{n}.0.0/16"), Some("10.0.2.9")));
            rows.push(row(&format!("10.{n}.0.0/16"), Some("10.0.1.9")));
            rows.push(row(&format!("10.{n}.0.0/24"), None));
        }
        rows.push(row("::/0", Some("fd00::9")));
        rows.push(row("fd00::/64", None));
        rows
    }

    /// Simulates an owner with few routes on a page.
    async fn answer(mut questions: mpsc::Receiver<Question>) {
        while let Some(question) = questions.recv().await {
            match question {
                Question::Export(Ask::Routes(start, to)) => {
                    let rows = routes();
                    let mut prefixes: Vec<_> = rows.iter().map(|row| row.prefix).collect();
                    prefixes.dedup();
                    let fits = |net: &IpNet| match start {
                        Bound::Unbounded => true,
                        Bound::Included(start) => *net >= start,
                        Bound::Excluded(start) => *net > start,
                    };
                    let page: Vec<_> = prefixes.into_iter().filter(fits).take(4).collect();
                    let next = page.last().copied().filter(|_| page.len() == 4);
                    let rows = rows.into_iter().filter(|row| page.contains(&row.prefix));
                    let _ = to.send(RoutePage { rows: rows.collect(), next });
                }
                Question::Export(Ask::RouteCount(to)) => _ = to.send(63),
                Question::Export(Ask::Interfaces(to)) => _ = to.send(Vec::new()),
                _ => panic!("another question"),
            }
        }
    }

    fn with_objects<T>(run: impl AsyncFnOnce(&mut Objects) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ask, questions) = mpsc::channel(1);
            tokio::spawn(answer(questions));
            run(&mut Objects::new(Arc::new(OwnerLink(ask)))).await
        })
    }

    #[test]
    fn a_walk_visits_every_route_once_in_order() {
        let mut expected: Vec<_> = routes().iter().map(index_of).collect();
        expected.sort();
        assert_eq!(expected.len(), 63);
        let column = Oid::new(ROUTE_TABLE).with(&[1, 7]);
        let end = Oid::new(ROUTE_TABLE).with(&[1, 8]);
        let found = with_objects(async |objects| {
            let (mut at, mut found) = (column.clone(), Vec::new());
            loop {
                let range = Range { start: at, include: false, end: end.clone() };
                let VarBind { name, value } = objects.next(&range).await.unwrap();
                if value == Value::EndOfMibView {
                    break found;
                }
                found.push(name.within(column.parts()).unwrap().to_vec());
                at = name;
            }
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn columns_are_in_order_and_within_their_subtrees() {
        let all: Vec<_> = columns().collect();
        assert!(all.is_sorted_by(|(one, _), (other, _)| one < other));
        assert!(SUBTREES.is_sorted());
        let within = |oid: &Oid| SUBTREES.iter().any(|tree| oid.within(tree).is_some());
        assert!(all.iter().all(|(oid, _)| within(&oid.with(&[0]))));
    }

    #[test]
    fn interfaces_are_stacked() {
        let of = |number, kind: &str, parent| InterfaceRow {
            number,
            name: String::new(),
            kind: kind.to_owned(),
            parent,
            mac: None,
            mtu: 1500,
            addresses: vec![],
            link: "up".to_owned(),
            rx_packets: 0,
            rx_bytes: 0,
            tx_packets: 0,
            tx_bytes: 0,
            device: None,
        };
        let rows = [
            of(1, "port", Some(65)),
            of(2, "port", None),
            of(65, "bond", None),
            of(66, "vlan", Some(65)),
        ];
        assert_eq!(stack(&rows), [[0, 2], [0, 66], [1, 0], [2, 0], [65, 1], [66, 65]]);
    }

    proptest! {
        /// Whatever index is asked for, the row behind it is found.
        #[test]
        fn the_row_behind_any_index_is_found(cut in 0..20usize, at in 0..63usize, change in 0..20usize, to in 0..300u32) {
            let mut all: Vec<_> = routes().iter().map(index_of).collect();
            all.sort();
            let mut index = all[at].clone();
            if let Some(part) = index.get_mut(change) {
                *part = to;
            }
            index.truncate(cut);
            let expected = all.iter().find(|of| **of > index).cloned();
            let found = with_objects(async |objects| objects.route(&index, false).await.unwrap());
            prop_assert_eq!(found.map(|(index, _)| index), expected);
        }
    }
}
