//! Process metrics under the names that all Prometheus clients use. Values that cannot be read are left out.

use std::fmt;
use std::fs;

use super::page::Page;

/// Collector that reads this process when it is scraped.
#[derive(Debug)]
pub(super) struct Process;

/// Fields of `/proc/self/stat` that are exported.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Process {
    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let stat = fs::read_to_string("/proc/self/stat").ok();
        if let Some(stat) = stat.as_deref().and_then(parse) {
            let pages = rustix::param::page_size() as u64;
            let about = ("process_cpu_seconds", "CPU time of the bridge process");
            page.counter(about, |to| to.count(&[], stat.cpu_ticks as f64 / ticks))?;
            let about = ("process_resident_memory_bytes", "Resident memory");
            page.gauge(about, |to| to.level(&[], stat.resident_pages * pages))?;
            let about = ("process_virtual_memory_bytes", "Virtual memory");
            page.gauge(about, |to| to.level(&[], stat.virtual_bytes))?;
            let about = ("process_threads", "Threads");
            page.gauge(about, |to| to.level(&[], stat.threads))?;
            if let Some(boot) = boot_time() {
                let about = (
                    "process_start_time_seconds",
                    "Start time of the process, since 1970",
                );
                let start = boot + stat.start_ticks as f64 / ticks;
                page.gauge(about, |to| to.level(&[], start))?;
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            let about = ("process_open_fds", "Open files and sockets");
            // The descriptor that reads the folder is not counted.
            let open = open.count().saturating_sub(1) as u64;
            page.gauge(about, |to| to.level(&[], open))?;
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        if let Some(limit) = limit {
            let about = (
                "process_max_fds",
                "Maximum number of open files and sockets",
            );
            page.gauge(about, |to| to.level(&[], limit))?;
        }
        Ok(())
    }
}

fn parse(stat: &str) -> Option<Stat> {
    // The name can contain anything, so parsing starts after it, with the third field.
    let (_, rest) = stat.rsplit_once(") ")?;
    let members: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |member: usize| members.get(member - 3)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: number(14)? + number(15)?,
        threads: number(20)?,
        start_ticks: number(22)?,
        virtual_bytes: number(23)?,
        resident_pages: number(24)?,
    })
}

/// Boot time of the system, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 30 12 0 0 20 0 9 0 500 4096 77 18 1";
        let expected = Stat {
            cpu_ticks: 42,
            threads: 9,
            start_ticks: 500,
            virtual_bytes: 4096,
            resident_pages: 77,
        };
        assert_eq!(parse(stat), Some(expected));
        assert_eq!(parse("7 (a) S 1"), None);
    }
}
