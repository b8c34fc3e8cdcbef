//! Request metrics, by the template of the route, never by the path.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;

use forge_base::metrics::{Counter, Histogram, OTHER, Table};

/// Maximum routes with a row of their own; there are fewer.
const ROUTES: usize = 128;
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "OPTIONS", OTHER];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Counters of all routes. Cheap to clone.
#[derive(Clone)]
pub(super) struct Traffic(Arc<Table<Route>>);

impl Default for Traffic {
    fn default() -> Self {
        Self(Arc::new(Table::new(ROUTES)))
    }
}

/// Counters of one route.
pub(super) struct Route {
    /// Answers by `METHODS`, then `CLASSES`.
    answers: [[Counter; CLASSES.len()]; METHODS.len()],
    /// Time until the response head; a stream continues after it.
    pub(super) time: Histogram,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            answers: Default::default(),
            time: Histogram::of_times(),
        }
    }
}

impl Traffic {
    pub(super) fn answered(&self, route: &str, method: &Method, status: u16, took: Duration) {
        let row = self.0.row(route);
        let known = METHODS.iter().position(|name| *name == method.as_str());
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        row.answers[known.unwrap_or(METHODS.len() - 1)][class].inc();
        row.time.time(took);
    }

    pub(super) fn routes(&self) -> impl Iterator<Item = (&str, &Route)> {
        self.0.rows()
    }
}

impl Route {
    /// Method, status class and count, where the count is not 0.
    pub(super) fn answers(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let methods = METHODS.into_iter().zip(&self.answers);
        methods
            .flat_map(|(method, row)| {
                let classes = CLASSES.into_iter().zip(row);
                classes.map(move |(class, counter)| (method, class, counter.get()))
            })
            .filter(|(_, _, count)| *count > 0)
    }
}
