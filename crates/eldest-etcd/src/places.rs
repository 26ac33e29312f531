//! Owns the endpoints in use, in the user's order, with their measurements.

use std::sync::Arc;

use super::endpoint::{Endpoint, Place};
use super::lane::Lane;
use super::nearness::Nearness;
use eldest_core::time::Time;

/// The endpoints, at least one, with their measurements.
pub(super) struct Places {
    all: Vec<Arc<Place>>,
    pub(super) nearness: Nearness,
    /// The number of the next new endpoint.
    next: usize,
}

impl Places {
    /// Makes the list; `own` is the session's data centre.
    pub(super) fn new(
        endpoints: Vec<Endpoint>,
        own: Option<&str>,
        now: Time,
        chance: impl FnMut() -> u64,
    ) -> Self {
        let mut places = Self {
            all: Vec::new(),
            nearness: Nearness::new([], now, || 0),
            next: 0,
        };
        let all = places.places_for(endpoints);
        places.replace(all, own, now, chance);
        places
    }

    pub(super) fn all(&self) -> &[Arc<Place>] {
        &self.all
    }

    pub(super) fn get(&self, number: usize) -> Option<&Arc<Place>> {
        self.all.iter().find(|place| place.number == number)
    }

    /// Returns the endpoint at which lanes begin.
    pub(super) fn first(&self) -> Arc<Place> {
        let first = self.nearness.first();
        Arc::clone(self.get(first).unwrap_or(&self.all[0]))
    }

    /// Records that a request of the lane failed at an endpoint. Returns the lane's next endpoint.
    pub(super) fn failed(
        &mut self,
        lane: Lane,
        at: &Arc<Place>,
        now: Time,
        chance: u64,
    ) -> Arc<Place> {
        let next = self.nearness.failed(lane, at.number, now, chance);
        Arc::clone(self.get(next).unwrap_or(at))
    }

    /// Returns the next endpoint of a lane whose endpoint was removed from the list.
    pub(super) fn instead_of(&self, lane: Lane, at: &Place, now: Time) -> Option<Arc<Place>> {
        if self.get(at.number).is_some() {
            return None;
        }
        let instead = self.nearness.instead_of(lane, at.number, now)?;
        self.get(instead).cloned()
    }

    /// Returns the places of another list's endpoints: those that stay keep their numbers.
    pub(super) fn places_for(&mut self, endpoints: Vec<Endpoint>) -> Vec<Arc<Place>> {
        let place = |endpoint: Endpoint| {
            let mut known = self.all.iter();
            let same = |known: &Endpoint| {
                (&known.url, &known.server_name) == (&endpoint.url, &endpoint.server_name)
            };
            let number = known.find(|place| same(&place.endpoint));
            let number = number.map_or_else(
                || {
                    self.next += 1;
                    self.next - 1
                },
                |place| place.number,
            );
            Arc::new(Place::new(number, endpoint))
        };
        endpoints.into_iter().map(place).collect()
    }

    /// Takes another list. Keeps the measurements of endpoints that stay.
    pub(super) fn replace(
        &mut self,
        all: Vec<Arc<Place>>,
        own: Option<&str>,
        now: Time,
        chance: impl FnMut() -> u64,
    ) {
        let is_own = |place: &Place| own.is_some() && place.endpoint.data_center.as_deref() == own;
        let listed = all.iter().map(|place| (place.number, is_own(place)));
        self.nearness.replace(listed, now, chance);
        self.all = all;
    }
}
