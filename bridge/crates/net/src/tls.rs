//! TLS for outgoing calls: ring and the system's root certificates. The roots are read on the first call, since
//! reading hundreds of files would delay every start. No process-wide provider is installed.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_platform_verifier::Verifier;

pub(super) fn config() -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let roots = Roots {
        provider: Arc::clone(&provider),
        verifier: OnceLock::new(),
    };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(roots))
        .with_no_client_auth())
}

/// System certificate verifier, created on first use.
#[derive(Debug)]
struct Roots {
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Verifier>,
}

impl Roots {
    fn verifier(&self) -> Result<&Verifier, Error> {
        if let Some(made) = self.verifier.get() {
            return Ok(made);
        }
        let made = Verifier::new(Arc::clone(&self.provider)).map_err(|error| {
            Error::General(format!(
                "no certificate authorities can be read on this machine: {error}; install ca-certificates"
            ))
        })?;
        Ok(self.verifier.get_or_init(|| made))
    }
}

impl ServerCertVerifier for Roots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verifier()?.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier()?
            .verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier()?
            .verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
