//! Records events for the tests of the failover if the feature `failover-test` is on; otherwise it does nothing.

pub use with::Witness;

#[cfg(not(feature = "failover-test"))]
mod with {
    use eldest::{Error, Term};

    /// Records nothing.
    #[derive(Debug, Clone, Default)]
    pub struct Witness;

    pub(crate) struct Write;

    #[allow(clippy::unused_self)] // the other witness needs it
    impl Witness {
        pub(crate) fn elected(&self, _: Term) {}

        pub(crate) fn writes(&self, _: i64, _: u64) -> Write {
            Write
        }

        /// Records that the node is about to shut down.
        pub fn leaves(&self) {}
    }

    #[allow(clippy::unused_self)]
    impl Write {
        pub(crate) fn ended<T>(self, _: &Result<T, Error>) {}
    }
}

#[cfg(feature = "failover-test")]
mod with {
    use eldest::{Error, ErrorKind, Term};
    use eldest_testing::history::{Outcome, Recorder, What};

    use crate::ELECTION;

    /// Records when an instance finds its term valid, and what it writes, under the instance's name.
    #[derive(Debug, Clone)]
    pub struct Witness {
        recorder: Recorder,
        name: String,
    }

    /// A write in flight. If it never ends, it is unknown whether it was applied.
    pub(crate) struct Write {
        witness: Witness,
        token: i64,
        value: u64,
    }

    impl Witness {
        /// Makes the witness of the instance with that name.
        pub fn new(recorder: &Recorder, name: &str) -> Self {
            Self {
                recorder: recorder.clone(),
                name: name.to_owned(),
            }
        }

        pub(crate) fn elected(&self, term: Term) {
            tokio::spawn(self.recorder.follow(&self.name, term));
        }

        pub(crate) fn writes(&self, token: i64, value: u64) -> Write {
            self.wrote(token, Outcome::Sent);
            Write {
                witness: self.clone(),
                token,
                value,
            }
        }

        fn wrote(&self, token: i64, outcome: Outcome) {
            let what = What::FencedWrite { token, outcome };
            self.recorder.record(&*self.name, ELECTION, what);
        }

        /// Records that the node is about to shut down.
        pub fn leaves(&self) {
            self.recorder.record(&*self.name, ELECTION, What::Left);
        }
    }

    impl Write {
        pub(crate) fn ended<T>(self, result: &Result<T, Error>) {
            let outcome = match result {
                Ok(_) => Outcome::Admitted { value: self.value },
                Err(error) if error.kind() == ErrorKind::Ambiguous => Outcome::Unknown,
                Err(_) => Outcome::Refused,
            };
            self.witness.wrote(self.token, outcome);
        }
    }
}
