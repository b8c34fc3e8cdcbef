//! forge-bridge: accepts a step, runs it on an agent runtime through an adapter, streams what happens
//! and delivers the result, all under one durable record.

pub mod event;
pub mod id;
pub mod store;
pub mod time;
