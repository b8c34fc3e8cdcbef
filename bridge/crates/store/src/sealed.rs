//! Sealed values of a store, listed so that they can be encrypted with another key. The store has no keys.

use forge_base::id::DispatchId;

use crate::Result;
use crate::roles::Secrets;

/// One sealed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub place: Place,
    pub bytes: Vec<u8>,
}

/// The named sealed value; the first time it is made by `seal`, and of several callers' values one is kept.
pub async fn named(
    store: &dyn Secrets,
    name: &str,
    seal: impl FnOnce() -> Vec<u8> + Send,
) -> Result<Vec<u8>> {
    match store.sealed(name).await? {
        Some(sealed) => Ok(sealed),
        None => store.seal_once(name, seal()).await,
    }
}

/// Location of a sealed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Value of the store itself, such as the default signing secret.
    Named(String),
    /// The secrets of a dispatch.
    Dispatch(DispatchId),
}

impl Place {
    /// Context that the value is sealed with; it cannot be opened under another one.
    pub fn context(&self) -> String {
        match self {
            Place::Named(name) => name.clone(),
            Place::Dispatch(id) => of_dispatch(*id),
        }
    }
}

/// Context of the secrets of a dispatch.
pub fn of_dispatch(id: DispatchId) -> String {
    format!("dispatch:{id}")
}

/// Replacement of a sealed value.
#[derive(Clone, Debug)]
pub struct Resealed {
    pub place: Place,
    /// Expected current value; a different one is left unchanged.
    pub from: Vec<u8>,
    pub to: Vec<u8>,
}
