//! What both servers must stand: bad input, encryption, missing rights, zombies, lost answers, full disks. On real ones.

mod bad_input;
mod both;
mod creation;
mod faults;
mod fence;
mod flow;
mod full_disk;
mod operations;
mod raw;
mod rights;
mod schedules;
mod syncs;
mod tls;
