//! Tests that data centres own equal numbers of partitions if all members request that.

use eldest::{Announcement, Partitions};

use super::{Running, until_lost};
use crate::common::{Result, Store, in_memory, options};

async fn member(etcd: &impl Store, name: &str, center: &str, spread: bool) -> Result<Partitions> {
    let announcement = Announcement::default().with_data_center(center);
    let announcement = if spread {
        announcement.with_spread_over_data_centers()
    } else {
        announcement
    };
    let options = options(name).announcement(announcement);
    let session = etcd.session(options).await?;
    Ok(session.partitions("billing", 12)?)
}

#[tokio::test(start_paused = true)]
async fn data_centres_own_equal_numbers_while_all_members_ask_for_it() -> Result {
    let etcd = in_memory();
    let first = member(&etcd, "a", "east", true).await?;
    let second = member(&etcd, "b", "west", true).await?;
    let third = member(&etcd, "c", "west", true).await?;
    let mut a = Running::start(&first, until_lost);
    a.owns(12).await?;
    let mut b = Running::start(&second, until_lost);
    b.owns(6).await?;
    let before = a.terms.clone();
    // Another member in the same data centre takes only from the share of that data centre.
    let mut c = Running::start(&third, until_lost);
    c.owns(3).await?;
    b.owns(3).await?;
    for number in a.owns(6).await? {
        assert!(before[&number].is_valid(), "{number} did not move");
    }
    // One member without the request makes the shares of all members equal, until it has left.
    let other = member(&etcd, "d", "east", false).await?;
    let mut d = Running::start(&other, until_lost);
    for running in [&mut a, &mut b, &mut c, &mut d] {
        running.owns(3).await?;
    }
    d.shutdown.cancel();
    d.end().await?;
    a.owns(6).await?;
    b.owns(3).await?;
    c.owns(3).await?;
    for running in [a, b, c] {
        running.shutdown.cancel();
        running.end().await?;
    }
    Ok(())
}
