//! Rules of the library, each in one story.

use std::time::Duration;

use super::cluster::E;
use super::world::World;

#[test]
fn the_longest_running_wins() {
    let mut w = World::seated(3);
    w.kill(0);
    w.until("the second leads", Duration::from_secs(7), |w| w.leads(1));
    let _ = E;
}
