//! `rallypoint run`, with real workers, nodes and servers. One program: each more is compiled and linked once more.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod access;
mod causes;
mod directly;
mod disk;
mod end;
mod events;
mod exclusions;
mod fence;
mod hang;
mod hang_long;
mod health;
mod kubernetes;
mod lifetimes;
mod limits;
mod nodes;
mod operator;
mod preemption;
mod preemption_bad_days;
mod proxy;
mod restarts;
mod slurm;
mod static_backend;
mod terminal;
mod torch;
mod torchrun;
mod waiting;
mod words;
mod workers;

#[path = "../launcher/mod.rs"]
mod launcher;
