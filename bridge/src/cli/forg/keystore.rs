//! Place of the token of this user: the keychain of the system, through the system's own program, or a file that is
//! encrypted with a key of the environment. The token is passed through pipes, never in arguments.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::ValueEnum;
use secrecy::{ExposeSecret as _, SecretString};

use super::super::Environment;
use super::files::{self, Access};
use forge_base::vault::{KeySource, Vault};

/// Context of the encrypted token.
const SEALED: &str = "forg-token";
/// Maximum size of the file with it.
const TOKEN_BYTES: u64 = 64 * 1024;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Kind {
    /// Keychain of the system
    Os,
    /// File of the user, encrypted with FORG_KEYSTORE_KEY
    File,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(
        "this system has no keychain that forg can use: {program} was not found ({hint}). Without one, use --keystore file \
         and FORG_KEYSTORE_KEY"
    )]
    NoKeychain {
        program: &'static str,
        hint: &'static str,
    },
    #[error("the keychain refused: {0}. Without one, use --keystore file and FORG_KEYSTORE_KEY")]
    Refused(String),
    #[error("cannot run {program}")]
    Run {
        program: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("FORG_KEYSTORE_KEY must be 32 bytes as 64 hex digits or as base64")]
    Key,
    #[error("HOME is not set")]
    Home,
    #[error("cannot decrypt {}: FORG_KEYSTORE_KEY is another key, or the file is damaged", .0.display())]
    Unseal(PathBuf),
    #[error("cannot access {}", file.display())]
    Access {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Keeps one token.
pub(super) enum Keystore {
    Os(Keychain),
    File { file: PathBuf, vault: Vault },
}

/// Program of the system that accesses its keychain.
#[derive(Clone, Copy)]
pub(super) enum Keychain {
    /// `secret-tool` of libsecret.
    SecretService,
    /// `security` of macOS.
    MacOs,
}

impl Keystore {
    pub(super) fn open(kind: Kind, environment: &Environment) -> Result<Self, Error> {
        Ok(match kind {
            Kind::Os => Keystore::Os(match cfg!(target_os = "macos") {
                true => Keychain::MacOs,
                false => Keychain::SecretService,
            }),
            Kind::File => {
                let key = environment.get("FORG_KEYSTORE_KEY").ok_or(Error::Key)?;
                // With a key of its own, the vault uses no file.
                let vault = Vault::open(&KeySource {
                    key: Some(SecretString::from(key.as_str())),
                    previous: Vec::new(),
                    file: PathBuf::new(),
                    data_dir: PathBuf::new(),
                });
                let folder = |name| {
                    let value = environment.get(name).map(PathBuf::from);
                    value.filter(|path| path.is_absolute())
                };
                let data = folder("XDG_DATA_HOME")
                    .or_else(|| folder("HOME").map(|home| home.join(".local/share")));
                Keystore::File {
                    vault: vault.map_err(|_| Error::Key)?,
                    file: data.ok_or(Error::Home)?.join("forg/token"),
                }
            }
        })
    }

    /// Replaces the token.
    pub(super) fn keep(&self, token: &SecretString) -> Result<(), Error> {
        match self {
            Keystore::Os(keychain) => keychain.keep(token).map(drop),
            Keystore::File { file, vault } => {
                let sealed = vault.seal(SEALED, token.expose_secret().as_bytes());
                let kept = files::replace(file, &sealed, Access::Private);
                kept.map_err(|source| Error::Access {
                    file: file.clone(),
                    source,
                })
            }
        }
    }

    /// The token, if one is kept.
    pub(super) fn token(&self) -> Result<Option<SecretString>, Error> {
        match self {
            Keystore::Os(keychain) => keychain.token(),
            Keystore::File { file, vault } => {
                let sealed = files::read(file, TOKEN_BYTES);
                let sealed = sealed.map_err(|source| Error::Access {
                    file: file.clone(),
                    source,
                })?;
                let Some(sealed) = sealed else {
                    return Ok(None);
                };
                let unreadable = || Error::Unseal(file.clone());
                let plain = vault.unseal(SEALED, &sealed).map_err(|_| unreadable())?;
                let text = std::str::from_utf8(plain.expose_secret()).map_err(|_| unreadable())?;
                Ok(Some(SecretString::from(text)))
            }
        }
    }
}

impl Keychain {
    fn program(self) -> &'static str {
        match self {
            Keychain::SecretService => "secret-tool",
            Keychain::MacOs => "security",
        }
    }

    fn keep(self, token: &SecretString) -> Result<SecretString, Error> {
        let token = token.expose_secret();
        match self {
            Keychain::SecretService => {
                let arguments = [
                    "store",
                    "--label=forg token",
                    "service",
                    "forg",
                    "account",
                    "token",
                ];
                self.run(&arguments, &SecretString::from(token))
            }
            Keychain::MacOs => {
                // Tokens contain no characters with a meaning in such a line.
                let line = format!("add-generic-password -U -s forg -a token -w {token}\n");
                self.run(&["-i"], &SecretString::from(line))
            }
        }
    }

    fn token(self) -> Result<Option<SecretString>, Error> {
        let arguments = match self {
            Keychain::SecretService => &["lookup", "service", "forg", "account", "token"][..],
            Keychain::MacOs => &["find-generic-password", "-s", "forg", "-a", "token", "-w"],
        };
        match self.run(arguments, &SecretString::default()) {
            Ok(token) => Ok(Some(token).filter(|token| !token.expose_secret().is_empty())),
            // `secret-tool` fails without a word if there is no such entry.
            Err(Error::Refused(reason))
                if reason.is_empty() || reason.contains("could not be found") =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Output of the program, without space at its ends.
    fn run(self, arguments: &[&str], input: &SecretString) -> Result<SecretString, Error> {
        let program = self.program();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Error::NoKeychain {
                program,
                hint: "on Debian it is in the package libsecret-tools",
            },
            _ => Error::Run { program, source },
        };
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that fails closes its input; its exit code says so.
            let _ = stdin.write_all(input.expose_secret().as_bytes());
        }
        let output = child.wait_with_output().map_err(failed)?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Refused(reason.trim().to_owned()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(SecretString::from(text.trim()))
    }
}
