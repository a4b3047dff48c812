//! Turns by tickets, as `schedule` and `stride-switch` take them.

/// Stride scheduling (Waldspurger 1995).
///
/// Each child has a pass, and the least one is served. Its pass then grows by its stride, which is the smaller the more
/// tickets it has. Children before it that have no packets are passed over: their passes grow, too, so that they have no
/// credit later.
#[derive(Debug)]
pub(super) struct Stride {
    /// 0 without tickets.
    strides: Vec<u64>,
    passes: Vec<u64>,
}

impl Stride {
    /// The stride of a child with one ticket.
    const ONE: u64 = 1 << 16;

    pub(super) const TICKETS_MOST: u64 = 1 << 15;

    pub(super) fn new(tickets: &[u64]) -> Self {
        let strides = tickets.iter().map(|&tickets| Self::ONE.checked_div(tickets).unwrap_or(0));
        let strides: Vec<u64> = strides.collect();
        Self { passes: strides.clone(), strides }
    }

    /// The child that is served next, of those that have packets.
    #[inline(always)]
    pub(super) fn choose(&self, has: &impl Fn(usize) -> bool) -> Option<usize> {
        let ready = |&child: &usize| self.strides[child] > 0 && has(child);
        (0..self.strides.len()).filter(ready).min_by_key(|&child| (self.passes[child], child))
    }

    /// Serves the child of [`Self::choose`].
    #[inline(always)]
    pub(super) fn serve(&mut self, has: &impl Fn(usize) -> bool) -> Option<usize> {
        let chosen = self.choose(has)?;
        let last = (self.passes[chosen], chosen);
        for (child, (pass, stride)) in self.passes.iter_mut().zip(&self.strides).enumerate() {
            if (*pass, child) <= last {
                *pass += stride;
            }
        }
        Some(chosen)
    }

    #[cfg(test)]
    pub(super) fn strides(&self) -> &[u64] {
        &self.strides
    }
}
