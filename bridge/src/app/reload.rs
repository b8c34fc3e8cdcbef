//! Configuration reload of a running bridge. Takes over tokens, signing secrets, callback rules, the
//! certificate, the store's keys, retention, drain times, the rules of signals and the log level.

use crate::config::{Config, changes};
use forge_delivery::sign::Signer;
use forge_net::guard::Guard;
use forge_server::auth::Auth;
use forge_server::tls::Tls;
use forge_signals::Terms;

use super::secrets::open_vault;
use super::{Bridge, reseal};

impl Bridge {
    /// Applies all reloadable settings, or none if any of them is invalid. Returns the changed keys that need
    /// a restart. The caller sets the log level, which belongs to the process.
    pub async fn reload(&mut self, new: Config) -> anyhow::Result<Vec<String>> {
        let auth = Auth::new(&new.auth)?;
        auth.check_listen(self.addr)?;
        let tls = Tls::open(&new.tls)?;
        let guard = Guard::new(&new.callback.allow)?;
        let terms = Terms::read(&new.signals)?;
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
        self.reload_external().await;
        self.agent.ledger().replace(terms);
        self.kept.replace(new.retention.records);
        self.retention.replace(new.retention.clone());
        self.announced.send_replace(auth.announced());

        let running = &mut self.config;
        // A listener cannot switch between TLS and plain HTTP.
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
        running.signals.rules.clone_from(&new.signals.rules);
        running.signals.teams.clone_from(&new.signals.teams);
        running.signals.prices.clone_from(&new.signals.prices);
        running.log.level = new.log.level.clone();
        Ok(changes::between(running, &new))
    }
}
