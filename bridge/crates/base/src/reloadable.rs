//! Value that can be replaced while the bridge runs, such as a setting on SIGHUP. Independent of its type.

use std::sync::{Arc, PoisonError, RwLock};

/// Shared value: all clones read the same one. Cheap to clone.
#[derive(Debug, Default)]
pub struct Reloadable<T>(Arc<RwLock<Arc<T>>>);

impl<T> Reloadable<T> {
    /// Current value. A later replacement does not affect the returned one.
    pub fn get(&self) -> Arc<T> {
        // No foreign code runs under the lock, so a poisoned one holds a valid value.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn replace(&self, value: impl Into<Arc<T>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = value.into();
    }
}

impl<T> From<T> for Reloadable<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(value))))
    }
}

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clone_sees_a_replacement_and_no_reader_is_disturbed() {
        let live = Reloadable::from(1);
        let clone = live.clone();
        let held = clone.get();
        live.replace(2);
        assert_eq!((*held, *clone.get()), (1, 2));
    }
}
