//! Walls within components: words that only some files may have. `tidy` checks them.

/// Words that must not occur in the code below a folder, except in the files named.
pub(super) const ONLY_IN: [(&str, &str, &[&str]); 10] = [
    // Closing any descriptor of the database file drops the locks that SQLite holds on it.
    ("File", "bridge/crates/store-sqlite/src/", OPEN_FILES),
    ("OpenOptions", "bridge/crates/store-sqlite/src/", OPEN_FILES),
    // The engine knows no dispatch, and the tables know no thread.
    ("dispatch", "bridge/crates/store-sqlite/src/engine/", &[]),
    ("thread", "bridge/crates/store-sqlite/src/tables/", &[]),
    // Text from elsewhere has to pass the filter of the screen.
    ("stdout", "bridge/src/cli/", OUTPUTS),
    ("stderr", "bridge/src/cli/", OUTPUTS),
    // Control characters are the smaller half of the characters that cannot be seen.
    ("is_control", "bridge/", &["bridge/crates/base/src/text.rs"]),
    // Files of tools can be links, pipes, or of any size.
    (
        "fs",
        "bridge/src/cli/forg/",
        &["bridge/src/cli/forg/files.rs"],
    ),
    // The wall clock can be set between two of its times: a duration within the process is that of two moments.
    ("duration_since", "bridge/crates/", CLOCKS),
    ("wall_age", "bridge/crates/", AGES),
];
/// The clocks themselves, and the name of a checkout, which has the time at which its folder was created.
const CLOCKS: &[&str] = &[
    "bridge/crates/base/src/time/mod.rs",
    "bridge/crates/base/src/time/sleeper.rs",
    "bridge/crates/runs/src/git/made.rs",
];
/// Files that compare a stored or foreign time with the present one.
const AGES: &[&str] = &[
    "bridge/crates/base/src/time/mod.rs",
    "bridge/crates/delivery/src/expiry.rs",
    "bridge/crates/delivery/src/tests/retries.rs",
    "bridge/crates/delivery/src/tests/rounds.rs",
    "bridge/crates/delivery/src/verdict.rs",
    "bridge/crates/delivery/src/worker.rs",
    "bridge/crates/dispatch/src/attempt.rs",
    "bridge/crates/dispatch/src/finish.rs",
    "bridge/crates/dispatch/src/nodes/offer.rs",
    "bridge/crates/dispatch/src/submit.rs",
    "bridge/crates/runs/src/state.rs",
    "bridge/crates/runs/src/takeover.rs",
    "bridge/crates/server/src/adapters.rs",
    "bridge/crates/server/src/query.rs",
    "bridge/crates/signals/src/agent/sessions.rs",
    "bridge/crates/signals/src/engine/mod.rs",
    "bridge/crates/signals/src/engine/sessions.rs",
    "bridge/crates/signals/src/forward/mod.rs",
    "bridge/crates/signals/src/record.rs",
];
/// The screen; commands that print no text from elsewhere; streams of child processes.
const OUTPUTS: &[&str] = &[
    "bridge/src/cli/completions.rs",
    "bridge/src/cli/conform.rs",
    "bridge/src/cli/conformance/package.rs",
    "bridge/src/cli/conformance/run.rs",
    "bridge/src/cli/drill/faults.rs",
    "bridge/src/cli/drill/report.rs",
    "bridge/src/cli/drill/victim.rs",
    "bridge/src/cli/forg/keystore.rs",
    "bridge/src/cli/sample.rs",
    "bridge/src/cli/screen.rs",
    "bridge/src/cli/top/mod.rs",
];
const OPEN_FILES: &[&str] = &[
    "bridge/crates/store-sqlite/src/engine/connection.rs",
    "bridge/crates/store-sqlite/src/engine/folder_lock.rs",
    "bridge/crates/store-sqlite/src/engine/wal.rs",
    "bridge/crates/store-sqlite/src/maintenance.rs",
];
