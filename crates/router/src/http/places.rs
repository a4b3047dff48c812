//! Places for requests, some of which only higher roles may take: no client keeps one out that may do more.

use std::sync::Arc;

use api::http::Role;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for each role and those below it together, from the lowest role on.
pub(super) struct Places([Arc<Semaphore>; 3], [usize; 3]);

/// A place; dropping it gives it back.
pub(super) struct Place(Vec<OwnedSemaphorePermit>);

impl Places {
    /// Makes places of which clients with a role, and those below, have at most so many.
    pub(super) fn new(most: [usize; 3]) -> Self {
        Self(most.map(|most| Arc::new(Semaphore::new(most))), most)
    }

    /// The number of places that clients with this role and those below can have.
    pub(super) fn most(&self, role: Role) -> usize {
        self.1[role as usize]
    }

    /// Waits for a place.
    pub(super) async fn wait(&self, role: Role) -> Place {
        let mut place = Place(Vec::new());
        for level in &self.0[role as usize..] {
            // The semaphores are never closed.
            place.0.extend(level.clone().acquire_owned().await.ok());
        }
        place
    }

    /// Takes a place, if one is free.
    pub(super) fn take(&self, role: Role) -> Option<Place> {
        let levels = self.0[role as usize..].iter();
        levels.map(|level| level.clone().try_acquire_owned().ok()).collect::<Option<_>>().map(Place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_roles_leave_places_to_higher_ones() {
        let places = Places::new([1, 2, 4]);
        let read = places.take(Role::Read).unwrap();
        assert!(places.take(Role::Read).is_none());
        let operate = places.take(Role::Operate).unwrap();
        assert!(places.take(Role::Operate).is_none());
        let configure: Vec<_> = (0..2).map(|_| places.take(Role::Configure).unwrap()).collect();
        assert!(places.take(Role::Configure).is_none());
        drop((read, operate));
        // Higher roles take the places of lower ones.
        let more: Vec<_> = (0..2).map(|_| places.take(Role::Configure).unwrap()).collect();
        assert!(places.take(Role::Read).is_none());
        drop((configure, more));
        assert!(places.take(Role::Read).is_some());
    }
}
