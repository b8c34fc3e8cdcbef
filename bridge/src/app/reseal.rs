//! Re-encrypts secrets sealed with an older key, in small steps, while the bridge works. If killed, it
//! restarts at the next start; re-encrypted secrets stay, the others still open with the old key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use secrecy::ExposeSecret;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use forge_base::failpoint;
use forge_base::vault::{KeyId, Vault};
use forge_store as store;
use forge_store::roles::Secrets;
use forge_store::sealed::{Place, Resealed, Sealed};

/// Number of dispatches examined per step.
const STEP: usize = 200;
/// Wait after a store error.
const REST: Duration = Duration::from_secs(60);

/// Name of the progress mark. Sealed with the current key; its value is `DONE` once all other secrets are
/// sealed with that key.
const MARK: &str = "sealed-under";
const TURNING: &[u8] = b"turning";
const DONE: &[u8] = b"done";

/// Keys that cannot be removed, since secrets are still encrypted with them.
#[derive(Debug, thiserror::Error)]
#[error(
    "secrets in the store are encrypted with the key {}, which is not among the new keys; keep it until `forge-bridge \
     secrets keys` shows no secrets for it",
    ids(.0)
)]
pub(super) struct StillNeeded(Vec<KeyId>);

fn ids(keys: &[KeyId]) -> String {
    let keys: Vec<_> = keys.iter().map(KeyId::to_string).collect();
    keys.join(", ")
}

/// Refuses to let a key file be created for a store that another key has sealed.
pub(super) async fn refuse_new_key(store: &dyn Secrets, config: &Config) -> anyhow::Result<()> {
    let file = &config.secret.key_file;
    if config.secret.key.is_some() || file.exists() {
        return Ok(());
    }
    let mark = store.sealed(MARK).await?;
    if let Some(key) = mark.as_deref().and_then(Vault::key_of) {
        anyhow::bail!(
            "secrets in the store are encrypted with the key {key}, and {} does not exist; copy the key file of the \
             bridge that has it, or restore it from a backup (secret.key_file)",
            file.display()
        );
    }
    Ok(())
}

/// Checks that the keys fit the store; a new store is marked with them.
pub(super) async fn fit(store: &dyn Secrets, vault: &Vault) -> anyhow::Result<()> {
    let mark = match store.sealed(MARK).await? {
        Some(mark) => mark,
        None => store.seal_once(MARK, vault.seal(MARK, TURNING)).await?,
    };
    vault.unseal(MARK, &mark)?;
    Ok(())
}

/// Checks that `new` can open every secret that might be in the store; the error names the missing keys.
pub(super) async fn check(store: &dyn Secrets, old: &Vault, new: &Vault) -> anyhow::Result<()> {
    let mut needed = old.keys();
    if is_done(store, old).await? {
        needed.retain(|key| *key == old.sealing());
    }
    let known = new.keys();
    needed.retain(|key| !known.contains(key));
    anyhow::ensure!(needed.is_empty(), StillNeeded(needed));
    Ok(())
}

/// True if everything is sealed with the current key.
async fn is_done(store: &dyn Secrets, vault: &Vault) -> Result<bool, store::Error> {
    let mark = store.sealed(MARK).await?;
    let mark = mark.filter(|mark| Vault::key_of(mark) == Some(vault.sealing()));
    Ok(mark.is_some_and(|mark| is(vault, &mark, DONE)))
}

fn is(vault: &Vault, mark: &[u8], what: &[u8]) -> bool {
    let plain = vault.unseal(MARK, mark);
    plain.is_ok_and(|plain| plain.expose_secret() == what)
}

/// Re-encryption task.
pub(super) struct Resealer {
    pub(super) store: Arc<dyn Secrets>,
    pub(super) vault: Vault,
    /// Notified when the keys have changed.
    pub(super) key_rotated: Arc<Notify>,
}

/// Result of one round.
#[derive(Debug, Default)]
struct Round {
    resealed: u64,
    /// Number of secrets that could not be opened, by reason.
    unopened: BTreeMap<String, u64>,
}

impl Resealer {
    pub(super) async fn run(self, ending: CancellationToken) {
        loop {
            let Some(round) = ending.run_until_cancelled(self.tick()).await else {
                return;
            };
            let rest = async {
                match round {
                    Ok(round) => {
                        round.tell(self.vault.sealing());
                        std::future::pending::<()>().await;
                    }
                    Err(error) => {
                        tracing::warn!(
                            "re-encrypting secrets of an older key failed, will retry: {error}"
                        );
                        sleep(REST).await;
                    }
                }
            };
            tokio::select! {
                () = ending.cancelled() => return,
                () = self.key_rotated.notified() => {}
                () = rest => {}
            }
        }
    }

    async fn tick(&self) -> Result<Round, store::Error> {
        let mut round = Round::default();
        if is_done(&*self.store, &self.vault).await? {
            return Ok(round);
        }
        let turning = self.vault.seal(MARK, TURNING);
        let key = Vault::key_of(&turning);
        self.mark(turning).await?;
        let mut after = Some(0);
        while let Some(from) = after {
            let begun = Instant::now();
            let page = self.store.sealed_page(from, STEP).await?;
            let changes = page.items.into_iter();
            let changes: Vec<_> = changes
                .filter_map(|sealed| self.reseal(sealed, &mut round))
                .collect();
            if !changes.is_empty() {
                failpoint::point("reseal.before");
                round.resealed += self.store.reseal(changes).await?;
                failpoint::point("reseal.after");
            }
            after = page.next;
            // At most half of the time, so that other writers are not delayed.
            sleep(begun.elapsed()).await;
        }
        let done = self.vault.seal(MARK, DONE);
        // If the key was rotated meanwhile, the secrets examined first are sealed with the former key.
        if round.unopened.is_empty() && Vault::key_of(&done) == key {
            self.mark(done).await?;
        }
        Ok(round)
    }

