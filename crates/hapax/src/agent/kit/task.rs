//! What the code of an agent sees of a command.

use super::{
    super::{
        Error,
        install::staging_of,
        protocol::{Artifact, Command},
    },
    empty_object,
    out::cut,
    place::Place,
    staged::Staged,
};
use hapax_core::json::Json;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{fs, io, path::PathBuf, sync::Arc};

/// The bytes of a token's piece; in JSON a byte is six at the most.
const MOST_TOKEN_BYTES: usize = 32 * 1024;

/// A command, and what its work needs.
///
/// ```
/// use hapax::agent::kit::{self, Answer, Task};
/// # #[derive(serde::Deserialize)]
/// # struct Goal { goal: String }
/// fn implement(task: &mut Task) -> Result<Answer, hapax::agent::protocol::Failure> {
///     let goal: Goal = task.inputs()?;
///     let before = task.read("src/roman.py").unwrap_or_default();
///     task.progress(50.0, &goal.goal);
///     task.write("src/roman.py", &[before, b"# done".to_vec()].concat())?;
///     Ok(Answer::success())
/// }
/// # let served =
/// kit::serve(implement)
/// # ;
/// # assert!(served.is_err(), "no engine has started it");
/// ```
pub struct Task {
    /// The command as it came.
    pub command: Command,
    place: Arc<Place>,
    was_cut_off: bool,
    artifacts: Vec<Artifact>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({} {})", self.command.action, self.command.idempotency_key)
    }
}

impl Task {
    pub(super) fn new(command: &Command, place: &Arc<Place>, was_cut_off: bool) -> Self {
        Self { command: command.clone(), place: place.clone(), was_cut_off, artifacts: vec![] }
    }

    pub(super) fn into_artifacts(self) -> Vec<Artifact> {
        self.artifacts
    }

    /// With what.
    pub fn inputs<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        self.command.inputs.read()
    }

    /// Whether an earlier attempt began and didn't end: what it did outside of the staging folder may have happened. Whoever
    /// sends mails or deploys looks first, by the command's key.
    pub fn was_cut_off(&self) -> bool {
        self.was_cut_off
    }

    /// A file of the workspace.
    pub fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.place.workspace.root().join(path))
    }

    /// Where this command's files wait until the engine takes them. It is there, and empty when the work begins.
    pub fn staging(&self) -> PathBuf {
        staging_of(&self.place.staging, &self.command.idempotency_key)
    }

    /// Makes a file that belongs into the workspace at that path, whole or not at all.
    pub fn write(&mut self, path: &str, content: &[u8]) -> Result<(), Error> {
        let artifact = self.staged().put(path, content)?;
        self.list(artifact);
        Ok(())
    }

    /// A file that is in the [staging folder](Task::staging) already, by other means.
    pub fn made(&mut self, path: &str) -> Result<(), Error> {
        let artifact = self.staged().seal(path)?;
        self.list(artifact);
        Ok(())
    }

    fn staged(&self) -> Staged<'_> {
        Staged::new(&self.place.workspace, &self.place.staging, &self.command.idempotency_key)
    }

    fn list(&mut self, artifact: Artifact) {
        self.artifacts.retain(|listed| listed.path != artifact.path);
        self.artifacts.push(artifact);
    }

    /// Says how far it is, from 0 to 100; what is no number is left out.
    pub fn progress(&self, percent: f64, message: &str) {
        let mut payload = json!({"message": cut(message)});
        if !percent.is_nan() {
            payload["percent"] = percent.clamp(0.0, 100.0).into();
        }
        self.tell("progress", &payload);
    }

    /// Shows a part of a text as it comes. A long one is shown piece by piece.
    pub fn token(&self, text: &str) {
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(MOST_TOKEN_BYTES));
            self.tell("token", &json!({"text": piece}));
            rest = behind;
        }
    }

    /// Writes a line into the engine's log. The level is `debug`, `info`, `warn` or `error`; any other is `info`.
    pub fn log(&self, level: &str, message: &str) {
        self.place.out.log(level, message);
    }

    fn tell(&self, name: &str, payload: &Value) {
        let payload = Json::of(payload).unwrap_or_else(|_| empty_object());
        self.place.out.say(&self.place.event(&self.command, name, None, payload, vec![]));
    }
}
