//! `rte_acl`: finds the first of many rules, in their order, that matches a packet's headers.
//!
//! It reads a *key*: bytes that the caller has assembled for each packet, in network byte order. A
//! field is one byte at the key's beginning, followed by groups of four bytes, each of which is
//! split into fields of one, two or four bytes. A table is built once, from all its rules, and
//! never changes: other rules need another table. Lookups process several packets at a time.

use std::ptr::NonNull;

use dpdk_sys as sys;

use crate::eal::{Eal, EalRef};
use crate::error::dpdk_errno;
use crate::names::serial_name;
use crate::{BURST_MAX, Errno, Error};

/// Kind of match of a rule's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclMatch {
    /// A value, and the number of its leading bits that count.
    Prefix,
    /// The least and the greatest value.
    Range,
    /// A value, and a mask of the bits that count.
    Bits,
}

/// A field of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclField {
    /// Kind of match.
    pub by: AclMatch,
    /// Size in bytes: 1, 2 or 4.
    pub size: u8,
    /// Offset in the key, in bytes.
    pub offset: u16,
    /// Number of its group: 0 for the first byte, then one number for each four bytes that are read.
    pub group: u8,
}

/// Required value of each field, in the form given by [`AclMatch`], in host byte order.
pub type AclValues = Vec<(u64, u64)>;

/// The instructions of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclForm {
    /// Those of any processor.
    Scalar,
    /// AVX2: 16 packets at a time.
    Avx2,
    /// AVX-512: 32 packets at a time.
    Avx512,
}

impl AclForm {
    fn algorithm(self) -> sys::rte_acl_classify_alg {
        match self {
            Self::Scalar => sys::RTE_ACL_CLASSIFY_SCALAR,
            Self::Avx2 => sys::RTE_ACL_CLASSIFY_AVX2,
            Self::Avx512 => sys::RTE_ACL_CLASSIFY_AVX512X32,
        }
    }
}

/// Compiled rules over keys of `KEY` bytes.
pub struct Acl<const KEY: usize> {
    /// `None`: there is no rule, for which DPDK builds no table.
    raw: Option<NonNull<sys::rte_acl_ctx>>,
    _eal: EalRef,
}

// SAFETY: the context is memory that nothing of a thread refers to; freeing it takes DPDK's own lock.
unsafe impl<const KEY: usize> Send for Acl<KEY> {}
// SAFETY: by a shared reference the context is only read (`rte_acl_classify` takes it as const).
unsafe impl<const KEY: usize> Sync for Acl<KEY> {}

/// Most rules of a table: priorities are numbers of 29 bits, 1 and up.
pub const ACL_RULES_MAX: usize = (1 << 29) - 2;

/// Most fields.
pub const ACL_FIELDS_MAX: usize = sys::RTE_ACL_MAX_FIELDS as usize;

impl<const KEY: usize> Acl<KEY> {
    /// Builds a table of these rules, of which the first match is the result. Each has values for all `fields`
    /// and a number, which need not be unique.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for fields that leave the key, too many of them, or a rule with other fields;
    /// [`Error::Memory`] and [`Error::RouteTable`] when DPDK cannot build the table.
    pub fn new(eal: &Eal, fields: &[AclField], rules: &[(AclValues, u32)]) -> Result<Self, Error> {
        let config = config_of::<KEY>(fields)?;
        let rule_bytes =
            size_of::<sys::rte_acl_rule>() + fields.len() * size_of::<sys::rte_acl_field>();
        let words = written(fields, rules, rule_bytes)?;
        if rules.is_empty() {
            return Ok(Self { raw: None, _eal: eal.share() });
        }
        let context = Self::create(eal, rules.len(), rule_bytes)?;
        let raw = context.raw.map_or(std::ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: the context is alive; the rules are contiguous, each of the size that the context was made
        // for, and are copied.
        let result =
            unsafe { sys::rte_acl_add_rules(raw, words.as_ptr().cast(), rules.len() as u32) };
        made(result, "adding the rules", rules.len())?;
        // SAFETY: the context is alive and not shared yet; the configuration lives for the call.
        let result = unsafe { sys::rte_acl_build(raw, &config) };
        made(result, "building", rules.len())?;
        Ok(context)
    }

    fn create(eal: &Eal, rules: usize, rule_bytes: usize) -> Result<Self, Error> {
        if rules > ACL_RULES_MAX {
            return Err(Error::OutOfRange {
                what: "rules of an rte_acl".into(),
                value: rules,
                range: format!("0 to {ACL_RULES_MAX}"),
            });
        }
        let name = serial_name("acl");
        let parameters = sys::rte_acl_param {
            name: name.as_ptr(),
            socket_id: sys::SOCKET_ID_ANY,
            rule_size: rule_bytes as u32,
            max_rule_num: rules.max(1) as u32,
        };
        // SAFETY: the EAL is up; parameters and name live for the call.
        let raw = unsafe { sys::rte_acl_create(&parameters) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::Memory {
            what: format!("rte_acl for {rules} rules"),
            errno: dpdk_errno(),
            memory: eal.memory().to_string(),
        })?;
        Ok(Self { raw: Some(raw), _eal: eal.share() })
    }

    /// Makes later lookups use these instructions. DPDK's own choice is no wider than the vectors that it takes for
    /// harmless, which on Intel's and AMD's processors are those of AVX2; this allows wider ones to the whole process.
    ///
    /// # Errors
    /// [`Error::RouteTable`]: the processor lacks them.
    pub fn look_up_by(&mut self, form: AclForm) -> Result<(), Error> {
        let Some(raw) = self.raw else { return Ok(()) };
        // SAFETY: functions of a number and of a context that is alive and, by `&mut`, not used meanwhile.
        let result = unsafe {
            sys::rte_vect_set_max_simd_bitwidth(512);
            sys::rte_acl_set_ctx_classify(raw.as_ptr(), form.algorithm())
        };
        match result {
            0 => Ok(()),
            _ => Err(Error::RouteTable {
                table: "rte_acl".to_owned(),
                problem: format!("a lookup by {form:?}: {}", Errno::from_raw(-result)),
            }),
        }
    }

    /// Writes the number of the first matching rule for each of these keys, 0 if none matches. If the slices
    /// differ in length the shorter counts; at most [`BURST_MAX`] keys.
    #[inline]
    pub fn classify<'a>(&self, keys: impl Iterator<Item = &'a [u8; KEY]>, numbers: &mut [u32]) {
        let Some(raw) = self.raw else { return numbers.fill(0) };
        let mut data = [std::ptr::null(); BURST_MAX];
        let mut count = 0;
        for ((pointer, key), _) in data.iter_mut().zip(keys).zip(numbers.iter()) {
            *pointer = key.as_ptr();
            count += 1;
        }
        // SAFETY: the context is alive and built; the first `count` pointers lead to keys of `KEY`
        // bytes, in which all its fields lie with the three bytes after the first (`config_of`);
        // `numbers` has room for one number for each, of one category.
        unsafe {
            sys::rte_acl_classify(raw.as_ptr(), data.as_mut_ptr(), numbers.as_mut_ptr(), count, 1);
        }
    }
}

