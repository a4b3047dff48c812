//! Needs of the machine itself for a NIC, and programs that use it.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::record::Seen;
use crate::Machine;
use crate::network::Network;
use crate::pci::PciNic;

/// A use of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// A program, by a driver that leaves the device to it.
    Program(String),
    /// A default route uses this interface.
    DefaultRoute(String),
    /// A remote session uses this address of this interface.
    Session(String, IpAddr),
    /// An interface has this address.
    Address(String, IpNet),
    /// Its interface is in another network namespace.
    Elsewhere,
}

impl User {
    /// Returns true for a use that ends only with its program.
    pub fn is_program(&self) -> bool {
        matches!(self, Self::Program(_))
    }

    /// Returns the interface of the use.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::DefaultRoute(name) | Self::Session(name, _) | Self::Address(name, _) => {
                Some(name)
            }
            Self::Program(_) | Self::Elsewhere => None,
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) => f.write_str(name),
            Self::DefaultRoute(interface) => write!(f, "the default route over {interface}"),
            Self::Session(interface, address) => {
                write!(f, "a session to {address} on {interface}")
            }
            Self::Address(interface, address) => write!(f, "{address} on {interface}"),
            Self::Elsewhere => f.write_str("an interface in another network namespace"),
        }
    }
}

/// Returns the users of a NIC with this record.
pub fn of_nic(
    machine: &Machine,
    network: &Network,
    nic: &PciNic,
    record: Option<&Seen>,
) -> Vec<User> {
    let mut users: Vec<User> = Vec::new();
    let holder = machine.holder(nic);
    if let Some(holder) = &holder {
        users.push(User::Program(format!("process {} ({})", holder.process, holder.name)));
    } else if record.is_some_and(|record| record.in_use) {
        users.push(User::Program("another router".to_owned()));
    }
    for name in &nic.interfaces {
        users.extend(of_interface(machine, network, name));
    }
    users.extend(nic.elsewhere.then_some(User::Elsewhere));
    users
}

/// Returns the users of a kernel interface, and of those created over it.
pub fn of_interface(machine: &Machine, network: &Network, name: &str) -> Vec<User> {
    let router = network.routers.get(name);
    let router = router.map(|process| User::Program(format!("a router, {process}")));
    let mut users: Vec<User> = router.into_iter().collect();
    for name in machine.with_uppers(name) {
        if network.default_routes.contains(&name) {
            users.push(User::DefaultRoute(name.clone()));
        }
        let addresses = network.addresses.get(&name).into_iter().flatten();
        users.extend(addresses.map(|&net| match network.has_session(net.addr()) {
            true => User::Session(name.clone(), net.addr()),
            false => User::Address(name.clone(), net),
        }));
    }
    users
}
