//! TLS of the listener: reads certificate and key, reports errors in them, and presents renewed ones to new
//! connections without a restart. Independent of HTTP.

use std::error::Error as _;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, RootCertStore, ServerConfig};
use secrecy::{ExposeSecret as _, SecretSlice};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use forge_base::digest::{Hasher, hex, sha256};
use forge_base::reloadable::Reloadable;

/// Maximum size of a certificate or key file, in bytes; more than any chain or key.
const LONGEST_FILE_BYTES: u64 = 1024 * 1024;
/// Remaining validity below which a warning is logged.
const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Minimum interval between checks of the files, whatever is configured.
const SHORTEST_ROUND: Duration = Duration::from_millis(10);

/// Certificate and key of the listener; it uses TLS if both are set.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// PEM file: the bridge's certificate, then its intermediate certificates.
    pub cert: Option<PathBuf>,
    /// PEM file of the private key, unencrypted; not accessible to others, not writable by the group.
    pub key: Option<PathBuf>,
    /// Interval at which the files are checked; changed ones are then presented.
    #[serde(with = "forge_base::duration")]
    pub every: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cert: None,
            key: None,
            every: Duration::from_secs(60),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("tls.cert and tls.key must be set together; {0} is not set")]
    Half(&'static str),
    #[error("{0} must be the path of a file, but its value is the content of one")]
    NotAPath(&'static str),
    #[error("cannot read {key} {}", path.display())]
    Read {
        key: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{key} {} is longer than any certificate or key", path.display())]
    TooLong { key: &'static str, path: PathBuf },
    #[error(
        "tls.key {path} can be read or changed by others (mode {mode:o}); run: chmod 600 {path}",
        path = path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error("tls.cert {} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)", .0.display())]
    NoCertificate(PathBuf),
    #[error(
        "tls.key {} holds no unencrypted private key in PEM (-----BEGIN PRIVATE KEY-----)",
        .0.display()
    )]
    NoKey(PathBuf),
    #[error("tls.key {} is not the key of the certificate in tls.cert {}", key.display(), cert.display())]
    OtherKey { cert: PathBuf, key: PathBuf },
    #[error("tls.cert {} and tls.key {} cannot be used", cert.display(), key.display())]
    Unusable {
        cert: PathBuf,
        key: PathBuf,
        source: rustls::Error,
    },
}

/// Certificate and key that the listener presents. Clones share them.
#[derive(Clone, Debug)]
pub struct Tls(Reloadable<Identity>);

/// Certificate and key, as read from their files.
struct Identity {
    files: Files,
    /// Digest of both files, to detect a change.
    digest: [u8; 32],
    leaf: CertificateDer<'static>,
    server: Arc<ServerConfig>,
}

#[derive(Clone, Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

/// Validity of a certificate at some time.
#[derive(Debug, PartialEq, Eq)]
enum Age {
    Valid,
    NotYet(UnixTime),
    EndsSoon(UnixTime),
    Expired(UnixTime),
}

impl Tls {
    /// Reads certificate and key; `None` if neither is configured.
    pub fn open(config: &Config) -> Result<Option<Self>, Error> {
        let files = match (&config.cert, &config.key) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(Error::Half("tls.key")),
            (None, Some(_)) => return Err(Error::Half("tls.cert")),
            (Some(cert), Some(key)) => Files {
                cert: cert.clone(),
                key: key.clone(),
            },
        };
        Ok(Some(Self(Reloadable::from(files.read()?.identity()?))))
    }

    /// Warning about a certificate that is expired, not yet valid, or expires within 14 days.
    pub fn warning(&self) -> Option<String> {
        self.0.get().warning()
    }

    /// Presents the certificate of `other` to new connections.
    pub fn adopt(&self, other: &Self) {
        self.0.replace(other.0.get());
    }

    /// Checks the files at an interval and presents a new certificate and key that match. Runs until dropped.
    pub async fn follow(self, every: Duration) {
        let mut said = None;
        loop {
            sleep(every.max(SHORTEST_ROUND)).await;
            let tls = self.clone();
            // Fails only while the process ends.
            let Ok(refreshed) = spawn_blocking(move || tls.refresh()).await else {
                return;
            };
            match refreshed {
                Ok(None) => said = None,
                Ok(Some(identity)) => {
                    said = None;
                    tracing::info!("new certificate in use: {identity:?}");
                    if let Some(warning) = identity.warning() {
                        tracing::warn!("{warning}");
                    }
                }
                // Two files cannot be replaced atomically: the next check might find them matching.
                Err(error) => {
                    let error = match error.source() {
                        Some(source) => format!("{error}: {source}"),
                        None => error.to_string(),
                    };
                    if said.as_ref() != Some(&error) {
                        tracing::warn!(
                            "certificate not reloaded, keeping the previous one: {error}"
                        );
                        said = Some(error);
                    }
                }
            }
        }
    }

    fn refresh(&self) -> Result<Option<Arc<Identity>>, Error> {
        let shown = self.0.get();
        let read = shown.files.read()?;
        if read.digest == shown.digest {
            return Ok(None);
        }
        let identity = Arc::new(read.identity()?);
        self.0.replace(Arc::clone(&identity));
        Ok(Some(identity))
    }

    /// Configuration for the next handshake.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.get().server)
    }
}

