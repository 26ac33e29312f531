//! Lets a chaos test order a node to damage itself, only with the feature `orders`.

#[cfg(not(feature = "orders"))]
mod none;
#[cfg(feature = "orders")]
mod socket;

#[cfg(not(feature = "orders"))]
pub(crate) use none::Orders;
#[cfg(feature = "orders")]
pub(crate) use socket::Orders;
