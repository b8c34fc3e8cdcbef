//! Keeps other processes out of the memory of this one, where tokens and keys are.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Closes environment and memory of this process to all processes without `CAP_SYS_PTRACE`, those of the same user
/// included, and allows no core dump. Call this first: what is inherited by exec is open until then.
pub fn close_memory() {
    close_supervisor();
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // A filter of system calls can refuse this; the line above already prevents core dumps of this process.
    let _ = setrlimit(Resource::Core, none);
}

/// The same for a supervisor, whose environment is that of its program; the program can have core dumps.
pub(super) fn close_supervisor() {
    // An error is impossible: the value is a valid one.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
