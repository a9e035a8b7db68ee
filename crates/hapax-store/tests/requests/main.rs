//! Requests on every database: the promises of all, and what only real servers and files can show.

mod kit;
mod promises;
