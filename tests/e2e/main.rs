//! Everything with a socket, a process or a plugin, in one binary.

mod tidy;
