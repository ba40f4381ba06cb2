//! What the scheduler does, behaviour by behaviour, in small worlds whose numbers can be checked by hand.

mod aborts;
mod admission;
mod ahead;
mod applying;
mod arrival;
mod drafts;
mod preemption;
mod queue;
mod resolving;
mod running;
mod seats;
mod shapes;
mod world;
