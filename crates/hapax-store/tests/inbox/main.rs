//! Inboxes in every database: what is received once, whatever happens meanwhile; and their table.

mod kit;
mod once;
mod setup;
mod terms;
