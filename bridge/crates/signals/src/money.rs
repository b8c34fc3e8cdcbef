//! Costs, which are kept in micro-dollars.

/// Micro-dollars in a dollar.
pub(crate) const MICROS: f64 = 1_000_000.0;

/// Dollars of a sum in micro-dollars.
#[expect(
    clippy::cast_precision_loss,
    reason = "a sum above 2^53 micro-dollars is no cost of a tool"
)]
pub fn dollars(micros: u64) -> f64 {
    micros as f64 / MICROS
}

/// Micro-dollars of a cost, at least 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast to u64 ends at its bounds"
)]
pub fn micros(dollars: f64) -> u64 {
    (dollars * MICROS).round() as u64
}
