//! What a running bridge takes from a configuration that was read again: who may call, what signs
//! callbacks and where they may go, the certificate, the keys of the store, how long records are kept, how it
//! ends, how much it logs.

use crate::config::{Config, changes};
use forge_delivery::sign::Signer;
use forge_net::guard::Guard;
use forge_server::auth::Auth;
use forge_server::tls::Tls;

use super::secrets::open_vault;
use super::{Bridge, reseal};

impl Bridge {
    /// Takes all of it or, when something in it cannot be used, nothing. Gives back the keys that
    /// differ from what is in force and wait for a restart. The level of the logs is the process's:
    /// the caller sets it.
    pub async fn reload(&mut self, new: Config) -> anyhow::Result<Vec<String>> {
        let auth = Auth::new(&new.auth)?;
        auth.check_listen(self.addr)?;
        let tls = Tls::open(&new.tls)?;
        let guard = Guard::new(&new.callback.allow)?;
        let vault = open_vault(&new).await?;
        reseal::check(&*self.store, &self.vault, &vault).await?;
        let signer = Signer::open(&new.callback, &*self.store, &vault).await?;

        self.auth.adopt(&auth);
        self.guard.adopt(&guard);
        self.signer.adopt(&signer);
        if vault.keys() != self.vault.keys() {
            self.vault.adopt(&vault);
            self.key_rotated.notify_one();
        }
        self.kept.replace(new.retention.records);
        self.retention.replace(new.retention.clone());
        self.announced.send_replace(auth.announced());

        let running = &mut self.config;
        // A listener does not begin or cease to speak TLS while it listens.
        if let (Some(shown), Some(tls)) = (&self.tls, &tls) {
            shown.adopt(tls);
            running.tls.cert.clone_from(&new.tls.cert);
            running.tls.key.clone_from(&new.tls.key);
            if let Some(warning) = shown.warning() {
                tracing::warn!("{warning}");
            }
        }
        running.auth = new.auth.clone();
        running.callback.allow = new.callback.allow.clone();
        running.callback.secrets = new.callback.secrets.clone();
        running.callback.origins = new.callback.origins.clone();
        running.secret = new.secret.clone();
        running.retention = new.retention.clone();
        running.drain = new.drain.clone();
        running.log.level = new.log.level.clone();
        Ok(changes::between(running, &new))
    }
}
