//! What a port's link is to be.

use std::fmt;

/// `link = { … }` of a port. What is not wished for is as the device decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Mb/s.
    pub speed: Option<u32>,
    /// Half duplex, which only 10 and 100 Mb/s have.
    pub half_duplex: bool,
    /// The speed is not negotiated.
    pub fixed: bool,
    /// Flow control.
    pub pause: Option<Pause>,
    /// Forward error correction.
    pub fec: Option<Fec>,
}

/// Ethernet flow control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// None.
    Off,
    /// Pause frames are obeyed.
    Rx,
    /// Pause frames are sent.
    Tx,
    /// Both.
    Full,
}

/// Forward error correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fec {
    /// None.
    Off,
    /// As the two ends agree.
    Auto,
    /// "Base-R" (IEEE 802.3 clause 74).
    BaseR,
    /// Reed-Solomon.
    Rs,
}

impl Pause {
    /// By its word in configurations.
    pub(super) const ALL: [(&str, Self); 4] =
        [("none", Self::Off), ("rx", Self::Rx), ("tx", Self::Tx), ("full", Self::Full)];
}

impl Fec {
    /// By its word in configurations.
    pub(super) const ALL: [(&str, Self); 4] =
        [("none", Self::Off), ("auto", Self::Auto), ("base-r", Self::BaseR), ("rs", Self::Rs)];
}

/// The word of a value.
fn word<T: Copy + PartialEq>(all: &[(&'static str, T)], value: T) -> &'static str {
    all.iter().find(|(_, one)| *one == value).map_or("", |(word, _)| word)
}

/// As configurations write it: `speed = 1000, pause = "none"`; nothing wished for is nothing.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.speed.map(|mbps| format!("speed = {mbps}")));
        parts.extend(self.half_duplex.then(|| "duplex = \"half\"".to_owned()));
        parts.extend(self.fixed.then(|| "autoneg = false".to_owned()));
        parts.extend(self.pause.map(|pause| format!("pause = \"{}\"", word(&Pause::ALL, pause))));
        parts.extend(self.fec.map(|fec| format!("fec = \"{}\"", word(&Fec::ALL, fec))));
        f.write_str(&parts.join(", "))
    }
}
