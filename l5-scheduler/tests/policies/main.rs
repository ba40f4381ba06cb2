//! Who gives way to whom, what is kept, and what is fetched; and the scheduler against one that is as plain as possible.

mod abandon;
mod aborts;
mod driver;
mod fetched;
mod fuzz;
mod leases;
mod naive;
mod prediction;
mod strict;
