//! Objects shared by the steps of all forwarders: token buckets and tables whose entries expire, by the names
//! that the script gives them. They survive a change of the configuration if name, kind and settings stay the
//! same.
//!
//! Both are caches of a fixed size, four entries a set, without locks: a hash of the key selects the set, and in
//! a full set the least valuable entry is replaced. Forwarders that replace an entry at the same time may lose
//! an update of one of them.
//!
//! A bucket is a time (the generic cell rate algorithm, ITU-T I.371): that at which it will be full again. Each
//! packet advances it by its cost, and a packet that would advance it further ahead than the burst is refused. A
//! full bucket holds no information, so its entry is free; of four that are not full the fullest is replaced,
//! whose key gains a burst at most.

use std::any::Any;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use foldhash::quality::RandomState;

/// Most buckets and table entries of a script, in total.
pub const ENTRIES_MAX: usize = 1 << 22;

/// Default number of entries.
pub const SHARED_SIZE: usize = 65_536;

/// Most shared objects of a script.
pub const SHARED_MAX: usize = 64;

/// Entries per set.
const WAYS: usize = 4;

/// Longest lifetime of a table entry, in seconds.
const SECONDS_MAX: f64 = 31_536_000.0;

/// Settings of an object shared by the forwarders' steps, as the script requests it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SharedSettings {
    /// Token buckets.
    Buckets {
        /// Tokens added to a bucket per second.
        rate: f64,
        /// Size of a bucket in tokens.
        burst: f64,
        /// Number of buckets, one for each key in use.
        size: usize,
    },
    /// A table of numbers.
    Table {
        /// Number of entries.
        size: usize,
        /// Lifetime of an entry after it was written.
        seconds: f64,
    },
}

impl SharedSettings {
    /// Number of entries.
    fn size(&self) -> usize {
        let (Self::Buckets { size, .. } | Self::Table { size, .. }) = self;
        *size
    }

    /// Like [`Self::check`], for an object in addition to these.
    ///
    /// # Errors
    /// As there, or there is no room for the object.
    pub fn check_beside<'a>(&self, others: impl Iterator<Item = &'a Self>) -> Result<(), String> {
        self.check()?;
        let (count, entries) =
            others.fold((1, self.size()), |(count, sum), other| (count + 1, sum + other.size()));
        if count > SHARED_MAX || entries > ENTRIES_MAX {
            return Err(format!(
                "a script has {SHARED_MAX} buckets and tables at most, with {ENTRIES_MAX} entries together"
            ));
        }
        Ok(())
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// A value that is not a number, or out of range.
    pub fn check(&self) -> Result<(), String> {
        let positive = |name: &str, value: f64, most: f64| {
            if value > 0.0 && value <= most {
                return Ok(());
            }
            Err(format!("key \"{name}\": {value}; a number above 0, up to {most}"))
        };
        let size = self.size();
        if size == 0 || size > ENTRIES_MAX {
            return Err(format!("key \"size\": {size}; a whole number from 1 to {ENTRIES_MAX}"));
        }
        match *self {
            Self::Buckets { rate, burst, .. } => {
                positive("rate", rate, 1e12)?;
                positive("burst", burst, 1e12)
            }
            Self::Table { seconds, .. } => positive("seconds", seconds, SECONDS_MAX),
        }
    }
}

/// The objects of a router's forwarders, by name.
#[derive(Default)]
pub struct SharedObjects(Mutex<HashMap<String, Kept>>);

/// An object that lives as long as a script holds it.
struct Kept {
    settings: SharedSettings,
    object: Weak<dyn Any + Send + Sync>,
}

impl SharedObjects {
    /// Returns the object of this name: the one that other scripts hold, if its settings are these, else a new
    /// one.
    pub(crate) fn get(&self, name: &str, settings: SharedSettings) -> Arc<dyn Any + Send + Sync> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(name).filter(|kept| kept.settings == settings);
        if let Some(object) = known.and_then(|kept| kept.object.upgrade()) {
            return object;
        }
        all.retain(|_, kept| kept.object.strong_count() > 0);
        let hz = dpdk::tsc_hz() as f64;
        let object: Arc<dyn Any + Send + Sync> = match settings {
            SharedSettings::Buckets { rate, burst, size } => {
                Arc::new(Buckets::new(hz, rate, burst, size))
            }
            SharedSettings::Table { size, seconds } => Arc::new(Table::new(hz, size, seconds)),
        };
        all.insert(name.to_owned(), Kept { settings, object: Arc::downgrade(&object) });
        object
    }
}

