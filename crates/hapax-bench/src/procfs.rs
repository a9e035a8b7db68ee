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
    fn this_process_has_memory() {
        assert!(peak_rss_bytes() > 100_000);
    }
}
