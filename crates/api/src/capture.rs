//! Captures of packets.
//!
//! ```text
//! -> {"capture":{"interface":"wan","dropped":"no-route","snap":128}}
//! <- {"ok":{"capture":"begun"}}
//! <- {"packet":{"time_ns":…,"interface":"wan","event":"dropped",…,"frame":"0200…"}}
//!    …                                       the client closes its direction
//! <- {"ok":{"packets":12,"lost":0}}
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Default number of bytes kept of each packet.
pub const SNAP: usize = 262;

/// Most bytes kept of each packet.
pub const SNAP_MAX: usize = 16_384;

/// A selection of packets: of `at`, `dropped` and `punted` at most one. Without any: packets as received, and as the
/// graph sends them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Only packets of this interface: received by it, or sent by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Those that enter the step of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Those that the router drops, in steps and elsewhere, for this reason or, empty, for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
    /// Those that steps give to the slow path.
    #[serde(default)]
    pub punted: bool,
    /// Bytes kept of each packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snap: Option<usize>,
    /// A filter's rule that selects among them, as `proto=udp`, `to_port=53`; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<String>,
}

/// A line of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// A packet.
    Packet(Packet),
    /// The beginning, or the end with [`Totals`].
    Ok(serde_json::Value),
    /// The reason for which there is no capture.
    Error(String),
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Packet {
    /// Its time, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The interface that received it, or sends it.
    pub interface: String,
    /// `received`, `sent`, `entered`, `dropped` or `punted`.
    pub event: String,
    /// The reason for which it was dropped or punted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The step, or the part of the router that dropped it.
    pub step: String,
    /// True if it is sent by the interface, or was to be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_outbound: bool,
    /// The length of the frame.
    pub length: usize,
    /// Its first bytes, in hexadecimal digits.
    #[serde(with = "hex")]
    #[schemars(with = "String")]
    pub frame: Vec<u8>,
}

/// Bytes as hexadecimal digits.
mod hex {
    use std::fmt::Write;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let mut digits = String::with_capacity(2 * bytes.len());
        // Writing to a text does not fail.
        bytes.iter().for_each(|byte| _ = write!(digits, "{byte:02x}"));
        to.serialize_str(&digits)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let digits = String::deserialize(from)?;
        bytes(&digits).ok_or_else(|| D::Error::custom("a frame that is not in hexadecimal digits"))
    }

    pub fn bytes(digits: &str) -> Option<Vec<u8>> {
        let pairs = digits.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        pairs.map(byte).collect()
    }
}

/// The totals of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// Packets passed to the client.
    pub packets: u64,
    /// Packets lost because the client did not take others in time.
    pub lost: u64,
    /// The reason of an end that the client has not asked for: its interface was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_hexadecimal_digits() {
        assert_eq!(hex::bytes("00ff10"), Some(vec![0, 255, 16]));
        assert_eq!((hex::bytes("0g"), hex::bytes("")), (None, Some(Vec::new())));
        let text = r#"{"time_ns":1,"interface":"a","event":"sent","step":"b","length":3,"frame":"00ff10"}"#;
        let packet: Packet = serde_json::from_str(text).unwrap();
        assert_eq!(packet.frame, [0, 255, 16]);
        assert_eq!(serde_json::to_string(&packet).unwrap(), text);
    }
}
