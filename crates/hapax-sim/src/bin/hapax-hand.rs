//! An agent of the proofs, in Rust: builder, reviewer and keeper of the list in one. It says what it does to the pipe that
//! its environment names.

fn main() -> Result<(), hapax::agent::Error> {
    hapax_sim::crafts::serve()
}
