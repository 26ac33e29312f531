//! How a key comes to stand, and whose it is.
