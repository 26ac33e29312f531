//! Keeps future events in order: the earliest first, and events of the same instant in the order of their planning.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use eldest_core::time::Time;

/// A queue of future events. The heap orders small entries; the events stay in place.
pub(crate) struct Agenda<T> {
    order: BinaryHeap<Reverse<(Time, u64, u32)>>,
    things: Vec<Option<T>>,
    free: Vec<u32>,
    planned: u64,
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Self {
        Self {
            order: BinaryHeap::new(),
            things: Vec::new(),
            free: Vec::new(),
            planned: 0,
        }
    }

    pub(crate) fn plan(&mut self, at: Time, thing: T) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.things.push(None);
            (self.things.len() - 1) as u32
        });
        self.things[place as usize] = Some(thing);
        self.planned += 1;
        self.order.push(Reverse((at, self.planned, place)));
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.order.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        let Reverse((_, _, place)) = self.order.pop()?;
        self.free.push(place);
        self.things[place as usize].take()
    }
}