impl<const KEY: usize> Drop for Acl<KEY> {
    fn drop(&mut self) {
        if let Some(raw) = self.raw {
            // SAFETY: the context is ours, and no lookup uses it any more.
            unsafe { sys::rte_acl_free(raw.as_ptr()) };
        }
    }
}

/// Converts the fields to DPDK's configuration.
fn config_of<const KEY: usize>(fields: &[AclField]) -> Result<sys::rte_acl_config, Error> {
    if fields.is_empty() || fields.len() > ACL_FIELDS_MAX {
        return Err(Error::OutOfRange {
            what: "fields of an rte_acl".into(),
            value: fields.len(),
            range: format!("1 to {ACL_FIELDS_MAX}"),
        });
    }
    let mut config = sys::rte_acl_config {
        num_categories: 1,
        num_fields: fields.len() as u32,
        ..Default::default()
    };
    for (index, (field, def)) in fields.iter().zip(&mut config.defs).enumerate() {
        // Four bytes are read at the beginning of each group, the first included.
        let end = usize::from(field.offset) + usize::from(field.size).max(4);
        if end > KEY || !matches!(field.size, 1 | 2 | 4) {
            return Err(Error::OutOfRange {
                what: format!("bytes of the key for field {index} of an rte_acl"),
                value: end,
                range: format!("up to {KEY}, fields of 1, 2 or 4"),
            });
        }
        *def = sys::rte_acl_field_def {
            type_: match field.by {
                AclMatch::Prefix => sys::RTE_ACL_FIELD_TYPE_MASK,
                AclMatch::Range => sys::RTE_ACL_FIELD_TYPE_RANGE,
                AclMatch::Bits => sys::RTE_ACL_FIELD_TYPE_BITMASK,
            } as u8,
            size: field.size,
            field_index: index as u8,
            input_index: field.group,
            offset: field.offset.into(),
        };
    }
    Ok(config)
}

/// Writes the rules one after the other, as words so that they are aligned.
fn written(
    fields: &[AclField],
    rules: &[(AclValues, u32)],
    rule_bytes: usize,
) -> Result<Vec<u64>, Error> {
    let words_each = rule_bytes / 8;
    debug_assert!(rule_bytes.is_multiple_of(8) && align_of::<sys::rte_acl_rule>() <= 8);
    let mut words = vec![0u64; words_each * rules.len().max(1)];
    for (place, (values, number)) in rules.iter().enumerate() {
        if values.len() != fields.len() || *number == 0 {
            return Err(Error::OutOfRange {
                what: format!("values of rule {place} of an rte_acl, or its number {number}"),
                value: values.len(),
                range: format!("{} values, a number above 0", fields.len()),
            });
        }
        let rule: *mut sys::rte_acl_rule = words[place * words_each..].as_mut_ptr().cast();
        // SAFETY: the rule and its fields lie in the words at this place: `rule_bytes` is the size of both.
        unsafe {
            (*rule).data = sys::rte_acl_rule_data {
                category_mask: 1,
                // The greatest priority wins: the first rule.
                priority: (rules.len() - place) as i32,
                userdata: *number,
            };
            let first: *mut sys::rte_acl_field = rule.add(1).cast();
            for (index, (&(value, other), field)) in values.iter().zip(fields).enumerate() {
                first.add(index).write(sys::rte_acl_field {
                    value: typed(value, field.size),
                    mask_range: match field.by {
                        AclMatch::Prefix => sys::rte_acl_field_types { u32_: other as u32 },
                        _ => typed(other, field.size),
                    },
                });
            }
        }
    }
    Ok(words)
}

