//! Holds a server until it is killed: the tests see that nothing outlives it.
//!
//! `hapax-server-holder postgres|mariadb|redis|nats [frozen]` prints the process id and the folder of the server.

use hapax_servers::{MariaDb, Nats, Postgres, Redis, Server, ServerError};

fn main() -> Result<(), ServerError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("postgres") => hold(&*Postgres::start()?, &args),
        Some("mariadb") => hold(&*MariaDb::start()?, &args),
        Some("redis") => hold(&*Redis::start()?, &args),
        Some("nats") => hold(&*Nats::start()?, &args),
        _ => panic!("which server: postgres, mariadb, redis or nats?"),
    }
}

fn hold(server: &Server, args: &[String]) -> Result<(), ServerError> {
    if args.iter().any(|arg| arg == "frozen") {
        server.stop()?;
    }
    println!("{}\n{}", server.pid(), server.folder().display());
    loop {
        std::thread::park();
    }
}
