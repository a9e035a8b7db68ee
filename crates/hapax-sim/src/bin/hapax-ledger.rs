//! The outside party as a process of its own: `hapax-ledger SOCKET LOG`. It ends with its standard input, so that
//! it can't outlive the test that started it.

use std::{env, io::Read, path::PathBuf, process, thread};

fn main() -> std::io::Result<()> {
    let mut args = env::args_os().skip(1).map(PathBuf::from);
    let (Some(socket), Some(log)) = (args.next(), args.next()) else {
        eprintln!("usage: hapax-ledger SOCKET LOG");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the ledger.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(0);
    });
    hapax_sim::kills::ledger::serve(&socket, log)
}
