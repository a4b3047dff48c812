//! Queues of interfaces in software.

use api::report::{InterfaceQueue, QueueClass};

use super::{columns, finish, right_align};

/// Formats a line for each queue, then one for each of its classes.
pub fn queues(all: &[InterfaceQueue]) -> String {
    if all.is_empty() {
        return "no interface has a queue in software: packets wait in the device's ring; \
                write queue = { discipline = \"codel\" } or shape = \"95mbit\" into turnpike.port"
            .to_owned();
    }
    all.iter().map(queue).collect::<Vec<_>>().join("\n\n")
}

fn queue(queue: &InterfaceQueue) -> String {
    let InterfaceQueue { interface, queue, shape, classes } = queue;
    let rate = shape.as_ref().map_or_else(String::new, |shape| format!("; shape {shape}"));
    let mut table = columns(&[
        "class",
        "waiting",
        "bytes",
        "most",
        "sent",
        "full",
        "red",
        "codel",
        "marked",
        "delay ms",
        "longest ms",
    ]);
    for class in classes {
        let QueueClass {
            name, waiting, waiting_bytes, most, sent, full, red, codel, marked, ..
        } = class;
        let millis = |micros: u64| format!("{:.1}", micros as f64 / 1000.0);
        let numbers = [waiting, waiting_bytes, most, sent, full, red, codel, marked];
        let mut row = vec![name.clone()];
        row.extend(numbers.map(ToString::to_string));
        row.extend([millis(class.delay_us), millis(class.delay_most_us)]);
        table.add_row(row);
    }
    right_align(&mut table, 1..11);
    format!("{interface}: {queue}{rate}\n{}", finish(&table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_a_line_and_its_classes_one_each() {
        let class = QueueClass {
            name: "others".into(),
            waiting: 12,
            waiting_bytes: 18_168,
            most: 40,
            sent: 1000,
            sent_bytes: 1_514_000,
            codel: 3,
            delay_us: 5_250,
            ..QueueClass::default()
        };
        let queue = InterfaceQueue {
            interface: "wan".into(),
            queue: "codel, length 1000".into(),
            shape: Some("2000000 bit, burst 3036 bytes, overhead 0".into()),
            classes: vec![class],
        };
        assert_eq!(
            queues(&[queue]),
            "wan: codel, length 1000; shape 2000000 bit, burst 3036 bytes, overhead 0\n \
             CLASS   WAITING  BYTES  MOST  SENT  FULL  RED  CODEL  MARKED  DELAY MS  LONGEST MS\n \
             others       12  18168    40  1000     0    0      3       0       5.2         0.0"
        );
        assert!(queues(&[]).starts_with("no interface has a queue in software"));
    }
}
