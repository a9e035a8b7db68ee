//! One engine runs an agent: a file that is locked as long as it does, and tells whoever comes next what it left.

use super::{Error, process::Started};
use std::{
    fs::{self, File, TryLockError},
    io::{Read as _, Seek as _, Write as _},
    path::Path,
    time::Duration,
};

/// How often a lock that another engine holds is tried.
const LOOK: Duration = Duration::from_millis(50);

/// The right to run an agent, until it is dropped.
#[derive(Debug)]
pub(crate) struct AgentLock(File);

impl AgentLock {
    /// Waits for as long as another engine holds it, then ends what an engine that died has left.
    pub(crate) async fn take(folder: &Path, agent: &str, patience: Duration) -> Result<Self, Error> {
        let path = folder.join("lock");
        let failed = |error: std::io::Error| Error::workspace(&path, error);
        fs::create_dir_all(folder).map_err(failed)?;
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let file = file.map_err(failed)?;
        let waits = async {
            loop {
                match file.try_lock() {
                    Ok(()) => return Ok(()),
                    Err(TryLockError::WouldBlock) => tokio::time::sleep(LOOK).await,
                    Err(TryLockError::Error(error)) => return Err(failed(error)),
                }
            }
        };
        let locked = tokio::time::timeout(patience, waits).await;
        locked.unwrap_or_else(|_| Err(Error::Locked(agent.into())))?;
        let mut lock = Self(file);
        if let Some(left) = lock.left() {
            tracing::warn!(agent, pid = left.pid, "an engine died and may have left its agent: it is ended");
            left.end_all();
        }
        lock.note(None);
        Ok(lock)
    }

    /// What the last engine was running when it died.
    fn left(&mut self) -> Option<Started> {
        let mut text = String::new();
        self.0.rewind().and_then(|()| self.0.read_to_string(&mut text)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Notes what runs now. Without it only the mark of death helps whoever comes next, so a failure is worth a warning.
    pub(crate) fn note(&mut self, started: Option<&Started>) {
        let text = started.and_then(|started| serde_json::to_vec(started).ok()).unwrap_or_default();
        let written = self.0.rewind().and_then(|()| self.0.set_len(0)).and_then(|()| self.0.write_all(&text));
        if let Err(error) = written {
            tracing::warn!(%error, "it can't be noted which process an agent is");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::process::Launch;

    #[tokio::test]
    async fn a_second_engine_does_not_run_the_same_agent() {
        let folder = tempfile::tempdir().unwrap();
        let held = AgentLock::take(folder.path(), "builder", Duration::ZERO).await.unwrap();
        let second = AgentLock::take(folder.path(), "builder", Duration::from_millis(60)).await;
        assert_eq!(second.unwrap_err(), Error::Locked("builder".into()));
        drop(held);
        assert!(AgentLock::take(folder.path(), "builder", Duration::ZERO).await.is_ok());
    }

    #[tokio::test]
    async fn what_a_dead_engine_left_is_ended_by_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let script = "trap '' TERM HUP; while :; do sleep 1000; done";
        let args = ["-c".into(), script.into()].into();
        let launch = Launch { program: "sh".into(), args, env: vec![], folder: "/".into() };
        let mut process = launch.start().await.unwrap();
        let mut lock = AgentLock::take(folder.path(), "builder", Duration::ZERO).await.unwrap();
        lock.note(Some(&process.started));
        drop(lock);
        let _next = AgentLock::take(folder.path(), "builder", Duration::ZERO).await.unwrap();
        let status = process.child.wait().await.unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}
