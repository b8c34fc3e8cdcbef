//! Output capture: choice of the strategy, and reading of the file that a run wrote.

use std::io::Read;
use std::path::Path;

use forge_adapter_api::folder::Folder;
use forge_adapter_api::{OutputStrategy, Profile};

use super::request::DispatchRequest;

/// Chooses the output strategy for this adapter; the error is the reason why none fits. An adapter that was
/// never loaded or declares none is treated as `stream`.
pub fn decide(
    dispatch: &DispatchRequest,
    profile: Option<&Profile>,
) -> Result<OutputStrategy, String> {
    let declared = profile.map_or(&[][..], |profile| &profile.output_strategies);
    let declared = match declared {
        [] => &[OutputStrategy::Stream][..],
        declared => declared,
    };
    let has = |strategy| declared.contains(&strategy);
    if let Some(wanted) = dispatch.output_strategy {
        return match has(wanted) {
            true => Ok(wanted),
            false => Err(format!("lacks the output strategy {}", name(wanted))),
        };
    }
    if dispatch.output_schema.is_some() && has(OutputStrategy::Structured) {
        Ok(OutputStrategy::Structured)
    } else if has(OutputStrategy::Stream) {
        Ok(OutputStrategy::Stream)
    } else if has(OutputStrategy::File) && dispatch.workspace_dir().is_some() {
        Ok(OutputStrategy::File)
    } else if has(OutputStrategy::File) {
        Err("has only the output strategy file, which needs workspace.dir".into())
    } else {
        Err("has only the output strategy structured, which needs outputSchema".into())
    }
}

fn name(strategy: OutputStrategy) -> &'static str {
    match strategy {
        OutputStrategy::File => "file",
        OutputStrategy::Stream => "stream",
        OutputStrategy::Structured => "structured",
    }
}

/// Content of the output file of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Captured {
    /// At most one byte more than the read limit.
    Read(Vec<u8>),
    /// The file cannot be read; the text is the reason.
    Missing(String),
}

/// Reads at most `limit` + 1 bytes of `file` below the folder of the run, by the rules of [`Folder::open_below`].
/// Blocks the calling thread.
pub fn read(folder: &Folder, file: &str, limit: usize) -> Captured {
    let missing = |reason: String| Captured::Missing(format!("output file {file:?} {reason}"));
    let opened = match folder.open_below(Path::new(file)) {
        Ok(opened) => opened,
        Err(error) => return missing(format!("cannot be opened: {error}")),
    };
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    match opened.take(most).read_to_end(&mut bytes) {
        Ok(_) => Captured::Read(bytes),
        Err(error) => missing(format!("cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use forge_adapter_api::{CostTier, LatencyProfile};
    use serde_json::json;

    use super::*;
    use crate::request::Workspace;
    use crate::request::tests::minimal;

    fn profile(output_strategies: &[OutputStrategy]) -> Profile {
        Profile {
            capabilities: Vec::new(),
            native_tools: Vec::new(),
            max_concurrent: 1,
            output_strategies: output_strategies.to_vec(),
            options: Vec::new(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
        }
    }

    #[test]
    fn the_strategy_follows_the_request_and_the_profile() {
        use OutputStrategy::{File, Stream, Structured};
        let all = &[File, Stream, Structured][..];
        for (explicit, schema, dir, declared, expected) in [
            (None, false, false, all, Some(Stream)),
            (None, true, false, all, Some(Structured)),
            (None, true, false, &[Stream][..], Some(Stream)),
            (None, false, true, &[File][..], Some(File)),
            (None, false, false, &[File][..], None),
            (None, false, true, all, Some(Stream)),
            (None, false, false, &[Structured][..], None),
            (None, false, false, &[][..], Some(Stream)),
            (Some(File), false, true, all, Some(File)),
            (Some(File), false, true, &[Stream][..], None),
            (Some(Structured), false, false, all, Some(Structured)),
            (Some(Stream), true, false, all, Some(Stream)),
        ] {
            let dispatch = DispatchRequest {
                output_strategy: explicit,
                output_schema: schema.then(|| json!({})),
                workspace: dir.then(|| Workspace {
                    dir: Some("/srv".into()),
                    files: Vec::new(),
                }),
                ..minimal()
            };
            let decided = decide(&dispatch, Some(&profile(declared))).ok();
            assert_eq!(
                decided, expected,
                "{explicit:?} {schema} {dir} {declared:?}"
            );
        }
        assert_eq!(decide(&minimal(), None), Ok(Stream));
    }

    #[test]
    fn what_is_no_file_of_the_folder_is_missing() {
        let held = tempfile::tempdir().unwrap();
        let base = held.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("w/sub")).unwrap();
        std::fs::write(base.join("secret"), "secret").unwrap();
        std::fs::write(base.join("w/output.md"), "done").unwrap();
        symlink(base.join("secret"), base.join("w/link")).unwrap();
        std::fs::hard_link(base.join("secret"), base.join("w/hard")).unwrap();
        let folder = Folder::open(&base.join("w")).unwrap();
        for (file, expected) in [
            ("output.md", Some("done")),
            ("absent", None),
            ("link", None),
            ("hard", None),
            ("../secret", None),
            ("sub", None),
        ] {
            let text = match read(&folder, file, 100) {
                Captured::Read(bytes) => Some(String::from_utf8(bytes).unwrap()),
                Captured::Missing(_) => None,
            };
            assert_eq!(text.as_deref(), expected, "{file}");
        }
    }

    #[test]
    fn reading_stops_one_byte_after_the_limit() {
        let held = tempfile::tempdir().unwrap();
        let dir = held.path().canonicalize().unwrap();
        std::fs::write(dir.join("big"), vec![b'x'; 1000]).unwrap();
        let folder = Folder::open(&dir).unwrap();
        assert_eq!(read(&folder, "big", 10), Captured::Read(vec![b'x'; 11]));
    }
}