/// Content of both files.
struct Pem {
    files: Files,
    cert: Vec<u8>,
    key: SecretSlice<u8>,
    digest: [u8; 32],
}

impl Files {
    fn read(&self) -> Result<Pem, Error> {
        let (cert, _) = read("tls.cert", &self.cert)?;
        let (key, mode) = read("tls.key", &self.key)?;
        let key = SecretSlice::from(key);
        // Group read access is allowed: machines and clusters provide secrets to services that way.
        if mode & 0o027 != 0 {
            let path = self.key.clone();
            return Err(Error::Exposed { path, mode });
        }
        let mut hasher = Hasher::default();
        hasher.update(&(cert.len() as u64).to_be_bytes());
        hasher.update(&cert);
        hasher.update(key.expose_secret());
        Ok(Pem {
            files: self.clone(),
            digest: hasher.finish(),
            cert,
            key,
        })
    }
}

fn read(key: &'static str, path: &Path) -> Result<(Vec<u8>, u32), Error> {
    // A key pasted in place of its path must not end up in a log.
    if path.as_os_str().as_encoded_bytes().contains(&b'\n') {
        return Err(Error::NotAPath(key));
    }
    let failed = |source| Error::Read {
        key,
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    let mut bytes = Vec::new();
    let mut file = file.take(LONGEST_FILE_BYTES + 1);
    file.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST_FILE_BYTES {
        let path = path.to_owned();
        return Err(Error::TooLong { key, path });
    }
    Ok((bytes, mode))
}

impl Pem {
    fn identity(self) -> Result<Identity, Error> {
        let Self { files, digest, .. } = &self;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.cert).collect();
        let chain = chain.unwrap_or_default();
        let leaf = chain.first().cloned();
        let leaf = leaf.ok_or_else(|| Error::NoCertificate(files.cert.clone()))?;
        let key = PrivateKeyDer::from_pem_slice(self.key.expose_secret())
            .map_err(|_| Error::NoKey(files.key.clone()))?;
        let unusable = |source| Error::Unusable {
            cert: files.cert.clone(),
            key: files.key.clone(),
            source,
        };
        let provider = Arc::new(ring::default_provider());
        let certified =
            CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => Error::OtherKey {
                    cert: files.cert.clone(),
                    key: files.key.clone(),
                },
                error => unusable(error),
            })?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Identity {
            digest: *digest,
            leaf,
            server: Arc::new(server),
            files: self.files,
        })
    }
}

impl Identity {
    fn warning(&self) -> Option<String> {
        let file = self.files.cert.display();
        let day = |time: UnixTime| {
            let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
            jiff::Timestamp::from_second(seconds)
                .map_or_else(|_| "?".to_owned(), |at| at.to_string())
        };
        match age(&self.leaf, UnixTime::now()) {
            Age::Valid => None,
            Age::NotYet(from) => Some(format!(
                "the certificate in {file} is not valid before {}: clients refuse it",
                day(from)
            )),
            Age::EndsSoon(end) => {
                Some(format!("the certificate in {file} expires at {}", day(end)))
            }
            Age::Expired(end) => Some(format!(
                "the certificate in {file} expired at {}: clients refuse it",
                day(end)
            )),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let print = hex(&sha256(&self.leaf)[..8]);
        write!(f, "{} (sha256 {print}…)", self.files.cert.display())
    }
}

/// Validity at `now`, found by a verification without trust anchors, which still checks the time.
fn age(leaf: &CertificateDer<'_>, now: UnixTime) -> Age {
    match (validity(leaf, now), validity(leaf, later(now))) {
        (Some(Bound::NotBefore(from)), _) => Age::NotYet(from),
        (Some(Bound::NotAfter(end)), _) => Age::Expired(end),
        (None, Some(Bound::NotAfter(end))) => Age::EndsSoon(end),
        (None, Some(Bound::NotBefore(_)) | None) => Age::Valid,
    }
}

enum Bound {
    NotBefore(UnixTime),
    NotAfter(UnixTime),
}

fn later(now: UnixTime) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + SOON)
}

/// Validity bound that is violated at `at`.
fn validity(leaf: &CertificateDer<'_>, at: UnixTime) -> Option<Bound> {
    let algorithms = ring::default_provider().signature_verification_algorithms;
    let verified = ParsedCertificate::try_from(leaf).and_then(|leaf| {
        let no_anchors = RootCertStore::empty();
        verify_server_cert_signed_by_trust_anchor(&leaf, &no_anchors, &[], at, algorithms.all)
    });
    match verified {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => Some(Bound::NotAfter(not_after)),
        Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        })) => Some(Bound::NotBefore(not_before)),
        // The issuer is unknown, as expected without trust anchors.
        Ok(()) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
