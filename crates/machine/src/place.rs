//! Port names as prefixes of errors.

use anyhow::{Error, Result};

/// Extension of results about a port.
pub trait Place<T> {
    /// Prefixes the error with the port's name, unless it contains the name already.
    ///
    /// # Errors
    /// That of the result.
    fn of_port(self, name: &str) -> Result<T>;
}

impl<T, E: Into<Error>> Place<T> for Result<T, E> {
    fn of_port(self, name: &str) -> Result<T> {
        self.map_err(|error| of_port(error.into(), name))
    }
}

/// [`Place::of_port`] for an error.
pub fn of_port(error: Error, name: &str) -> Error {
    let place = format!("port \"{name}\"");
    let named = error.chain().any(|cause| cause.to_string().starts_with(&format!("{place}: ")));
    if named { error } else { error.context(place) }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_port_is_named_once() {
        let said = |error: Error| format!("{:#}", of_port(error, "lan"));
        let inner = dpdk::Error::PortConfig { port: "lan".into(), problem: "no MTU 9".into() };
        assert_eq!(said(inner.clone().into()), "port \"lan\": no MTU 9");
        let outer = Error::from(inner).context("device eth1");
        assert_eq!(said(outer), "device eth1: port \"lan\": no MTU 9");
        assert_eq!(said(anyhow!("no memory")), "port \"lan\": no memory");
        assert_eq!(said(anyhow!("port \"wan\": up")), "port \"lan\": port \"wan\": up");
        let result: Result<()> = Err(dpdk::Error::EalStarted).of_port("lan");
        assert!(format!("{:#}", result.unwrap_err()).starts_with("port \"lan\": DPDK's EAL"));
    }
}