fn typed(value: u64, size: u8) -> sys::rte_acl_field_types {
    match size {
        1 => sys::rte_acl_field_types { u8_: value as u8 },
        2 => sys::rte_acl_field_types { u16_: value as u16 },
        _ => sys::rte_acl_field_types { u32_: value as u32 },
    }
}

fn made(result: i32, what: &str, rules: usize) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    Err(Error::RouteTable {
        table: "rte_acl".to_owned(),
        problem: format!("{what} of {rules} failed: {}", Errno::from_raw(-result)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing;

    const KEY: usize = 16;

    /// The protocol; bits, a wildcard byte and a port; an address.
    fn fields() -> Vec<AclField> {
        let field = |by, size, offset, group| AclField { by, size, offset, group };
        vec![
            field(AclMatch::Range, 1, 0, 0),
            field(AclMatch::Bits, 1, 4, 1),
            field(AclMatch::Bits, 1, 5, 1),
            field(AclMatch::Range, 2, 6, 1),
            field(AclMatch::Prefix, 4, 8, 2),
        ]
    }

    fn key(protocol: u8, bits: u8, port: u16, address: u32) -> [u8; KEY] {
        let mut key = [0xa5; KEY];
        key[0] = protocol;
        key[4] = bits;
        key[6..8].copy_from_slice(&port.to_be_bytes());
        key[8..12].copy_from_slice(&address.to_be_bytes());
        key
    }

    fn fits(values: &AclValues, key: &[u8; KEY]) -> bool {
        let of = |field: &AclField| {
            let bytes = &key[usize::from(field.offset)..][..usize::from(field.size)];
            bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
        };
        fields().iter().zip(values).all(|(field, &(value, other))| match field.by {
            AclMatch::Range => (value..=other).contains(&of(field)),
            AclMatch::Bits => of(field) & other == value & other,
            AclMatch::Prefix => {
                (of(field) ^ value).checked_shr(32 - other as u32).unwrap_or(0) == 0
            }
        })
    }

    fn rule() -> impl Strategy<Value = AclValues> {
        let range = |top: u64| (0..=top, 0..=top).prop_map(|(a, b)| (a.min(b), a.max(b)));
        (range(4), (0..4u64, 0..4u64), range(9), (0..8u64, 0..=3u64)).prop_map(
            |(protocol, bits, ports, (net, len))| {
                vec![
                    protocol,
                    (bits.0 & bits.1, bits.1),
                    (0, 0),
                    ports,
                    (net << 29 & !0u64 << (32 - len), len),
                ]
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(4),
        ..ProptestConfig::default()
    })]

        /// Compares with a walk through the rules in their order.
        #[test]
        fn the_first_rule_that_fits_is_found(
            rules in prop::collection::vec(rule(), 0..40),
            packets in prop::collection::vec((0..6u8, 0..4u8, 0..11u16, 0..8u32), 64),
        ) {
            let numbered: Vec<_> = (1..).zip(&rules).map(|(n, rule)| (rule.clone(), n)).collect();
            let eal = testing::eal();
            let acl = Acl::<KEY>::new(eal, &fields(), &numbered).unwrap();
            let keys: Vec<_> = packets.iter().map(|&(a, b, c, d)| key(a, b, c, d << 29)).collect();
            let mut found = vec![u32::MAX; keys.len()];
            acl.classify(keys.iter(), &mut found);
            for (key, found) in keys.iter().zip(found) {
                let first = rules.iter().position(|rule| fits(rule, key));
                prop_assert_eq!(found, first.map_or(0, |place| place as u32 + 1), "{:?}", key);
            }
        }
    }

    #[test]
    fn what_does_not_fit_the_key_is_refused() {
        let eal = testing::eal();
        let error = |fields: &[AclField], rules: &[(AclValues, u32)]| {
            Acl::<KEY>::new(eal, fields, rules).err().unwrap().to_string()
        };
        let mut far = fields();
        far[4].offset = 13;
        assert!(error(&far, &[]).contains("up to 16"), "{}", error(&far, &[]));
        assert!(error(&[], &[]).contains("1 to 64"));
        assert!(error(&fields(), &[(vec![(0, 0)], 1)]).contains("5 values"));
        let zero = vec![(0, 0); 5];
        assert!(error(&fields(), &[(zero, 0)]).contains("above 0"));
    }
}
