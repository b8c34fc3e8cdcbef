//! Cost of a run by the operator's price list.

use std::collections::BTreeMap;

use forge_adapter_api::Usage;
use serde::Deserialize;

/// Prices by model; `*` applies to all others.
pub type Prices = BTreeMap<String, Price>;

/// US dollars per million tokens.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Price of input.
    pub input: f64,
    /// Price of output.
    pub output: f64,
    /// Price of input read from a cache; default: the price of input.
    pub cache_read: Option<f64>,
    /// Price of input written to a cache; default: the price of input.
    pub cache_write: Option<f64>,
}

impl Price {
    /// True if all prices are finite and not negative.
    pub fn is_sane(&self) -> bool {
        let all = [
            Some(self.input),
            Some(self.output),
            self.cache_read,
            self.cache_write,
        ];
        let mut all = all.into_iter().flatten();
        all.all(|price| price.is_finite() && price >= 0.0)
    }
}

/// Cost in US dollars; `None` if no listed price applies or the token counts are unknown.
#[expect(clippy::cast_precision_loss, reason = "no run uses 2^52 tokens")]
pub fn cost(prices: &Prices, models: &[&str], usage: &Usage) -> Option<f64> {
    let listed = models.iter().find_map(|model| prices.get(*model));
    let price = listed.or_else(|| prices.get("*"))?;
    let (input, output) = (usage.input_tokens?, usage.output_tokens?);
    let cached = usage.cache_read_tokens.unwrap_or(0).min(input);
    let written = usage.cache_write_tokens.unwrap_or(0).min(input - cached);
    let read = (input - cached - written) as f64 * price.input
        + cached as f64 * price.cache_read.unwrap_or(price.input)
        + written as f64 * price.cache_write.unwrap_or(price.input);
    Some((read + output as f64 * price.output) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_input_has_its_own_price_and_what_is_not_known_has_none() {
        let price = |cache_read| Price {
            input: 2.0,
            output: 10.0,
            cache_read,
            cache_write: Some(4.0),
        };
        let mut prices = Prices::from([("m".to_owned(), price(Some(0.5)))]);
        let usage = Usage {
            input_tokens: Some(1_000_000),
            output_tokens: Some(100_000),
            cache_read_tokens: Some(400_000),
            ..Usage::default()
        };
        assert_eq!(cost(&prices, &["other", "m"], &usage), Some(2.4));
        assert_eq!(cost(&prices, &["other"], &usage), None);
        assert_eq!(cost(&prices, &["m"], &Usage::default()), None);
        let written = Usage {
            cache_write_tokens: Some(100_000),
            ..usage
        };
        assert_eq!(cost(&prices, &["m"], &written), Some(2.6));
        prices.insert("*".to_owned(), price(None));
        assert_eq!(cost(&prices, &["other"], &usage), Some(3.0));
    }
}