    /// Seals the value with the current key; `None` if it is already, or cannot be opened.
    fn reseal(&self, sealed: Sealed, round: &mut Round) -> Option<Resealed> {
        let Sealed { place, bytes } = sealed;
        if Vault::key_of(&bytes) == Some(self.vault.sealing()) {
            return None;
        }
        let context = place.context();
        match self.vault.unseal(&context, &bytes) {
            Ok(plain) => Some(Resealed {
                place,
                to: self.vault.seal(&context, plain.expose_secret()),
                from: bytes,
            }),
            Err(_) => {
                let why = match Vault::key_of(&bytes) {
                    Some(key) => {
                        format!("are encrypted with the key {key}, which is not configured")
                    }
                    None => "cannot be decrypted with any configured key".to_owned(),
                };
                *round.unopened.entry(why).or_default() += 1;
                None
            }
        }
    }

    async fn mark(&self, to: Vec<u8>) -> Result<(), store::Error> {
        let from = self.store.seal_once(MARK, to.clone()).await?;
        let place = Place::Named(MARK.to_owned());
        let change = Resealed { place, from, to };
        self.store.reseal(vec![change]).await.map(drop)
    }
}

impl Round {
    fn tell(&self, key: KeyId) {
        if self.resealed > 0 {
            tracing::info!(
                "{} secrets were re-encrypted with the key {key}",
                self.resealed
            );
        }
        for (why, count) in &self.unopened {
            tracing::error!("{count} secrets in the store {why}: their callbacks cannot be sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;
    use secrecy::SecretSlice;

    use super::*;
    use forge_store::memory::Memory;

    fn vault(keys: &[u8]) -> Vault {
        let keys: Vec<_> = keys
            .iter()
            .map(|byte| SecretSlice::from(vec![*byte; 32]))
            .collect();
        Vault::from_keys(&keys).unwrap()
    }

    async fn round(store: &Memory, vault: &Vault) -> Round {
        let resealer = Resealer {
            store: Arc::new(store.clone()),
            vault: vault.clone(),
            key_rotated: Arc::default(),
        };
        resealer.tick().await.unwrap()
    }

    #[tokio::test]
    async fn all_is_resealed_and_only_then_may_the_old_key_go() {
        let store = Memory::new();
        let (old, both, new) = (vault(&[1]), vault(&[2, 1]), vault(&[2]));
        fit(&store, &old).await.unwrap();
        assert_eq!(round(&store, &old).await.resealed, 0);
        store
            .seal_once("name", old.seal("name", b"value"))
            .await
            .unwrap();

        let early = check(&store, &old, &new).await.unwrap_err();
        assert!(
            early.to_string().contains(&old.sealing().to_string()),
            "{early}"
        );
        assert!(fit(&store, &new).await.is_err());
        check(&store, &old, &both).await.unwrap();
        fit(&store, &both).await.unwrap();
        assert!(check(&store, &both, &new).await.is_err(), "not yet");
        // The mark is replaced first and is not counted.
        assert_eq!(round(&store, &both).await.resealed, 1);
        assert_eq!(round(&store, &both).await.resealed, 0);
        check(&store, &both, &new).await.unwrap();
        fit(&store, &new).await.unwrap();
        let value = store.sealed("name").await.unwrap().unwrap();
        assert!(new.unseal("name", &value).is_ok());
    }

    #[tokio::test]
    async fn a_key_that_is_turned_during_a_round_has_a_round_of_its_own() {
        let store = Memory::new();
        let (old, both) = (vault(&[1]), vault(&[2, 1]));
        fit(&store, &old).await.unwrap();
        let sealed = old.seal("name", b"value");
        store.seal_once("name", sealed).await.unwrap();
        let mut resealer = pin!(round(&store, &old));
        // It has examined everything, and sleeps.
        assert!(resealer.as_mut().now_or_never().is_none());
        old.adopt(&both);
        resealer.await;
        assert!(!is_done(&store, &both).await.unwrap());
        assert_eq!(round(&store, &old).await.resealed, 1);
        assert!(is_done(&store, &both).await.unwrap());
    }

    #[tokio::test]
    async fn what_no_key_opens_stays_and_is_told() {
        let store = Memory::new();
        let (lost, here) = (vault(&[9]), vault(&[1]));
        let sealed = lost.seal("name", b"value");
        store.seal_once("name", sealed.clone()).await.unwrap();
        for _ in 0..2 {
            let round = round(&store, &here).await;
            let why = round.unopened.keys().next().unwrap();
            assert!(why.contains(&lost.sealing().to_string()), "{why}");
            assert_eq!(store.sealed("name").await.unwrap(), Some(sealed.clone()));
        }
    }

    #[tokio::test]
    async fn turning_back_in_the_middle_leaves_nothing_behind() {
        let store = Memory::new();
        let (there, back) = (vault(&[2, 1]), vault(&[1, 2]));
        round(&store, &vault(&[1])).await;
        let resealer = Resealer {
            store: Arc::new(store.clone()),
            vault: there.clone(),
            key_rotated: Arc::default(),
        };
        resealer.mark(there.seal(MARK, TURNING)).await.unwrap();
        store
            .seal_once("name", there.seal("name", b"value"))
            .await
            .unwrap();
        assert_eq!(round(&store, &back).await.resealed, 1);
        let value = store.sealed("name").await.unwrap().unwrap();
        assert_eq!(Vault::key_of(&value), Some(back.sealing()));
    }
}
