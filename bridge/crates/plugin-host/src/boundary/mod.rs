//! The lowest floor: opens a library, calls it through the function table, and checks files before that. Knows no
//! instance and no adapter. Only `load` and `call` contain unsafe code.

pub(crate) mod answer;
pub(crate) mod call;
pub(crate) mod call_id;
pub(crate) mod callbacks;
pub(crate) mod format;
pub(crate) mod load;
pub(crate) mod load_error;
pub(crate) mod loaded_images;
pub(crate) mod manifest;
pub(crate) mod readable;
pub(crate) mod staging;
pub(crate) mod truncated_answer;
pub(crate) mod trust;
