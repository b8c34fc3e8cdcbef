//! What every store must do, as one suite of tests that runs on each of them.

mod accept;
mod breaker;
mod deliver;
mod events;
mod execute;
mod model;
mod queue;
mod read;
pub(super) mod sample;

use std::sync::Arc;

use super::Store;
use super::memory::Memory;
use super::sqlite::Sqlite;

/// A store that can be opened again; each time is the next boot.
pub(super) trait Subject {
    async fn open(&self) -> Arc<dyn Store>;
}

pub(super) struct InMemory(std::sync::Mutex<Memory>);

impl Subject for InMemory {
    async fn open(&self) -> Arc<dyn Store> {
        let mut memory = self.0.lock().unwrap();
        *memory = memory.restart();
        Arc::new(memory.clone())
    }
}

pub(super) struct OnDisk {
    folder: std::sync::Mutex<tempfile::TempDir>,
    open: std::sync::Mutex<Option<Sqlite>>,
}

impl Subject for OnDisk {
    async fn open(&self) -> Arc<dyn Store> {
        let old = self.open.lock().unwrap().take();
        if let Some(old) = old {
            old.close().await;
        }
        self.open_folder()
    }
}

impl OnDisk {
    fn open_folder(&self) -> Arc<dyn Store> {
        let folder = self.folder.lock().unwrap();
        let new = Sqlite::open(&super::Config::default(), folder.path()).unwrap();
        *self.open.lock().unwrap() = Some(new.clone());
        Arc::new(new)
    }

    /// Opens what a kill would leave: the files as they are just now, nothing closed or folded. The log
    /// goes first, so that what is folded meanwhile is in the copy twice and not missing.
    async fn open_as_killed(&self) -> Arc<dyn Store> {
        let left = tempfile::tempdir().unwrap();
        let old_folder = {
            let mut folder = self.folder.lock().unwrap();
            let files = std::fs::read_dir(folder.path()).unwrap();
            let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
            names.retain(|name| !name.as_encoded_bytes().ends_with(b"-shm"));
            names.sort_by_key(|name| !name.as_encoded_bytes().ends_with(b"-wal"));
            for name in names {
                std::fs::copy(folder.path().join(&name), left.path().join(&name)).unwrap();
            }
            std::mem::replace(&mut *folder, left)
        };
        let old = self.open.lock().unwrap().take();
        if let Some(old) = old {
            old.close().await;
        }
        drop(old_folder);
        self.open_folder()
    }
}

pub(super) fn in_memory() -> InMemory {
    InMemory(std::sync::Mutex::new(Memory::new()))
}

pub(super) fn on_disk() -> OnDisk {
    OnDisk {
        folder: tempfile::tempdir().unwrap().into(),
        open: std::sync::Mutex::default(),
    }
}

/// Declares each test of the suite once for each store.
macro_rules! on_every_store {
    ($($(#[$doc:meta])* $name:ident;)+) => {
        mod in_memory {
            $(#[tokio::test] async fn $name() { super::$name(crate::store::contract::in_memory()).await; })+
        }
        mod on_disk {
            $(#[tokio::test] async fn $name() { super::$name(crate::store::contract::on_disk()).await; })+
        }
    };
}
use on_every_store;
