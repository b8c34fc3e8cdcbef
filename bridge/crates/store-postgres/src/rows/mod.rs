//! Rows and statements: conversion between columns and records, and sets of rows that a batch reads, changes and writes.
//! It knows no dispatch.

pub(crate) mod cell;
pub(crate) mod script;
pub(crate) mod set;
pub(crate) mod statement;
pub(crate) mod table;
