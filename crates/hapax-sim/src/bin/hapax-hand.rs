//! An agent of the proofs, in Rust: builder, reviewer and keeper of the list in one. It says what it does to the pipe that
//! its environment names. With a script as its argument it is the mock agent instead, and plays that.

use hapax::agent::{Error, mock};

fn main() -> Result<(), Error> {
    match std::env::args().nth(1) {
        None => hapax_sim::crafts::serve(),
        Some(script) => match serde_json::from_str(&script) {
            Ok(script) => mock::run(script),
            Err(error) => Err(Error::Invalid(format!("no script: {error}"))),
        },
    }
}