/// The numbers of a key.
pub(crate) type Key = [f64; 4];

/// Hashes a key to one number that is not 0. Senders of packets cannot predict which keys share a set.
fn digest(hash: &RandomState, key: Key) -> u64 {
    // 0 and -0 are the same key.
    hash.hash_one(key.map(|part| (part + 0.0).to_bits())).max(1)
}

/// Makes the sets for this many entries; their number is a power of two.
fn sets<T: Default>(size: usize) -> Box<[[T; WAYS]]> {
    let count = size.div_ceil(WAYS).next_power_of_two();
    (0..count).map(|_| <[T; WAYS]>::default()).collect()
}

/// Returns the set of a key, selected by its low bits.
fn set_of<T>(sets: &[[T; WAYS]], key: u64) -> &[T; WAYS] {
    &sets[key as usize & (sets.len() - 1)]
}

/// Token buckets, one for each key.
pub(crate) struct Buckets {
    /// TSC cycles in which a bucket gains a token.
    token: f64,
    /// TSC cycles in which an empty bucket fills.
    depth: u64,
    hash: RandomState,
    sets: Box<[[Bucket; WAYS]]>,
}

#[derive(Default)]
struct Bucket {
    /// 0 while the bucket is unused.
    key: AtomicU64,
    /// The TSC at which it is full.
    full: AtomicU64,
}

impl Buckets {
    fn new(hz: f64, rate: f64, burst: f64, size: usize) -> Self {
        let (token, hash) = (hz / rate, RandomState::default());
        Self { token, depth: (burst * token) as u64, hash, sets: sets(size) }
    }

    /// Takes tokens from the key's bucket, all or none; returns false if there are too few.
    pub(crate) fn take(&self, amount: f64, now: u64, key: Key) -> bool {
        let bucket = self.bucket(digest(&self.hash, key), now);
        // A negative amount, or one that is not a number, costs 0.
        let cost = (amount * self.token) as u64;
        dataplane::bucket::take(&bucket.full, cost, self.depth, now).is_ok()
    }

    fn bucket(&self, key: u64, now: u64) -> &Bucket {
        let set = set_of(&self.sets, key);
        if let Some(bucket) = set.iter().find(|bucket| bucket.key.load(Ordering::Relaxed) == key) {
            return bucket;
        }
        let full = |bucket: &Bucket| bucket.full.load(Ordering::Relaxed);
        let (before, bucket) =
            set.iter().map(|b| (full(b), b)).min_by_key(|(full, _)| *full).unwrap_or((0, &set[0]));
        bucket.key.store(key, Ordering::Relaxed);
        // Unless another forwarder has begun to take from it.
        let _ = bucket.full.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed);
        bucket
    }
}

/// Numbers by key, with a lifetime.
pub(crate) struct Table {
    /// Lifetime of an entry in TSC cycles.
    life: u64,
    hash: RandomState,
    sets: Box<[[Entry; WAYS]]>,
}

#[derive(Default)]
struct Entry {
    /// 0 while the entry is unused.
    key: AtomicU64,
    /// The bits of a number.
    value: AtomicU64,
    /// The TSC at which it expires.
    end: AtomicU64,
}

impl Table {
    fn new(hz: f64, size: usize, seconds: f64) -> Self {
        let life = (hz * seconds) as u64;
        Self { life, hash: RandomState::default(), sets: sets(size) }
    }

    /// Returns the value of a key, if it has one that has not expired.
    pub(crate) fn get(&self, now: u64, key: Key) -> Option<f64> {
        let key = digest(&self.hash, key);
        let entry = self.find(now, key)?;
        let value = entry.value.load(Ordering::Acquire);
        // Another key may have taken the entry meanwhile.
        (entry.key.load(Ordering::Relaxed) == key).then(|| f64::from_bits(value))
    }

    /// Sets the value of a key.
    pub(crate) fn set(&self, value: f64, now: u64, key: Key) {
        let key = digest(&self.hash, key);
        let entry = match self.find(now, key) {
            Some(entry) => entry,
            None => self.replace(key, now),
        };
        entry.value.store(value.to_bits(), Ordering::Release);
        entry.end.store(now.saturating_add(self.life), Ordering::Relaxed);
    }

