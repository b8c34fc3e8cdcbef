//! Opens a library and finds the two functions of an adapter. An image stays mapped until the process ends: no library
//! is ever unloaded.

#![expect(unsafe_code, reason = "the boundary to adapter libraries")]

use std::mem::{self, size_of};
use std::path::{Path, PathBuf};

use abi_stable::library::{AbiHeader, AbiHeaderRef, LibraryError};
use forge_adapter_abi::{
    ABI_MAJOR, C_ENTRY_SYMBOL, CEntryV1, FBytes, HostV1, ModuleV1Ref, ROOT_MODULE_SYMBOL,
};
use forge_adapter_api::export::LoadedEntry;
use forge_adapter_api::{Manifest, conformance};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::boundary::call::RawCreate;
use crate::boundary::load_error::LoadError;
use crate::boundary::loaded_images::Full;
use crate::boundary::manifest;
use crate::boundary::trust::{self, Rules, Vetted};

/// Flag that keeps a library mapped after its handle is closed. The same number on Linux, musl included; `libloading`
/// does not define it.
#[cfg(target_os = "linux")]
const RTLD_NODELETE: i32 = 0x1000;
#[cfg(target_os = "macos")]
const RTLD_NODELETE: i32 = 0x80;

/// Limit of a manifest.
const MANIFEST_BYTES: usize = 256 * 1024;

type ManifestFn = unsafe extern "C" fn() -> FBytes;

/// A library in memory that passed every check.
pub(crate) struct Image {
    pub manifest: Manifest,
    manifest_fn: ManifestFn,
    pub path: PathBuf,
    pub digest: String,
    pub create: RawCreate,
}

/// Checks a library against every rule of the boundary, in this process, which a faulty one can end.
pub(crate) fn conform(
    path: &Path,
    provider: &str,
    rules: &Rules<'_>,
    options: conformance::Options,
    watch: &mut dyn FnMut(conformance::Step<'_>),
) -> Result<conformance::Report, LoadError> {
    let image = open(path, provider, rules)?;
    // SAFETY: the same function with the same ABI, declared as in a library that keeps the contract, which the checks
    // are to find out; the image is never unloaded.
    let entry = unsafe {
        let create = mem::transmute::<
            RawCreate,
            unsafe extern "C" fn(*const HostV1, FBytes) -> forge_adapter_abi::CreateResult,
        >(image.create);
        LoadedEntry::new(image.manifest_fn, create)
    };
    let manifest = &image.manifest;
    Ok(conformance::check_library(manifest, entry, options, watch))
}

/// Checks, copies and opens the library at `path`, which must declare the name `provider`.
pub(crate) fn open(path: &Path, provider: &str, rules: &Rules<'_>) -> Result<Image, LoadError> {
    let vetted = trust::vet(path, rules)?;
    admit(path, rules, &vetted)?;
    open_vetted(path, provider, vetted)
}

/// Counts an image that is about to be loaded into this process; fails at the limit.
pub(crate) fn admit(path: &Path, rules: &Rules<'_>, vetted: &Vetted) -> Result<(), LoadError> {
    let admitted = rules.images.admit(&vetted.digest);
    admitted.map_err(|Full(most)| LoadError::TooManyImages {
        path: path.to_owned(),
        most,
    })
}

/// Opens the private copy of the library that was found at `path`.
pub(crate) fn open_vetted(path: &Path, provider: &str, vetted: Vetted) -> Result<Image, LoadError> {
    // SAFETY: this runs the library's initialisers, which configuring an adapter permits; the file was checked first
    // and the copy cannot be exchanged.
    let library =
        unsafe { Library::open(Some(&vetted.copy), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) }
            .map_err(|error| LoadError::Open {
                path: path.to_owned(),
                message: one_line(&chain(&error)),
            })?;
    let found = entry(&library, path);
    // Threads and thread-local destructors of the library can outlive every instance.
    mem::forget(library);
    let entry = found?;

    // SAFETY: the library's own function, found through a checked entry.
    let bytes = unsafe { (entry.manifest)() };
    if bytes.len > MANIFEST_BYTES {
        return Err(LoadError::Manifest {
            path: path.to_owned(),
            message: format!("{} bytes, at most {MANIFEST_BYTES} are accepted", bytes.len),
        });
    }
    // SAFETY: by the contract of the table, the bytes belong to the bridge now.
    let bytes = unsafe { bytes.into_vec() }.map_err(|malformed| LoadError::Manifest {
        path: path.to_owned(),
        message: malformed.to_string(),
    })?;
    let manifest = manifest::read(&bytes, path, provider, entry.language)?;
    Ok(Image {
        manifest,
        manifest_fn: entry.manifest,
        path: path.to_owned(),
        digest: vetted.digest,
        create: entry.create,
    })
}

struct Entry {
    manifest: ManifestFn,
    create: RawCreate,
    language: manifest::Language,
}

/// Finds the typed entry or, only if that is not exported, the plain one: a typed entry that fails its check is final.
fn entry(library: &Library, path: &Path) -> Result<Entry, LoadError> {
    // SAFETY: the symbol is a static that begins with an `AbiHeader`; `AbiHeaderRef` is its address.
    let header = unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_SYMBOL) };
    if let Ok(header) = header {
        return typed_entry(*header, path);
    }
    // SAFETY: the symbol is a static `CEntryV1`; the type asked for is its address.
    let entry = unsafe { library.get::<*const RawEntry>(C_ENTRY_SYMBOL) };
    match entry {
        Ok(entry) if !entry.is_null() => plain_entry(*entry, path),
        Ok(_) | Err(_) => Err(LoadError::NoEntry {
            path: path.to_owned(),
            symbols: [ROOT_MODULE_SYMBOL, C_ENTRY_SYMBOL],
        }),
    }
}

