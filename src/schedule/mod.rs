//! Runs work at the due times of a schedule, on the leader only. A record in etcd holds the last due time.

#[cfg(feature = "cron")]
mod cron;
mod every;
mod journal;
mod moment;
mod plan;
mod record;
mod times;

pub use every::{Due, Every};
pub use plan::{CatchUp, Delivery};
pub use times::Schedule;
