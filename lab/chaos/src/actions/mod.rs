//! Lists all faults of the catalogue, and finds a fault by its name.

use crate::action::Action;

mod certificates;
mod clock;
mod defrag;
mod far;
mod guards;
mod links;
mod load;
mod members;
mod orders;
mod peers;
mod processes;
mod servers;
mod store;
mod upgrade;
mod users;

/// Returns all faults, in the order of the catalogue.
pub fn all() -> Vec<Box<dyn Action>> {
    let mut all = processes::all();
    all.extend(orders::all());
    all.extend(guards::all());
    all.extend(links::all());
    all.extend(peers::all());
    all.extend(servers::all());
    all.extend(members::all());
    all.extend(defrag::all());
    all.extend(store::all());
    all.extend(clock::all());
    all.extend(certificates::all());
    all.extend(users::all());
    all.extend(far::all());
    all.extend(upgrade::all());
    all.extend(load::all());
    all
}

/// Returns the fault of that name.
pub fn find(name: &str) -> Option<Box<dyn Action>> {
    all().into_iter().find(|action| action.card().name == name)
}
