//! Token buckets that several threads may share.
//!
//! A bucket is kept as the time at which it will be full again (the generic cell rate algorithm,
//! ITU-T I.371): one atomic number, exact at any rate, with any number of threads taking from it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Limits, Time};

/// Rate and size of a bucket; both can be changed while other threads take tokens.
#[derive(Debug)]
struct Flow {
    /// Nanoseconds per token; 0: no token is ever added.
    interval: AtomicU64,
    /// Largest distance in the future, in nanoseconds, of the time at which the bucket is full,
    /// before a token is taken.
    tolerance: AtomicU64,
}

impl Flow {
    fn new(rate: u32, burst: u32) -> Self {
        let flow = Self { interval: AtomicU64::new(0), tolerance: AtomicU64::new(0) };
        flow.set(rate, burst);
        flow
    }

    fn set(&self, rate: u32, burst: u32) {
        let interval = 1_000_000_000u64.checked_div(rate.into()).unwrap_or(0);
        let tolerance = interval.saturating_mul(u64::from(burst.saturating_sub(1)));
        self.interval.store(interval, Ordering::Relaxed);
        self.tolerance.store(tolerance, Ordering::Relaxed);
    }

    /// Takes up to `most` tokens from the bucket that is full at `full_at`; returns their number.
    fn take(&self, full_at: &AtomicU64, most: u32, now: Time) -> u32 {
        let interval = self.interval.load(Ordering::Relaxed);
        let tolerance = self.tolerance.load(Ordering::Relaxed);
        if interval == 0 || most == 0 {
            return 0;
        }
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut taken = 0;
        let update = |full_at: u64| {
            let from = full_at.max(now);
            let room = now.saturating_add(tolerance).checked_sub(from)?;
            taken = u32::try_from(room / interval).unwrap_or(u32::MAX).saturating_add(1).min(most);
            Some(from.saturating_add(interval * u64::from(taken)))
        };
        match full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) {
            Ok(_) => taken,
            Err(_) => 0,
        }
    }
}

/// A token bucket.
#[derive(Debug)]
pub struct TokenBucket {
    flow: Flow,
    full_at: AtomicU64,
}

impl TokenBucket {
    /// Creates a bucket with `rate` tokens per second and at most `burst` at once (at least one);
    /// none at all at rate 0.
    pub fn new(rate: u32, burst: u32) -> Self {
        Self { flow: Flow::new(rate, burst), full_at: AtomicU64::new(0) }
    }

    /// Sets another rate and burst, and fills the bucket.
    pub fn set(&self, rate: u32, burst: u32) {
        self.flow.set(rate, burst);
        // The missing tokens are stored as a time, which is another number of tokens at another rate.
        self.full_at.store(0, Ordering::Relaxed);
    }

    /// Takes a token, if there is one.
    pub fn take(&self, now: Time) -> bool {
        self.take_up_to(1, now) == 1
    }

    /// Takes the available tokens, up to `most`; returns their number.
    pub fn take_up_to(&self, most: u32, now: Time) -> u32 {
        self.flow.take(&self.full_at, most, now)
    }
}

/// Buckets of the prefixes to which errors are sent. Their number is bounded: a hash of the prefix,
/// with a secret seed, selects the bucket; prefixes with the same hash share it.
#[derive(Debug)]
struct PrefixBuckets {
    flow: Flow,
    full_at: Box<[AtomicU64]>,
    seed: u64,
}

/// A power of two: the probability that an attacker's prefix shares another prefix's bucket is 1 in
/// this number.
const PREFIXES: usize = 1 << 13;

impl PrefixBuckets {
    fn new(rate: u32, burst: u32, seed: u64) -> Self {
        let full_at = (0..PREFIXES).map(|_| AtomicU64::new(0)).collect();
        Self { flow: Flow::new(rate, burst), full_at, seed }
    }

    fn set(&self, rate: u32, burst: u32) {
        self.flow.set(rate, burst);
        self.full_at.iter().for_each(|full_at| full_at.store(0, Ordering::Relaxed));
    }

