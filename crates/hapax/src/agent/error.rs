//! What can go wrong with an agent, each with its code, and whether another attempt makes sense.

use crate::NodeError;
use hapax_core::error::{Code, Coded, code};
use std::{path::Path, time::Duration};

/// What is wrong with an agent, its workspace, or what it answered. In a node it comes as an
/// [`EffectError`](crate::EffectError) with the same code, recorded like every other.
///
/// ```
/// use hapax::{Coded, agent::Workspace};
/// assert_eq!(Workspace::open("no/such/folder").unwrap_err().code(), "HX0130");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It can't be used as it is. Nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// A message is larger than a line may be. Nothing was sent.
    #[error(
        "a message of {bytes} bytes is over the limit of {limit}; put large inputs into files of the workspace"
    )]
    TooLarge {
        /// Its size, with the newline.
        bytes: usize,
        /// What a line may have.
        limit: usize,
    },
    /// The agent says that it failed.
    #[error("the agent failed ({code}): {message}")]
    Failed {
        /// Its own code.
        code: String,
        /// Its own words.
        message: String,
        /// Whether it says that another attempt makes sense.
        retryable: bool,
    },
    /// The agent can't be kept alive.
    #[error("the agent is dead: {0}")]
    Dead(String),
    /// The agent didn't answer in time.
    #[error("the agent didn't answer within {0:?}")]
    Timeout(Duration),
    /// A line isn't a message.
    #[error("the agent broke the protocol: {0}")]
    Protocol(String),
    /// The agent worked on other files than those that the command is about.
    #[error("the agent worked on {observed}, but the command is about {pinned}")]
    Version {
        /// The snapshot of the command.
        pinned: String,
        /// The snapshot that the agent says it saw.
        observed: String,
    },
    /// A file that the agent made can't be taken.
    #[error("artifact `{path}` is refused: {reason}")]
    Artifact {
        /// Its path, as the agent gave it.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The agent didn't make what it must.
    #[error("required output `{path}` is not among the artifacts")]
    OutputMissing {
        /// Its path, as the command has it.
        path: String,
    },
    /// Another engine runs the agent.
    #[error("agent `{0}` is run by another engine in this state folder")]
    Locked(String),
    /// The workspace can't be read or written.
    #[error("workspace: `{path}`: {reason}")]
    Workspace {
        /// Where.
        path: String,
        /// Why.
        reason: String,
    },
    /// A ledger or a receipt can't be written or read.
    #[error("ledger: `{path}`: {reason}")]
    Ledger {
        /// Which file.
        path: String,
        /// Why.
        reason: String,
    },
}

impl Error {
    pub(crate) fn workspace(path: impl AsRef<Path>, reason: impl std::fmt::Display) -> Self {
        Error::Workspace { path: path.as_ref().display().to_string(), reason: format!("{reason}") }
    }

    pub(crate) fn ledger(path: impl AsRef<Path>, reason: impl std::fmt::Display) -> Self {
        Error::Ledger { path: path.as_ref().display().to_string(), reason: format!("{reason}") }
    }

    pub(crate) fn artifact(path: &str, reason: impl std::fmt::Display) -> Self {
        Error::Artifact { path: path.into(), reason: format!("{reason}") }
    }

    /// Whether another attempt with the same key makes sense: an agent that has answered answers the same again.
    ///
    /// ```
    /// use hapax::agent::Error;
    /// assert!(Error::Dead("exit status: 1".into()).is_retryable());
    /// assert!(!Error::OutputMissing { path: "src/main.rs".into() }.is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Failed { retryable, .. } => *retryable,
            Error::Dead(_) | Error::Timeout(_) | Error::Locked(_) | Error::Workspace { .. } => true,
            _ => false,
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Error::Invalid(_) => code::AGENT_INVALID,
            Error::TooLarge { .. } => code::AGENT_TOO_LARGE,
            Error::Failed { .. } => code::AGENT_FAILED,
            Error::Dead(_) => code::AGENT_DEAD,
            Error::Timeout(_) => code::AGENT_TIMEOUT,
            Error::Protocol(_) => code::AGENT_PROTOCOL,
            Error::Version { .. } => code::AGENT_VERSION,
            Error::Artifact { .. } => code::AGENT_ARTIFACT,
            Error::OutputMissing { .. } => code::AGENT_OUTPUT_MISSING,
            Error::Locked(_) => code::AGENT_LOCKED,
            Error::Workspace { .. } => code::WORKSPACE,
            Error::Ledger { .. } => code::LEDGER,
        }
    }
}

impl Error {
    /// As an effect records it.
    pub(crate) fn into_node_error(self) -> NodeError {
        NodeError::coded(self.code(), self.to_string(), self.is_retryable())
    }
}
