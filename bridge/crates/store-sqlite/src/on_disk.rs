//! Stores in temporary folders, on which the contract suite and the model test run.

use std::sync::Arc;

use async_trait::async_trait;

use forge_store::contract::Subject;
use forge_store::contract::model::Killable;
use forge_store::roles::Maintenance as _;
use forge_store::{Config, Store};

use crate::Sqlite;

forge_store::contract_tests!(crate::on_disk::on_disk);
forge_store::model_tests!(crate::on_disk::on_disk, 12);

pub(crate) struct OnDisk {
    folder: std::sync::Mutex<tempfile::TempDir>,
    open: std::sync::Mutex<Option<Sqlite>>,
}

#[async_trait]
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
        let new = Sqlite::open(&Config::default(), folder.path()).unwrap();
        *self.open.lock().unwrap() = Some(new.clone());
        Arc::new(new)
    }
}

#[async_trait]
impl Killable for OnDisk {
    async fn problems(&self) -> Vec<String> {
        let folder = self.folder.lock().unwrap();
        Sqlite::check(folder.path()).unwrap().problems
    }

    /// Opens a copy of the files as a kill would leave them: not closed, no checkpoint. The WAL is copied first, so
    /// that pages checkpointed meanwhile are in the copy twice rather than missing.
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

pub(crate) fn on_disk() -> OnDisk {
    OnDisk {
        folder: tempfile::tempdir().unwrap().into(),
        open: std::sync::Mutex::default(),
    }
}
