//! TLS for outgoing calls: ring, and the roots that the system trusts. Nothing is installed for the
//! whole process.

use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::crypto::ring;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

pub(super) fn config() -> Result<ClientConfig, rustls::Error> {
    let versions = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
    };
    let verified: ConfigBuilder<ClientConfig, WantsClientCert> = match versions()?
        .with_platform_verifier()
    {
        Ok(verified) => verified,
        Err(error) => {
            // A machine without any roots can still call http; https then fails with a reason.
            tracing::warn!(
                %error,
                "no certificate authorities found on this machine: every https call will be refused; install ca-certificates"
            );
            versions()?.with_root_certificates(RootCertStore::empty())
        }
    };
    Ok(verified.with_no_client_auth())
}
