//! Contents of blobs, a batch at a time, since the output of a step is bounded.

use super::program::Input;
use super::{Error, Repository};

/// Items whose blobs are read in order, as many at a time as one step can print.
pub(super) struct Batches<T, F> {
    /// The next ones last.
    open: Vec<Vec<T>>,
    ids: F,
}

impl<T, F: Fn(&T) -> Vec<String>> Batches<T, F> {
    /// `ids` are the blobs of an item.
    pub(super) fn new(items: Vec<T>, ids: F) -> Self {
        let open = vec![items];
        Self { open, ids }
    }

    /// The next items, and their blobs for [`next_blob`].
    pub(super) async fn next(
        &mut self,
        repository: &Repository,
    ) -> Result<Option<(Vec<T>, Vec<u8>)>, Error> {
        while let Some(mut items) = self.open.pop() {
            if items.is_empty() {
                continue;
            }
            let ids = items.iter().flat_map(&self.ids);
            let ids: String = ids.map(|id| id + "\n").collect();
            let step = repository.step(&["cat-file", "--batch"]);
            match step.input(Input::Bytes(ids.into_bytes())).bytes().await {
                Err(Error::TooLarge(_)) if items.len() > 1 => {
                    self.open.push(items.split_off(items.len() / 2));
                    self.open.push(items);
                }
                printed => return printed.map(|printed| Some((items, printed))),
            }
        }
        Ok(None)
    }
}

/// Takes the next object from the output of `cat-file --batch`: `<id> blob <size>`, the content, a line break.
pub(super) fn next_blob<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let size = str::from_utf8(&rest[..end]).ok()?.rsplit(' ').next()?;
    let begin = end + 1;
    let end = begin.checked_add(size.parse().ok()?)?;
    let content = rest.get(begin..end)?;
    *rest = rest.get(end + 1..)?;
    Some(content)
}
