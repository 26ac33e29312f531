//! Reports that a system without process descriptors cannot await other processes.

use std::convert::Infallible;

pub(super) struct Opened(Infallible);

impl Opened {
    pub(super) fn user(&self) -> u32 {
        match self.0 {}
    }

    pub(super) fn shares_numbers(&self) -> bool {
        match self.0 {}
    }

    pub(super) async fn ended(&self) {
        match self.0 {}
    }

    pub(super) fn has_ended(&self) -> bool {
        match self.0 {}
    }
}

pub(super) fn open(number: u32) -> Result<Opened, String> {
    Err(format!(
        "process {number} cannot be awaited: this needs the process descriptors of Linux 5.3 or newer"
    ))
}