fn typed_entry(header: AbiHeaderRef, path: &Path) -> Result<Entry, LoadError> {
    let refused = |error| refusal(error, path);
    let header = header.upgrade().map_err(refused)?;
    let module = header.init_root_module::<ModuleV1Ref>().map_err(refused)?;
    let create = module.create();
    Ok(Entry {
        manifest: module.manifest(),
        // SAFETY: the same function with the same ABI; its result is declared unvalidated, with function pointers that
        // can be null. `call.rs` asserts the sizes.
        create: unsafe {
            mem::transmute::<
                unsafe extern "C" fn(*const HostV1, FBytes) -> forge_adapter_abi::CreateResult,
                RawCreate,
            >(create)
        },
        language: manifest::Language::Rust,
    })
}

/// Unvalidated `CEntryV1`.
#[repr(C)]
struct RawEntry {
    abi_major: u32,
    size: u32,
    manifest: Option<ManifestFn>,
    create: Option<RawCreate>,
}

const _: () = assert!(size_of::<RawEntry>() == size_of::<CEntryV1>());

fn plain_entry(entry: *const RawEntry, path: &Path) -> Result<Entry, LoadError> {
    let version = |found: String| LoadError::AbiVersion {
        path: path.to_owned(),
        found,
        wanted: ABI_MAJOR.to_string(),
    };
    // SAFETY: an exported static has at least these two numbers in every version.
    let (abi_major, size) = unsafe { ((*entry).abi_major, (*entry).size) };
    if abi_major != ABI_MAJOR {
        return Err(version(abi_major.to_string()));
    }
    if size as usize != size_of::<RawEntry>() {
        return Err(LoadError::Layout {
            path: path.to_owned(),
            summary: format!(
                "its entry has {size} bytes, wanted {}",
                size_of::<RawEntry>()
            ),
            full: String::new(),
        });
    }
    // SAFETY: the size was checked above.
    let (manifest, create) = unsafe { ((*entry).manifest, (*entry).create) };
    match (manifest, create) {
        (Some(manifest), Some(create)) => Ok(Entry {
            manifest,
            create,
            language: manifest::Language::Other,
        }),
        (None, _) | (_, None) => Err(LoadError::Layout {
            path: path.to_owned(),
            summary: "its entry lacks manifest or create".to_owned(),
            full: String::new(),
        }),
    }
}

fn refusal(error: LibraryError, path: &Path) -> LoadError {
    let path = path.to_owned();
    match error {
        LibraryError::InvalidAbiHeader(found) => LoadError::AbiHeader {
            path,
            found: header_text(&found),
            wanted: header_text(&AbiHeader::VALUE),
        },
        LibraryError::IncompatibleVersionNumber {
            expected_version,
            actual_version,
            ..
        } => LoadError::AbiVersion {
            path,
            found: actual_version.to_string(),
            wanted: expected_version.to_string(),
        },
        other => {
            let full = other.to_string();
            LoadError::Layout {
                path,
                summary: summary(&full),
                full,
            }
        }
    }
}

fn header_text(header: &AbiHeader) -> String {
    let magic = String::from_utf8_lossy(&header.magic_string);
    let magic = magic.trim_end_matches(['\0', ' ']);
    format!("{magic:?} {}.{}", header.abi_major, header.abi_minor)
}

/// The first 300 characters of the layout checker's report of 16 KB, from its first `Error:`.
fn summary(full: &str) -> String {
    let start = full.find("Error:").map_or(0, |at| at + "Error:".len());
    let text = one_line(&full[start..]);
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // The loader's error repeats its cause in its own words.
        if !text.contains(&cause.to_string()) {
            text = format!("{text}: {cause}");
        }
        source = cause.source();
    }
    text
}
