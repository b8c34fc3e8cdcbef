//! Random sequences of changes, made on the model and on disk: both must answer alike.
