//! The SDK of sluice plugins as a crate. `sluice.rs`, which plugins can also copy, has all of it.
#![cfg_attr(not(any(test, feature = "testing")), no_std)]

pub mod sluice;
pub use sluice::*;
