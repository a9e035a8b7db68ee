//! The servers that tests share: for the stage `tests`, and by hand with `cargo xtask servers`.

use hapax_servers::{
    MYSQL_VARIABLE, MariaDb, POSTGRES_VARIABLE, Postgres, RABBITMQ_VARIABLE, REDIS_VARIABLE, RabbitMq, Redis,
    ServerError,
};

use crate::process::Cmd;

/// One server of each kind, which end when this is dropped or xtask ends.
pub(crate) struct Servers {
    postgres: Postgres,
    mariadb: MariaDb,
    redis: Redis,
    rabbitmq: RabbitMq,
}

impl Servers {
    pub(crate) fn start() -> Result<Self, String> {
        // It takes longer than all the others together.
        let rabbitmq = std::thread::spawn(RabbitMq::start);
        let start = || {
            let (postgres, mariadb, redis) = (Postgres::start()?, MariaDb::start()?, Redis::start()?);
            let rabbitmq = rabbitmq.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(Servers { postgres, mariadb, redis, rabbitmq })
        };
        start().map_err(|e: ServerError| e.to_string())
    }

    /// Tells a command's tests where the servers are. By hand, without the servers, they start their own.
    pub(crate) fn shared_with(&self, command: Cmd) -> Cmd {
        let told = |command: Cmd, (name, url): (&str, String)| command.env_for_now(name, &url);
        self.variables().into_iter().fold(command, told)
    }

    fn variables(&self) -> [(&'static str, String); 4] {
        [
            (POSTGRES_VARIABLE, self.postgres.url()),
            (MYSQL_VARIABLE, self.mariadb.url()),
            (REDIS_VARIABLE, self.redis.url()),
            (RABBITMQ_VARIABLE, self.rabbitmq.url()),
        ]
    }
}

/// Starts all of them and waits. An interrupt ends xtask as it ends any program; the servers notice, and go.
pub(crate) fn run() -> Result<(), String> {
    let servers = Servers::start()?;
    for (name, url) in servers.variables() {
        println!("export {name}={url}");
    }
    println!("# Tests with these variables use these servers. Ctrl-C ends them and removes their data.");
    loop {
        std::thread::park();
    }
}
