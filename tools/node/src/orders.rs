//! Hides how somebody who breaks things on purpose has a node break its own: only with the feature `orders`.

#[cfg(not(feature = "orders"))]
mod none;
#[cfg(feature = "orders")]
mod socket;

#[cfg(not(feature = "orders"))]
pub(crate) use none::Orders;
#[cfg(feature = "orders")]
pub(crate) use socket::Orders;