    fn take(&self, address: IpAddr, now: Time) -> bool {
        let place = mix(prefix(address) ^ self.seed) as usize % PREFIXES;
        self.flow.take(&self.full_at[place], 1, now) == 1
    }
}

/// Returns the /24 or /64 of an address: the largest prefix that one site has to itself.
fn prefix(address: IpAddr) -> u64 {
    match address {
        // IPv6 prefixes of that value, 0:0:100::/40, are not assigned.
        IpAddr::V4(address) => u64::from(address.to_bits() >> 8) | 1 << 24,
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

/// Mixes bits (the finaliser of MurmurHash3; a bijection, so the seed decides which prefixes share a
/// bucket).
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

/// Rates of one class of ICMP errors: in total, and per prefix.
#[derive(Debug)]
struct ErrorRates {
    all: TokenBucket,
    prefixes: PrefixBuckets,
}

impl ErrorRates {
    fn new(limits: &Limits, seed: u64) -> Self {
        let (rate, burst) = (limits.icmp_prefix_rate, limits.icmp_prefix_burst);
        Self {
            all: TokenBucket::new(limits.icmp_rate, limits.icmp_burst),
            prefixes: PrefixBuckets::new(rate, burst, mix(seed)),
        }
    }

    fn set(&self, limits: &Limits) {
        self.all.set(limits.icmp_rate, limits.icmp_burst);
        self.prefixes.set(limits.icmp_prefix_rate, limits.icmp_prefix_burst);
    }
}

/// Rates that bound the packets the slow path generates, shared by all workers.
#[derive(Debug)]
pub struct Rates {
    errors: ErrorRates,
    /// Rates of "packet too big" and "fragmentation needed": path MTU discovery (RFC 1191, RFC 8201)
    /// depends on them, so that provoking other errors must not use them up.
    too_big: ErrorRates,
    resolves: TokenBucket,
    suppressed: AtomicU64,
    suppressed_by_prefix: AtomicU64,
}

impl Rates {
    /// Creates the rates of these limits. The seed decides which prefixes share a bucket.
    pub fn new(limits: &Limits, seed: u64) -> Self {
        Self {
            errors: ErrorRates::new(limits, seed),
            too_big: ErrorRates::new(limits, seed.wrapping_add(1)),
            resolves: TokenBucket::new(limits.resolve_rate, limits.resolve_burst),
            suppressed: AtomicU64::new(0),
            suppressed_by_prefix: AtomicU64::new(0),
        }
    }

    /// Sets the rates of ICMP errors to those of these limits.
    pub fn set_errors(&self, limits: &Limits) {
        self.errors.set(limits);
        self.too_big.set(limits);
    }

    /// Returns true if an ICMP error may be sent to this address now; "packet too big" has rates of
    /// its own. An error that its prefix's rate suppresses costs other prefixes nothing.
    pub fn error(&self, to: IpAddr, too_big: bool, now: Time) -> bool {
        let rates = if too_big { &self.too_big } else { &self.errors };
        if !rates.prefixes.take(to, now) {
            self.suppressed_by_prefix.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let allowed = rates.all.take(now);
        if !allowed {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        allowed
    }

    /// Returns true if the kernel may be asked to resolve a neighbour now.
    pub fn resolve(&self, now: Time) -> bool {
        self.resolves.take(now)
    }

    /// Returns the numbers of suppressed ICMP errors: by the total rate, and by the rate of their prefix.
    pub fn suppressed_errors(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.suppressed), read(&self.suppressed_by_prefix))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn tokens(bucket: &TokenBucket, now: Time) -> usize {
        (0..20).filter(|_| bucket.take(now)).count()
    }

    #[test]
    fn the_bucket_gives_its_burst_and_then_its_rate() {
        let bucket = TokenBucket::new(10, 5);
        let start = Time::from_secs(100);
        assert_eq!(tokens(&bucket, start), 5);
        assert!(!bucket.take(start + Duration::from_millis(99)));
        assert_eq!(tokens(&bucket, start + Duration::from_millis(300)), 3);
        assert_eq!(tokens(&bucket, start + Duration::from_secs(60)), 5);
    }

    #[test]
    fn another_rate_holds_from_the_next_token_on() {
        let bucket = TokenBucket::new(1, 2);
        let start = Time::from_secs(100);
        assert_eq!(tokens(&bucket, start), 2);
        bucket.set(10, 3);
        assert_eq!(tokens(&bucket, start), 3, "nothing is owed of before");
        bucket.set(1000, 1);
        assert_eq!(tokens(&bucket, start + Duration::from_millis(300)), 1);
        assert_eq!(tokens(&bucket, start + Duration::from_millis(301)), 1);
    }

    #[test]
    fn many_at_once_are_as_many_as_one_by_one() {
        for most in [1, 3, 5, 100] {
            let (one, many) = (TokenBucket::new(1000, 50), TokenBucket::new(1000, 50));
            for millis in [0, 0, 7, 8, 20, 500, 501] {
                let now = Time::from_millis(1000 + millis);
                let singly = (0..most).filter(|_| one.take(now)).count();
                assert_eq!(many.take_up_to(most, now) as usize, singly, "{most} at {millis}");
            }
        }
    }

    #[test]
    fn a_rate_of_zero_gives_nothing() {
        assert!(!TokenBucket::new(0, 100).take(Time::from_secs(1)));
    }

    #[test]
    fn threads_share_one_rate() {
        let bucket = TokenBucket::new(1, 1000);
        let now = Time::from_secs(1);
        let taken: usize = std::thread::scope(|scope| {
            let take = || (0..800).filter(|_| bucket.take(now)).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 1000);
    }

    fn rates() -> Rates {
        let limits = Limits {
            icmp_rate: 100,
            icmp_burst: 50,
            icmp_prefix_rate: 10,
            icmp_prefix_burst: 5,
            ..Limits::default()
        };
        Rates::new(&limits, 7)
    }

    #[test]
    fn one_prefix_does_not_take_the_errors_of_others() {
        let rates = rates();
        let now = Time::from_secs(1);
        let sent = |to: fn(u8) -> String| {
            (0..100).filter(|&n| rates.error(to(n).parse().unwrap(), false, now)).count()
        };
        assert_eq!(sent(|n| format!("192.0.2.{n}")), 5);
        assert_eq!(sent(|n| format!("2001:db8:0:7::{n}")), 5);
        assert_eq!(sent(|_| "198.51.100.1".to_owned()), 5);
        assert_eq!(rates.suppressed_errors(), (0, 285));
        // The total rate still applies.
        assert_eq!(sent(|n| format!("10.0.{n}.1")), 35);
        assert_eq!(rates.suppressed_errors(), (65, 285));
    }

    #[test]
    fn errors_of_packets_that_are_too_big_have_rates_of_their_own() {
        let rates = rates();
        let now = Time::from_secs(1);
        let sent = |too_big| {
            let to = |n: u8| IpAddr::from([10, 0, n, 1]);
            (0..100).filter(|&n| rates.error(to(n), too_big, now)).count()
        };
        assert_eq!((sent(false), sent(false)), (50, 0));
        assert_eq!((sent(true), sent(true)), (50, 0));
    }

    #[test]
    fn a_prefix_is_the_site_s_and_families_do_not_meet() {
        let of = |text: &str| prefix(text.parse().unwrap());
        assert_eq!(of("192.0.2.1"), of("192.0.2.255"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("0.0.7.1"), of("0:0:0:7::1"));
    }

    #[test]
    fn the_seed_decides_which_prefixes_meet() {
        let meet = |seed: u64| {
            let place = |n: u64| mix((n | 1 << 24) ^ mix(seed)) as usize % PREFIXES;
            (0..20_000u64).filter(|&n| place(n) == place(70_000)).collect::<Vec<_>>()
        };
        assert_ne!(meet(1), meet(2));
    }
}
