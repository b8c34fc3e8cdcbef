//! Sealed values: unsealed only under their own name and key.

use std::cell::LazyCell;

use forge_base::vault::Vault;
use secrecy::{ExposeSecret, SecretSlice};

thread_local! {
    static VAULT: LazyCell<Vault> =
        LazyCell::new(|| Vault::from_key(&SecretSlice::from(vec![7; 32])).unwrap());
}

pub(crate) fn run(data: &[u8]) {
    VAULT.with(|vault| {
        assert!(vault.unseal("name", data).is_err(), "not a sealed value");
        let mut sealed = vault.seal("name", data);
        assert_eq!(vault.unseal("name", &sealed).unwrap().expose_secret(), data);
        assert!(vault.unseal("other", &sealed).is_err());
        let at = data.first().map_or(0, |byte| usize::from(*byte)) % sealed.len();
        sealed[at] ^= 1;
        assert!(vault.unseal("name", &sealed).is_err());
        sealed.truncate(at);
        assert!(vault.unseal("name", &sealed).is_err());
    });
}
