//! Backend of an instance: a library in this process, a library in a child, a program, or a part of the bridge. Callers
//! need not know which.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forge_adapter_api::Manifest;

use crate::boundary::call::Instance;
use crate::boundary::call_id::CallId;
use crate::boundary::load;
use crate::boundary::load_error::LoadError;
use crate::boundary::trust::{self, FileRules, Rules, Vetted};
use crate::instance::boot::{Boot, Found, Source};
use crate::instance::built_in;
use crate::instance::host::Host;
use crate::instance::isolation::Isolation;
use crate::instance::process::remote::{Check, Remote};

/// Facts about a loaded library or program.
pub(crate) struct Facts {
    pub manifest: Manifest,
    pub path: PathBuf,
    pub digest: String,
    pub isolation: Isolation,
}

/// Location of an instance.
#[derive(Clone)]
pub(crate) enum Backend {
    InProcess(Instance),
    Child(Arc<Remote>),
    BuiltIn(Arc<built_in::Tasks>),
}

impl Backend {
    pub(crate) fn start(&self, call_id: CallId, op: &str, payload: Vec<u8>) {
        match self {
            // A refusal was already delivered as the answer.
            Self::InProcess(instance) => drop(instance.start(call_id, op, payload)),
            Self::Child(remote) => remote.start(call_id, op, &payload),
            Self::BuiltIn(tasks) => tasks.start(call_id, op, payload),
        }
    }

    pub(crate) fn cancel(&self, call_id: CallId) {
        match self {
            Self::InProcess(instance) => instance.cancel(call_id),
            Self::Child(remote) => remote.cancel(call_id),
            Self::BuiltIn(tasks) => tasks.cancel(call_id),
        }
    }

    pub(crate) fn destroy(&self) {
        match self {
            Self::InProcess(instance) => instance.destroy(),
            Self::Child(remote) => remote.destroy(),
            Self::BuiltIn(tasks) => tasks.destroy(),
        }
    }
}

/// Creates the instance. Blocks.
pub(crate) fn make(boot: &Boot, host: &'static Host) -> Result<(Backend, Facts), LoadError> {
    match &boot.source {
        Source::Verified { path, copy, digest } => {
            let vetted = Vetted::known(copy, digest).ok_or_else(|| {
                LoadError::Refused(format!(
                    "{} was changed after it was checked",
                    copy.display()
                ))
            })?;
            open(boot, host, path, vetted)
        }
        Source::BuiltIn(adapter, runtime) => {
            let facts = Facts {
                manifest: adapter.manifest(),
                path: std::env::current_exe().unwrap_or_default(),
                digest: String::new(),
                isolation: Isolation::InProcess,
            };
            let tasks = built_in::Tasks::new(Arc::clone(adapter), runtime.clone(), host);
            Ok((Backend::BuiltIn(Arc::new(tasks)), facts))
        }
        Source::Found(found) if is_program(&found.path) => found.run_program(boot, host),
        Source::Found(found) => found.load(boot, host),
    }
}

/// True if the file is a program, which lacks the extension of a library.
pub(crate) fn is_program(path: &Path) -> bool {
    path.extension()
        .is_none_or(|end| end != std::env::consts::DLL_EXTENSION)
}

/// Loads a private copy into this process.
fn open(
    boot: &Boot,
    host: &'static Host,
    path: &Path,
    vetted: Vetted,
) -> Result<(Backend, Facts), LoadError> {
    let image = load::open_vetted(path, &boot.library, vetted)?;
    let instance = Instance::create(image.create, host, host.payload_bytes, boot.create.clone())?;
    let facts = Facts {
        manifest: image.manifest,
        path: image.path,
        digest: image.digest,
        isolation: Isolation::InProcess,
    };
    Ok((Backend::InProcess(instance), facts))
}

impl Found {
    fn file_rules(&self) -> FileRules<'_> {
        FileRules {
            trust: self.trust,
            digest: self.digest.as_deref(),
        }
    }

    /// Repeats the checks of a program whose digest is pinned: a restart runs the file that is there then.
    pub(crate) fn check_program(&self) -> Option<Check> {
        let digest = self.digest.clone()?;
        let (path, trust) = (self.path.clone(), self.trust);
        Some(Box::new(move || {
            let digest = Some(digest.as_str());
            trust::vet_program(&path, FileRules { trust, digest }).map(drop)
        }))
    }

    fn rules(&self) -> Rules<'_> {
        Rules {
            file: self.file_rules(),
            copies: &self.copies,
            images: &self.images,
        }
    }

    fn load(&self, boot: &Boot, host: &'static Host) -> Result<(Backend, Facts), LoadError> {
        let vetted = trust::vet(&self.path, &self.rules())?;
        let manifest = match &self.launcher {
            Some(launcher) => Some(launcher.probe(boot, host, self, &vetted)?),
            None => None,
        };
        match (self.isolation, &self.launcher, manifest) {
            (Isolation::InProcess, _, _) => {
                load::admit(&self.path, &self.rules(), &vetted)?;
                open(boot, host, &self.path, vetted)
            }
            (Isolation::Process, Some(launcher), Some(manifest)) => {
                let (remote, manifest) = launcher.hold(boot, host, self, &vetted, &manifest)?;
                Ok(self.there(remote, manifest, vetted.digest))
            }
            (Isolation::Process, _, _) => Err(no_launcher()),
        }
    }

    fn run_program(&self, boot: &Boot, host: &'static Host) -> Result<(Backend, Facts), LoadError> {
        let digest = trust::vet_program(&self.path, self.file_rules())?;
        let launcher = self.launcher.as_ref().ok_or_else(no_launcher)?;
        let (remote, manifest) = launcher.run(boot, host, self)?;
        Ok(self.there(remote, manifest, digest))
    }

    fn there(&self, remote: Arc<Remote>, manifest: Manifest, digest: String) -> (Backend, Facts) {
        let facts = Facts {
            manifest,
            path: self.path.clone(),
            digest,
            isolation: Isolation::Process,
        };
        (Backend::Child(remote), facts)
    }
}

fn no_launcher() -> LoadError {
    let text = "no supervisor is configured to start its process; see process.supervisor";
    LoadError::Process(text.to_owned())
}
