//! What the kernel knows about this process: the most memory it held, and what it caused to be written.

use std::fs;

/// The most resident memory so far, in bytes.
pub(crate) fn peak_rss_bytes() -> u64 {
    field(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:") * 1024
}

/// Bytes that this process has caused to be sent to the disk.
pub(crate) fn write_bytes() -> u64 {
    field(&fs::read_to_string("/proc/self/io").unwrap_or_default(), "write_bytes:")
}

/// Seconds of CPU that a process, the children it has waited for, and those that live have used.
pub(crate) fn cpu_s_with_children(pid: u32) -> f64 {
    let stat = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (own, waited_for) = ticks(&stat(&pid.to_string()));
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let living: u64 = children.split_whitespace().map(|child| ticks(&stat(child)).0).sum();
    (own + waited_for + living) as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// What a process has used, and what the children have that it waited for.
fn ticks(stat: &str) -> (u64, u64) {
    // The name stands in brackets and may hold anything; the state is the first word behind it.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let numbers: Vec<u64> =
        behind.split_whitespace().skip(11).take(4).map(|word| word.parse().unwrap_or(0)).collect();
    match numbers[..] {
        [user, system, waited_user, waited_system] => (user + system, waited_user + waited_system),
        _ => (0, 0),
    }
}

/// The number after a name; 0 where a kernel doesn't tell.
fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_the_number_after_its_name() {
        let status = "VmPeak:\t  9 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 3 kB\n";
        assert_eq!(field(status, "VmHWM:"), 1234);
        assert_eq!(field("cancelled_write_bytes: 7\nwrite_bytes: 8\n", "write_bytes:"), 8);
        assert_eq!(field(status, "VmSwap:"), 0);
    }

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "7 (a ) 1 2) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 13 14 20 0 1 0 99\n";
        assert_eq!(ticks(stat), (23, 27));
        assert_eq!(ticks(""), (0, 0));
    }

    #[test]
    fn this_process_has_memory() {
        assert!(peak_rss_bytes() > 100_000);
    }
}
