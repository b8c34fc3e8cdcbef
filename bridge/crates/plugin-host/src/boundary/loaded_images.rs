//! Library images that one adapter has loaded into this process. No image is ever unloaded, so their number is bounded.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Limit of images for one adapter, about 1 to 3 MiB each.
const MOST: usize = 20;

/// Loaded images, by digest.
#[derive(Default)]
pub(crate) struct LoadedImages(Mutex<BTreeSet<String>>);

/// The limit is reached; carries the limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full(pub usize);

impl LoadedImages {
    /// Counts an image that is about to be loaded; one that is loaded already is free.
    pub(crate) fn admit(&self, digest: &str) -> Result<(), Full> {
        let mut images = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if images.len() >= MOST && !images.contains(digest) {
            return Err(Full(MOST));
        }
        images.insert(digest.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_images_and_no_more_but_the_same_again() {
        let images = LoadedImages::default();
        for n in 0..MOST {
            assert_eq!(images.admit(&n.to_string()), Ok(()));
        }
        assert_eq!(images.admit("another"), Err(Full(MOST)));
        assert_eq!(images.admit("0"), Ok(()));
    }
}
