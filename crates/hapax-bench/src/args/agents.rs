//! What is measured of agents, as the command line has it.

use super::number;

/// What is done with agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentCall {
    /// Commands to one agent over a pipe, one after the other, without an engine.
    Pipe {
        /// How many.
        count: u64,
        /// Always the same one, which the agent answers from its memory.
        cached: bool,
    },
    /// Commands of an engine.
    Commands {
        /// How many.
        count: u64,
        /// To how many agents at a time.
        agents: u64,
    },
    /// An agent that answers at once, until its input ends.
    Serve {
        /// Whether it remembers what it has answered.
        remembers: bool,
    },
    /// Snapshots of a workspace.
    Snapshot {
        /// Its files.
        files: u64,
        /// Whether it was looked at before.
        warm: bool,
    },
}

impl AgentCall {
    /// Reads its words; nothing: they are another workload's.
    pub(super) fn parse(words: &[&str]) -> Result<Option<Self>, String> {
        Ok(Some(match words {
            ["agent-pipe", count] => Self::Pipe { count: number(count)?, cached: false },
            ["agent-cached", count] => Self::Pipe { count: number(count)?, cached: true },
            ["agent-commands", count, agents] => {
                Self::Commands { count: number(count)?, agents: number(agents)? }
            }
            ["agent-serve", how @ ("bare" | "kit")] => Self::Serve { remembers: *how == "kit" },
            ["snapshot", files, how @ ("cold" | "warm")] => {
                Self::Snapshot { files: number(files)?, warm: *how == "warm" }
            }
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_with_agents_is_read() {
        let parsed = |line: &str| AgentCall::parse(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(parsed("agent-cached 7"), Ok(Some(AgentCall::Pipe { count: 7, cached: true })));
        assert_eq!(parsed("agent-commands 70 8"), Ok(Some(AgentCall::Commands { count: 70, agents: 8 })));
        assert_eq!(parsed("agent-serve kit"), Ok(Some(AgentCall::Serve { remembers: true })));
        assert_eq!(parsed("snapshot 10 cold"), Ok(Some(AgentCall::Snapshot { files: 10, warm: false })));
        assert_eq!(parsed("w1 7"), Ok(None));
        assert!(parsed("agent-pipe none").is_err());
    }
}
