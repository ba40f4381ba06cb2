//! What the tests of the book share.

pub mod built;
pub mod fences;
pub mod normal;
pub mod pages;
pub mod run;
pub mod servers;
pub mod snapshots;
