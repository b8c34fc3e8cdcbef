//! The first test by name: checks that the programs started by other tests are installed, and names missing ones.

use std::process::{Command, Stdio};

/// Programs, each with its use.
const PROGRAMS: [(&str, &str); 4] = [
    ("cargo", "builds the adapter of a third party"),
    ("cc", "compiles adapters in C"),
    ("npm", "installs the claude program"),
    ("python3", "runs an MCP server"),
];

#[test]
fn nothing_that_the_tests_start_is_absent() {
    let starts = |program: &str| {
        let version = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        version.is_ok_and(|status| status.success())
    };
    let absent: Vec<String> = PROGRAMS
        .iter()
        .filter(|(program, _)| !starts(program))
        .map(|(program, purpose)| format!("{program}, which {purpose}"))
        .collect();
    assert!(
        absent.is_empty(),
        "not installed (`.ci/setup` does it): {}",
        absent.join("; ")
    );
}
