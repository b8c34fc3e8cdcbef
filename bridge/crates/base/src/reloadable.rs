//! A setting that may be replaced while the bridge runs, by SIGHUP. Must not know what it holds.

use std::sync::{Arc, PoisonError, RwLock};

/// Everybody who has a clone reads the same value. Cheap to clone.
#[derive(Debug, Default)]
pub struct Reloadable<T>(Arc<RwLock<Arc<T>>>);

impl<T> Reloadable<T> {
    /// The value as it is now; whoever holds it is not bothered by a replacement.
    pub fn get(&self) -> Arc<T> {
        // Neither side runs foreign code under the lock, so that a poisoned one is whole as well.
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
