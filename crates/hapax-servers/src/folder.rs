//! A server's temporary folder, and the keeper that clears it away whatever happens to us.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::ServerError;
use crate::process::{UNPRIVILEGED, is_root};

/// Reads from a pipe that we hold and never write to, so it goes on when we are gone, even by SIGKILL. Then it ends what
/// still works in the folder: processes of a frozen server don't notice that their parent died. A killed PostgreSQL leaves
/// a segment of shared memory, of which a machine has only 4096. What is being killed may still add a file, so that the
/// folder is removed in several attempts.
const KEEPER: &str = r#"
read -r _
for process in /proc/[0-9]*; do
    if [ "$process/cwd" -ef "$0/data" ] || [ "$process/cwd" -ef "$0" ]; then
        kill -KILL "${process#/proc/}"
    fi
done
if [ -f "$0/data/postmaster.pid" ]; then
    set -- $(sed -n 7p "$0/data/postmaster.pid")
    [ -n "$2" ] && ipcrm -m "$2"
fi
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$0" && exit
    sleep 0.2
done
"#;

/// An empty folder that belongs to the account under which servers run. It is removed when dropped, or when this process
/// ends in any other way.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    keeper: Child,
}

impl Folder {
    pub(crate) fn new() -> Result<Self, ServerError> {
        let folder = tempfile::Builder::new()
            .prefix("hapax-server-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(ServerError::io("make a temporary folder"))?;
        let keeper = keeper(folder.path()).map_err(ServerError::io("start `sh`"))?;
        let folder = Folder { path: folder.keep(), keeper };
        give_away(&folder.path)?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the server has its data, and works.
    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// An empty folder within, which belongs to the servers' account.
    pub(crate) fn add(&self, name: &str) -> Result<PathBuf, ServerError> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(ServerError::io("make a folder for a disk"))?;
        give_away(&path)?;
        Ok(path)
    }

    /// The log, to add to.
    pub(crate) fn open_log(&self) -> Result<File, ServerError> {
        let open = File::options().create(true).append(true).open(self.log_path());
        open.map_err(ServerError::io("open a server's log"))
    }

    /// All that was logged.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.path.join("log")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // A keeper that can't be waited for still does its work.
        let _ = self.keeper.wait();
    }
}

/// Makes a folder that of the servers' account.
fn give_away(folder: &Path) -> Result<(), ServerError> {
    if !is_root() {
        return Ok(());
    }
    chown(folder, Some(UNPRIVILEGED), Some(UNPRIVILEGED))
        .map_err(ServerError::io("give away a temporary folder"))
}

/// The keeper has a process group of its own: an interrupt from the keyboard is for us, and it goes on after it.
fn keeper(folder: &Path) -> std::io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", KEEPER]).arg(folder).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
