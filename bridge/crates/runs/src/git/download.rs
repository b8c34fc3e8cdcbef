//! Downloads into repositories of runs, within a number of bytes and the space that stays free on the disk. The bounds
//! hold while data comes: what a remote sends is ended, not measured afterwards.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::program::{Output, Step};
use super::repository::remote;
use super::space::{bytes_of, free_bytes};
use super::{Error, Git};

/// Interval at which the bytes of a download are measured.
const MEASURE_INTERVAL: Duration = Duration::from_millis(100);
/// Measuring takes at most one part of this many of the time.
const MEASURE_SHARE: u32 = 4;

/// Bounds of downloads.
#[derive(Clone, Copy, Debug)]
pub struct DownloadBounds {
    /// Bytes that a repository takes on the disk after its first fetch, and that each later one adds.
    pub repository_bytes: u64,
    /// Bytes that stay free on the disk.
    pub free_bytes: u64,
}

/// A repository that is downloaded into, with the bytes that it may have in the end.
pub(super) struct Download {
    folder: PathBuf,
    bounds: DownloadBounds,
    /// Bytes that it had before.
    before: u64,
}

impl Git {
    /// A download into an empty repository.
    pub(super) fn first_download(&self, folder: &Path) -> Download {
        Download {
            folder: folder.to_owned(),
            bounds: self.inner.download,
            before: 0,
        }
    }

    /// A further download into a repository.
    pub(super) async fn further_download(&self, folder: &Path) -> Result<Download, Error> {
        let mut download = self.first_download(folder);
        download.before = download.measure().await?.0;
        Ok(download)
    }
}

impl Download {
    /// Runs a step that calls the remote, and ends it at a bound. What it has written by then stays.
    pub(super) async fn run(&self, step: Step<'_>) -> Result<Output, Error> {
        let output = tokio::select! {
            output = remote(step) => output?,
            Err(error) = self.watch() => return Err(error),
        };
        // It can have ended since the last measurement.
        self.check().await?;
        Ok(output)
    }

    /// Returns with the bound that is exceeded.
    async fn watch(&self) -> Result<std::convert::Infallible, Error> {
        loop {
            let begun = tokio::time::Instant::now();
            self.check().await?;
            sleep(MEASURE_INTERVAL.max(begun.elapsed() * MEASURE_SHARE)).await;
        }
    }

    async fn check(&self) -> Result<(), Error> {
        let (size, free) = self.measure().await?;
        let DownloadBounds {
            repository_bytes,
            free_bytes,
        } = self.bounds;
        if size.saturating_sub(self.before) > repository_bytes {
            return Err(Error::TooManyBytes(repository_bytes));
        }
        if free < free_bytes {
            return Err(Error::DiskFull { free, free_bytes });
        }
        Ok(())
    }

    /// Bytes of the repository, and bytes that are free on its disk.
    async fn measure(&self) -> Result<(u64, u64), Error> {
        let folder = self.folder.clone();
        let disk = folder.parent().unwrap_or(&folder).to_owned();
        let measuring = spawn_blocking(move || Ok((bytes_of(&folder), free_bytes(&disk)?)));
        let measured = measuring.await.unwrap_or_else(|error| Err(error.into()));
        measured.map_err(|error| Error::file(&self.folder, error))
    }
}
