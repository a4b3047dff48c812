//! `turnpike devices`, `bind` and `unbind`: NICs and their drivers, without a running router.

use anyhow::{Context, Result, bail};
use clap::Args;
use machine::bind::give::Returned;
use machine::bind::{Binder, Bound, DEFAULT_DRIVER, Wish};

use crate::table;

/// The form of the list.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The devices to bind.
#[derive(Debug, Args)]
pub struct BindArgs {
    /// PCI addresses; several of one IOMMU group are bound together
    #[arg(required = true)]
    pci: Vec<String>,
    /// The driver: vfio-pci, uio_pci_generic (without an IOMMU), or one of the kernel's
    #[arg(long, default_value = DEFAULT_DRIVER)]
    driver: String,
    /// Also devices with addresses, the default route or a session
    #[arg(long)]
    force: bool,
    /// Also at each start of the machine, by a rule of udev
    #[arg(long)]
    remember: bool,
}

/// The devices to give back.
#[derive(Debug, Args)]
pub struct UnbindArgs {
    /// PCI addresses
    #[arg(required = true)]
    pci: Vec<String>,
}

/// Returns the report of NICs and other kernel interfaces.
pub fn devices(args: &DevicesArgs) -> Result<String> {
    let devices = Binder::here().devices();
    Ok(if args.json { serde_json::to_string_pretty(&devices)? } else { table::devices(&devices) })
}

/// Binds devices; returns a line for each.
pub fn bind(args: &BindArgs) -> Result<String> {
    let wish = |text: &String| {
        let (driver, force) = (args.driver.clone(), args.force);
        Ok(Wish { address: address(text)?, driver, force, router: false })
    };
    let wishes = args.pci.iter().map(wish).collect::<Result<Vec<_>>>()?;
    let mut lines = Vec::new();
    for (wish, bound) in wishes.iter().zip(Binder::here().bind(&wishes, args.remember)?) {
        let Wish { address, driver, .. } = wish;
        let Bound { before, rule, carried } = bound;
        lines.push(match before.as_deref() {
            Some(before) if before == driver => format!("{address}: bound to {driver} already"),
            Some(before) => format!("{address}: bound to {driver}; it was to {before}"),
            None => format!("{address}: bound to {driver}"),
        });
        if !carried.is_empty() {
            lines.push(format!(
                "{address}: cut off: {}; turnpike unbind puts addresses back, not routes",
                carried.join(", ")
            ));
        }
        lines.extend(rule.map(|rule| format!("{address}: written: {}", rule.display())));
    }
    Ok(lines.join("\n"))
}

/// Gives devices back, continuing after errors; returns a line for each.
pub fn unbind(args: &UnbindArgs) -> Result<String> {
    let addresses = args.pci.iter().map(|text| address(text)).collect::<Result<Vec<_>>>()?;
    let binder = Binder::here();
    let (mut lines, mut faults) = (Vec::new(), Vec::new());
    for address in &addresses {
        match binder.unbind(address) {
            Ok(returned) => lines.extend(given_back(address, returned)),
            Err(fault) => faults.push(format!("{fault:#}")),
        }
    }
    if !faults.is_empty() {
        bail!("{}", [faults, lines].concat().join("\n"));
    }
    Ok(lines.join("\n"))
}

fn given_back(address: &str, returned: Returned) -> Vec<String> {
    let driver = returned.driver.unwrap_or_default();
    let mut lines = vec![match returned.unchanged {
        true => format!("{address}: bound to {driver} already, which is the kernel's"),
        false => format!("{address}: given back to {driver}"),
    }];
    lines.extend(returned.rule.map(|rule| format!("{address}: removed: {}", rule.display())));
    lines.extend(returned.lost.iter().map(|lost| format!("{address}: not as it was: {lost}")));
    lines
}

/// Returns a PCI address with its domain, in the kernel's notation.
fn address(text: &str) -> Result<String> {
    if text.is_empty() {
        bail!("no PCI address; see turnpike devices");
    }
    let address = dpdk::pci_address(&text.to_ascii_lowercase());
    address.with_context(|| {
        format!("\"{text}\": not a PCI address; write it as 0000:03:00.0, see turnpike devices")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed_or_refused() {
        assert_eq!(address("03:00.A").ok(), None);
        assert_eq!(address("AF:00.0").unwrap(), "0000:af:00.0");
        let error = address("eth1").unwrap_err().to_string();
        assert!(error.starts_with("\"eth1\": not a PCI address; write it as"), "{error}");
        assert!(address("").is_err());
    }
}
