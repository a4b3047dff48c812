//! Handlers of elements that have become a part of a `schedule`, and of those with tickets or rates in a list.

use control::config::Element;
use dataplane::params::{Arg, Given, Rate};
use dataplane::steps::{Meters, OrderNumber, order_number};

use super::text::lines;
use super::{Edit, Value, order_of};
use crate::handlers::{self, Form, Unit};
use crate::owner::Owner;

/// Most tickets; Click takes more as so many, too.
const TICKETS_MOST: i64 = 1 << 15;

impl Owner {
    /// Returns true if an element is a part of a `schedule`.
    pub(super) fn is_in_order(&self, element: &Element) -> bool {
        self.step(element).is_ok_and(|(plan, step)| order_of(plan, step).is_some())
    }

    /// A number of an element's node.
    pub(super) fn node(&self, element: &Element, which: OrderNumber, form: Form) -> Value {
        let (plan, step) = self.step(element)?;
        let order = order_of(plan, step).unwrap_or_default();
        let text =
            order_number(order, &element.name, which).ok_or_else(|| Self::nothing(element))?;
        Ok(Rate::read(text).map_or_else(|| text.to_owned(), |rate| form.write(&Arg::Rate(rate))))
    }

    pub(super) fn set_node(
        &self,
        element: &Element,
        which: OrderNumber,
        form: Form,
        text: &str,
    ) -> Result<Edit, String> {
        self.node(element, which, form)?;
        let (_, step) = self.step(element)?;
        let value = match form.read(text, element.inputs.len())? {
            Given::Text(text) => text,
            Given::Number(number) => number.to_string(),
            other => return Err(format!("{other}: it is no number")),
        };
        let (step, label) = (step.to_owned(), element.name.clone());
        Ok(Edit::Node { step, label, which, value })
    }

    /// The tickets of a port.
    pub(super) fn tickets(&self, element: &Element, port: usize) -> Value {
        if self.is_in_order(element) {
            return self.node(element, OrderNumber::Tickets(port), Form::Text);
        }
        let Arg::Text(all) = self.argument(element, "tickets")? else { return Ok(String::new()) };
        Ok(all.split_whitespace().nth(port).unwrap_or_default().to_owned())
    }

    pub(super) fn set_tickets(
        &self,
        element: &Element,
        port: usize,
        text: &str,
    ) -> Result<Edit, String> {
        let form = Form::Integer(0, TICKETS_MOST);
        if self.is_in_order(element) {
            return self.set_node(element, OrderNumber::Tickets(port), form, text);
        }
        let Given::Number(tickets) = form.read(text, 0)? else {
            return Err("no number".to_owned());
        };
        let Arg::Text(all) = self.argument(element, "tickets")? else {
            return Err("no tickets".to_owned());
        };
        let mut all: Vec<String> = all.split_whitespace().map(str::to_owned).collect();
        if let Some(one) = all.get_mut(port) {
            *one = tickets.to_string();
        }
        self.set(element, "tickets", Given::Text(all.join(" ")))
    }

    /// The average of a meter.
    pub(super) fn meter_rate(&self, element: &Element, unit: Unit) -> Value {
        let (_, step) = self.step(element)?;
        let meters = self.routing.tables.shared.get::<Meters>();
        let (packets, bits) = meters.read(step, dpdk::tsc());
        Ok(handlers::number(match unit {
            Unit::Packets => packets,
            Unit::Bits => bits,
            Unit::Bytes => bits / 8.0,
        }))
    }

    /// The rates of a meter.
    pub(super) fn meters(&self, element: &Element, form: Form) -> Value {
        let Arg::Text(rates) = self.argument(element, "rates")? else { return Ok(String::new()) };
        let rates = rates.split_whitespace().filter_map(Rate::read);
        Ok(lines(rates.map(|rate| form.write(&Arg::Rate(rate)))))
    }
}