    /// Adds to a key's value, 0 if it has none; returns the sum.
    pub(crate) fn add(&self, amount: f64, now: u64, key: Key) -> f64 {
        let key = digest(&self.hash, key);
        let entry = match self.find(now, key) {
            Some(entry) => entry,
            None => self.replace(key, now),
        };
        let sum = |bits: u64| Some((f64::from_bits(bits) + amount).to_bits());
        let before = entry.value.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum);
        entry.end.store(now.saturating_add(self.life), Ordering::Relaxed);
        f64::from_bits(before.unwrap_or_else(|bits| bits)) + amount
    }

    /// Removes a key.
    pub(crate) fn remove(&self, key: Key) {
        let key = digest(&self.hash, key);
        let is_key = |entry: &&Entry| entry.key.load(Ordering::Relaxed) == key;
        if let Some(entry) = set_of(&self.sets, key).iter().find(is_key) {
            entry.end.store(0, Ordering::Relaxed);
            entry.key.store(0, Ordering::Relaxed);
        }
    }

    fn find(&self, now: u64, key: u64) -> Option<&Entry> {
        let is_key = |entry: &&Entry| entry.key.load(Ordering::Relaxed) == key;
        let entry = set_of(&self.sets, key).iter().find(is_key)?;
        (entry.end.load(Ordering::Relaxed) > now).then_some(entry)
    }

    /// Returns an entry for a key without a live one: its own expired one, or the one that expires first.
    fn replace(&self, key: u64, now: u64) -> &Entry {
        let set = set_of(&self.sets, key);
        let own = set.iter().find(|entry| entry.key.load(Ordering::Relaxed) == key);
        let end = |entry: &&Entry| entry.end.load(Ordering::Relaxed);
        let entry = own.or_else(|| set.iter().min_by_key(end)).unwrap_or(&set[0]);
        // No reader takes the old value for the new key's; it is cleared unless another forwarder has begun to
        // write here.
        let old = entry.value.load(Ordering::Acquire);
        entry.key.store(0, Ordering::Relaxed);
        let zero = 0f64.to_bits();
        let _ = entry.value.compare_exchange(old, zero, Ordering::AcqRel, Ordering::Relaxed);
        entry.end.store(now.saturating_add(self.life), Ordering::Relaxed);
        entry.key.store(key, Ordering::Release);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cycles per second in these tests.
    const HZ: f64 = 1000.0;

    fn key(number: u32) -> Key {
        [number.into(), 0.0, 0.0, 0.0]
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        // 100 a second, 5 at once: a token every 10 cycles.
        let buckets = Buckets::new(HZ, 100.0, 5.0, 16);
        let taken = |now| (0..20).filter(|_| buckets.take(1.0, now, key(1))).count();
        assert_eq!(taken(1_000_000), 5);
        assert_eq!(taken(1_000_000), 0);
        assert_eq!(taken(1_000_009), 0);
        assert_eq!(taken(1_000_010), 1);
        assert_eq!(taken(1_000_045), 3);
        // It never holds more than the burst, regardless of the idle time.
        assert_eq!(taken(9_000_000), 5);
        assert!(buckets.take(1.0, 9_000_000, key(2)), "another key has a bucket of its own");
    }

    #[test]
    fn an_amount_is_taken_whole_or_not_at_all() {
        let buckets = Buckets::new(HZ, 100.0, 5.0, 16);
        assert!(!buckets.take(6.0, 1000, key(1)), "more than it holds");
        assert!(buckets.take(4.0, 1000, key(1)));
        assert!(!buckets.take(2.0, 1000, key(1)) && buckets.take(1.0, 1000, key(1)));
        for odd in [f64::NAN, -1.0, 0.0] {
            assert!(buckets.take(odd, 1000, key(1)), "{odd} takes nothing");
        }
        assert!(!buckets.take(f64::INFINITY, 1000, key(1)));
    }

    #[test]
    fn the_rate_holds_over_a_long_time() {
        let buckets = Buckets::new(HZ, 300.0, 10.0, 16);
        let taken = (0..100_000u64).filter(|&now| buckets.take(1.0, 50 + now, key(1))).count();
        // 100 s at 300 a second and the burst; a token is 3.33 cycles, and cycles are whole.
        assert!((30_000..=33_344).contains(&taken), "{taken}");
    }

    #[test]
    fn a_flood_of_keys_takes_no_place_of_those_that_are_most_limited() {
        // One set of four.
        let buckets = Buckets::new(HZ, 100.0, 5.0, 4);
        while buckets.take(1.0, 1000, key(1)) {}
        for other in 2..1000 {
            assert!(buckets.take(1.0, 1000, key(other)));
        }
        assert!(!buckets.take(1.0, 1000, key(1)));
    }

    #[test]
    fn a_table_forgets_in_time() {
        let table = Table::new(HZ, 16, 2.0);
        assert_eq!(table.get(1000, key(1)), None);
        table.set(7.5, 1000, key(1));
        assert_eq!((table.get(2999, key(1)), table.get(3000, key(1))), (Some(7.5), None));
        // Starts again at 0.
        assert_eq!(table.add(2.0, 3000, key(1)), 2.0);
        assert_eq!(table.add(2.0, 4999, key(1)), 4.0, "lives on from here");
        assert_eq!(table.get(6000, key(1)), Some(4.0));
        table.remove(key(1));
        assert_eq!(table.get(6000, key(1)), None);
        assert_eq!(table.add(1.0, 6000, key(1)), 1.0);
    }

    #[test]
    fn keys_differ_in_each_of_their_numbers() {
        let table = Table::new(HZ, 1024, 2.0);
        for place in 0..4 {
            let mut key = [0.0; 4];
            key[place] = 5.0;
            table.set(place as f64, 0, key);
        }
        let value = |place: usize| {
            let mut key = [0.0; 4];
            key[place] = 5.0;
            table.get(1, key)
        };
        assert_eq!([0, 1, 2, 3].map(value), [0.0, 1.0, 2.0, 3.0].map(Some));
        table.set(9.0, 0, [0.0; 4]);
        assert_eq!(table.get(1, [-0.0; 4]), Some(9.0));
    }

    #[test]
    fn a_full_table_loses_what_expires_first() {
        let table = Table::new(HZ, 4, 2.0);
        for number in 1..=4 {
            table.set(number.into(), u64::from(number), key(number));
        }
        table.set(5.0, 10, key(5));
        let left: Vec<_> = (1..=5).filter(|&n| table.get(11, key(n)).is_some()).collect();
        assert_eq!(left, [2, 3, 4, 5]);
    }

    #[test]
    fn many_threads_add_and_lose_nothing() {
        let table = Table::new(1e9, 64, 3600.0);
        table.set(0.0, 5, key(1));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| assert!(table.add(1.0, 5, key(1)) > 0.0)));
            }
        });
        assert_eq!(table.get(6, key(1)), Some(40_000.0));
    }

    #[test]
    fn an_object_stays_while_somebody_has_it_and_its_settings_are_the_same() {
        let objects = SharedObjects::default();
        let settings = SharedSettings::Table { size: 16, seconds: 60.0 };
        let first = objects.get("seen", settings);
        assert!(Arc::ptr_eq(&first, &objects.get("seen", settings)));
        assert!(!Arc::ptr_eq(&first, &objects.get("other", settings)));
        let longer = SharedSettings::Table { size: 16, seconds: 61.0 };
        assert!(!Arc::ptr_eq(&first, &objects.get("seen", longer)));
        let before = Arc::downgrade(&objects.get("gone", settings));
        assert!(before.upgrade().is_none());
    }

    #[test]
    fn settings_that_cannot_be_are_named() {
        let buckets = |rate, burst, size| SharedSettings::Buckets { rate, burst, size }.check();
        assert!(buckets(1.0, 1.0, 1).is_ok());
        assert!(buckets(0.0, 1.0, 1).unwrap_err().starts_with("key \"rate\": 0;"));
        assert!(buckets(1.0, f64::NAN, 1).unwrap_err().starts_with("key \"burst\""));
        assert!(buckets(1.0, 1.0, ENTRIES_MAX + 1).unwrap_err().starts_with("key \"size\""));
        let table = SharedSettings::Table { size: 1, seconds: f64::INFINITY };
        assert!(table.check().unwrap_err().starts_with("key \"seconds\""));
        let half = SharedSettings::Table { size: ENTRIES_MAX / 2, seconds: 1.0 };
        assert!(half.check_beside([half].iter()).is_ok());
        assert!(half.check_beside([half; 2].iter()).unwrap_err().contains("together"));
        let small = SharedSettings::Table { size: 1, seconds: 1.0 };
        assert!(small.check_beside([small; SHARED_MAX - 1].iter()).is_ok());
        assert!(small.check_beside([small; SHARED_MAX].iter()).is_err());
    }
}
