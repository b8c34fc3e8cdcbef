//! Every reader of what comes from outside, as a target of bytes.
