//! Settings of ports that steps declare.
//!
//! A step that works only on ports that enable it declares a [`Feature`] in its own file, and its
//! [`StepSpec`](crate::catalogue::StepSpec) puts the step into the default graph if some port has it. A
//! configuration reads the setting by its name and words; the data plane carries the values with the other
//! facts about a port, one byte each, and only the step interprets them.

/// The most features of a router.
pub const FEATURES_MAX: usize = 16;

/// A setting of ports by which they enable a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    name: &'static str,
    slot: usize,
    words: &'static [&'static str],
    /// True if it is a setting of ports; otherwise another statement provides the value, a number.
    setting: bool,
}

impl Feature {
    /// A setting with one of these values, the first of which means off. No two features of a catalogue have
    /// the same slot.
    ///
    /// # Panics
    /// The slot is [`FEATURES_MAX`] or more.
    pub const fn new(name: &'static str, slot: usize, words: &'static [&'static str]) -> Self {
        assert!(slot < FEATURES_MAX, "a port has fewer features");
        Self { name, slot, words, setting: true }
    }

    /// A setting that is on or off.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub const fn flag(name: &'static str, slot: usize) -> Self {
        Self::new(name, slot, &[])
    }

    /// The number of an object that interfaces refer to; not a setting by itself.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub const fn number(name: &'static str, slot: usize) -> Self {
        Self { setting: false, ..Self::new(name, slot, &[]) }
    }

    /// Returns true if configurations set its value by its name.
    pub fn is_setting(self) -> bool {
        self.setting
    }

    /// The name of the setting.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The words of a setting with more values than on and off; the first means off.
    pub fn words(self) -> &'static [&'static str] {
        self.words
    }

    /// A value as configurations write it.
    pub fn word(self, value: u8) -> &'static str {
        match self.words {
            [] if value == 0 => "false",
            [] => "true",
            words => words.get(usize::from(value)).copied().unwrap_or("?"),
        }
    }

    /// The value of a word.
    pub fn value(self, word: &str) -> Option<u8> {
        self.words.iter().position(|known| *known == word).and_then(|at| u8::try_from(at).ok())
    }

    /// Returns true if each of these features has a slot of its own.
    pub(crate) const fn have_own_slots(features: &[Self]) -> bool {
        let (mut taken, mut place) = (0u64, 0);
        while place < features.len() {
            let slot = 1 << features[place].slot;
            if taken & slot != 0 {
                return false;
            }
            taken |= slot;
            place += 1;
        }
        true
    }

    pub(crate) fn clashes(self, other: Self) -> bool {
        self != other && (self.slot == other.slot || self.name == other.name)
    }
}

/// The features of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features([u8; FEATURES_MAX]);

impl Features {
    /// No features.
    pub const NONE: Self = Self([0; FEATURES_MAX]);

    /// Returns these features, this one with this value.
    pub const fn with(mut self, feature: Feature, value: u8) -> Self {
        self.0[feature.slot] = value;
        self
    }

    /// The value of a feature; 0: off.
    #[inline(always)]
    pub const fn get(self, feature: Feature) -> u8 {
        self.0[feature.slot]
    }

    /// Returns true if the port has the feature.
    #[inline(always)]
    pub const fn has(self, feature: Feature) -> bool {
        self.get(feature) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: Feature = Feature::flag("switch", 7);
    const CHOICE: Feature = Feature::new("choice", 3, &["none", "one", "all"]);

    #[test]
    fn features_are_independent_and_have_words() {
        let features = Features::NONE.with(CHOICE, 2).with(SWITCH, 1).with(CHOICE, 1);
        assert_eq!((features.get(CHOICE), features.has(SWITCH)), (1, true));
        assert_eq!(
            (CHOICE.word(1), CHOICE.value("all"), CHOICE.value("some")),
            ("one", Some(2), None)
        );
        assert_eq!((SWITCH.word(0), SWITCH.word(1)), ("false", "true"));
    }

    #[test]
    fn two_features_do_not_share_a_slot_or_a_name() {
        assert!(SWITCH.clashes(Feature::flag("other", 7)) && !SWITCH.clashes(SWITCH));
        assert!(SWITCH.clashes(Feature::flag("switch", 6)) && !SWITCH.clashes(CHOICE));
        assert!(Feature::have_own_slots(&[SWITCH, CHOICE]));
        assert!(!Feature::have_own_slots(&[SWITCH, CHOICE, Feature::flag("other", 7)]));
    }
}
