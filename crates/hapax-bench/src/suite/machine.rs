//! What was measured on, and how busy it was: figures without it mean little.

use serde::Serialize;
use std::{fmt, fs, thread};

/// A machine and its load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    load_before: String,
    load_after: String,
}

impl Machine {
    pub(crate) fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: cpu(&read("/proc/cpuinfo")),
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: load(&read("/proc/loadavg")),
            load_after: String::new(),
        }
    }

    pub(crate) fn loaded_until_now(mut self) -> Self {
        self.load_after = load(&fs::read_to_string("/proc/loadavg").unwrap_or_default());
        self
    }
}

fn cpu(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    model.and_then(|line| line.split_once(": ")).map_or("an unknown CPU", |(_, model)| model).to_owned()
}

/// The load of the last minute.
fn load(loadavg: &str) -> String {
    loadavg.split(' ').next().unwrap_or_default().to_owned()
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, load_before, load_after } = self;
        write!(f, "{cpu}, {cores} cores, Linux {kernel}; load {load_before} before, {load_after} after")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_files_are_read() {
        assert_eq!(cpu("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: B\n"), "A CPU @ 2 GHz");
        assert_eq!(cpu(""), "an unknown CPU");
        assert_eq!(load("1.25 0.5 0.1 1/200 4242\n"), "1.25");
    }
}
