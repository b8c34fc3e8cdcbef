//! What lies sealed in a store, so that it can be sealed anew under another key. The store knows nothing of
//! keys.

use forge_base::id::DispatchId;

/// One value that somebody sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub place: Place,
    pub bytes: Vec<u8>,
}

/// Where a sealed value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A value of the whole store, such as the default signing secret.
    Named(String),
    /// The secrets of a dispatch.
    Dispatch(DispatchId),
}

impl Place {
    /// What it is sealed as: a value that is moved elsewhere does not open there.
    pub fn context(&self) -> String {
        match self {
            Place::Named(name) => name.clone(),
            Place::Dispatch(id) => of_dispatch(*id),
        }
    }
}

/// What the secrets of a dispatch are sealed as.
pub fn of_dispatch(id: DispatchId) -> String {
    format!("dispatch:{id}")
}

/// A value that was sealed anew.
#[derive(Clone, Debug)]
pub struct Resealed {
    pub place: Place,
    /// What it was made from; where something else is there by now, that stays.
    pub from: Vec<u8>,
    pub to: Vec<u8>,
}
