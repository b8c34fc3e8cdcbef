//! Runs: a plan of tasks that agents carry out in a git repository.
#![forbid(unsafe_code)]

pub mod git;
