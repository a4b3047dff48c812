//! Own frames that are sent later: answers with a required delay.

use std::collections::BTreeMap;

use dataplane::interface::InterfaceId;

use crate::context::LinkContext;
use crate::{Output, Time};

/// Most frames that wait; further ones are not sent.
const MOST: usize = 256;

/// Frames in the order of their times, and in order of arrival for equal times.
#[derive(Default)]
pub(crate) struct Later {
    frames: BTreeMap<(Time, u64), (InterfaceId, Vec<u8>)>,
    serial: u64,
}

impl Later {
    /// Keeps a frame, its MACs filled in, until `time`.
    pub(crate) fn push(&mut self, time: Time, interface: InterfaceId, frame: Vec<u8>) {
        if self.frames.len() < MOST {
            self.serial += 1;
            self.frames.insert((time, self.serial), (interface, frame));
        }
    }

    /// Takes those of some interfaces out.
    pub(crate) fn part(&mut self, is_in: &impl Fn(InterfaceId) -> bool) -> Self {
        let (part, rest) =
            std::mem::take(&mut self.frames).into_iter().partition(|(_, (of, _))| is_in(*of));
        self.frames = rest;
        Self { frames: part, serial: self.serial }
    }

    /// Adds those of other interfaces.
    pub(crate) fn join(&mut self, other: Self) {
        for ((time, _), (interface, frame)) in other.frames {
            self.push(time, interface, frame);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.frames.first_key_value().map(|(&(time, _), _)| time)
    }

    /// Sends the frames that are due.
    pub(crate) fn run<P>(&mut self, link: &mut LinkContext<'_, impl Output<P>>) {
        while let Some((interface, frame)) = self.due(link.now) {
            link.out.originate(interface, &frame);
        }
    }

    /// Returns a frame that is due; call until `None`.
    fn due(&mut self, now: Time) -> Option<(InterfaceId, Vec<u8>)> {
        self.next_deadline().filter(|&time| time <= now)?;
        self.frames.pop_first().map(|(_, frame)| frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_time_and_in_order_and_their_number_is_bounded() {
        let mut later = Later::default();
        for (seconds, byte) in [(3, 1), (1, 2), (3, 3)] {
            later.push(Time::from_secs(seconds), InterfaceId::FIRST, vec![byte]);
        }
        assert_eq!(later.next_deadline(), Some(Time::from_secs(1)));
        let mut due = |now| later.due(Time::from_secs(now)).map(|(_, frame)| frame[0]);
        assert_eq!((due(0), due(2), due(2)), (None, Some(2), None));
        assert_eq!((due(3), due(3), due(3)), (Some(1), Some(3), None));
        for _ in 0..=MOST {
            later.push(Time::ZERO, InterfaceId::FIRST, Vec::new());
        }
        assert_eq!(std::iter::from_fn(|| later.due(Time::ZERO)).count(), MOST);
    }
}
