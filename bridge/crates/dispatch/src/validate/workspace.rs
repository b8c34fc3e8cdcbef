//! Workspace folder and prompt files of a dispatch. Accesses the file system only to resolve the folder: when the
//! dispatch is accepted, and again when an attempt starts.

use std::path::{Path, PathBuf};

use forge_adapter_api::folder::{Folder, FolderId};
use forge_base::text::is_unseen_in_name;
use serde_json::Value;

use crate::Config;
use crate::request::{DispatchRequest, File, Workspace};

use super::fields::Fields;
use super::spelling;

/// Folders below which the folder of a dispatch is allowed.
pub(crate) struct Roots<'a> {
    allowed: &'a [PathBuf],
    /// Not allowed, although it may be below one of the others.
    closed: &'a [PathBuf],
}

impl<'a> Roots<'a> {
    /// Roots of callers, or of steps of runs.
    pub(crate) fn new(config: &'a Config, is_step: bool) -> Self {
        let checkouts = config.checkouts.as_slice();
        match is_step {
            true => Self {
                allowed: checkouts,
                closed: &[],
            },
            false => Self {
                allowed: &config.workspace_roots,
                closed: checkouts,
            },
        }
    }
}

/// Reads `workspace`, and the identity of its folder, which becomes canonical and must be below one of the roots.
pub(super) fn read(
    dispatch: &Fields<'_>,
    roots: &Roots<'_>,
) -> (Option<Workspace>, Option<FolderId>) {
    let Some(fields) = dispatch.object("workspace") else {
        return (None, None);
    };
    spelling::warn(&fields, spelling::WORKSPACE);
    let resolved = fields.text("dir").and_then(|dir| {
        let resolved = resolve(Path::new(dir), roots);
        resolved
            .map_err(|complaint| fields.complain("dir", complaint))
            .ok()
    });
    let (dir, id) = match resolved {
        Some((folder, id)) => (Some(folder.path().to_owned()), Some(id)),
        None => (None, None),
    };
    let mut files = Vec::new();
    for (path, element) in fields.list("files") {
        files.extend(read_file(&fields, &path, element));
    }
    (Some(Workspace { dir, files }), id)
}

/// Opens the folder of a run that starts; `None` without one. The error says that its path no longer leads to the folder
/// that was accepted.
pub(crate) fn reopen(
    dispatch: &DispatchRequest,
    config: &Config,
) -> Result<Option<Folder>, String> {
    let Some(dir) = dispatch.workspace_dir() else {
        return Ok(None);
    };
    let roots = Roots::new(config, dispatch.is_step);
    let (folder, id) = resolve(dir, &roots).map_err(|text| format!("workspace.dir {text}"))?;
    let accepted = dispatch.workspace_id.unwrap_or(id);
    if folder.path() != dir || id != accepted {
        return Err("workspace.dir is another folder than when the dispatch was accepted".into());
    }
    Ok(Some(folder))
}

/// Reads `outputFile`, a path below the workspace folder.
pub(super) fn read_output_file(dispatch: &Fields<'_>) -> Option<String> {
    let path = dispatch.text("outputFile")?;
    if let Some(complaint) = path_complaint(path) {
        dispatch.complain("outputFile", complaint);
        return None;
    }
    Some(path.to_owned())
}

fn read_file(workspace: &Fields<'_>, path: &str, element: &Value) -> Option<File> {
    let fields = Fields::read(element, path, workspace.complaints())?;
    spelling::warn(&fields, spelling::FILE);
    let file = fields.required_text("path").and_then(|path| {
        let complaint = path_complaint(path);
        if let Some(complaint) = complaint {
            fields.complain("path", complaint);
            return None;
        }
        Some(path.to_owned())
    });
    // Not `required_text`: an empty file is valid.
    let content = match fields.given("content") {
        Some(Value::String(content)) => Some(content.clone()),
        Some(_) => {
            fields.complain("content", "must be a string");
            None
        }
        None => {
            fields.complain("content", "is required");
            None
        }
    };
    Some(File {
        path: file?,
        content: content?,
    })
}

pub(super) fn path_complaint(path: &str) -> Option<&'static str> {
    let separators = ['/', '\\'];
    let drive = path.as_bytes().get(1) == Some(&b':');
    if path.is_empty() || path.len() > 1024 {
        Some("must have 1 to 1024 bytes")
    } else if path.contains(is_unseen_in_name) {
        Some("must not contain control characters or others that cannot be seen")
    } else if path.starts_with(separators) || drive {
        Some("must be relative")
    } else if path.split(separators).any(|part| part == "..") {
        Some("must not contain ..")
    } else if path.ends_with(separators) || path.split(separators).all(|part| part == ".") {
        Some("must name a file")
    } else {
        None
    }
}

/// Resolves the links of the folder and of the roots; complains unless the folder is below a root.
fn resolve(path: &Path, roots: &Roots<'_>) -> Result<(Folder, FolderId), String> {
    if roots.allowed.is_empty() {
        return Err(
            "no workspace root is configured; set dispatch.workspace_roots to use a folder".into(),
        );
    }
    if !path.is_absolute() {
        return Err("must be an absolute path".into());
    }
    // The same answer for missing and outside, so that callers cannot probe for folders.
    let outside = || "must be an existing folder below a configured workspace root".to_owned();
    let resolved = path.canonicalize().map_err(|_| outside())?;
    let is_below = |root: &PathBuf| {
        let root = root.canonicalize();
        root.is_ok_and(|root| resolved.starts_with(root))
    };
    if !roots.allowed.iter().any(is_below) || roots.closed.iter().any(is_below) {
        return Err(outside());
    }
    if resolved.to_str().is_none() {
        return Err("must be UTF-8 with its links resolved".into());
    }
    // Fails if a part of the path has become a link since.
    let folder = Folder::open(&resolved).map_err(|_| outside())?;
    let id = folder.id().map_err(|_| outside())?;
    Ok((folder, id))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::super::fields::Complaints;
    use super::*;
    use crate::request::tests::minimal;

    fn rooted(roots: &[PathBuf]) -> Config {
        Config {
            workspace_roots: roots.to_vec(),
            ..Config::default()
        }
    }

    fn complaints(body: &Value, roots: &[PathBuf]) -> (Option<Workspace>, Vec<String>) {
        let complaints = Complaints::default();
        let fields = Fields::read(body, "", &complaints).unwrap();
        let (workspace, _) = read(&fields, &Roots::new(&rooted(roots), false));
        read_output_file(&fields);
        let fields = complaints.into_vec().into_iter().map(|e| e.field).collect();
        (workspace, fields)
    }

    #[test]
    fn a_folder_must_be_below_a_root_whatever_links_say() {
        let held = tempfile::tempdir().unwrap();
        let base = held.path().canonicalize().unwrap();
        let root = base.join("root");
        let outside = base.join("root-evil");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        symlink(&outside, root.join("escape")).unwrap();
        symlink(root.join("a"), root.join("inside")).unwrap();
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        for (dir, expected) in [
            (text(root.join("a/b")), Some(root.join("a/b"))),
            (text(root.join("inside/b")), Some(root.join("a/b"))),
            (text(root.join("a/../a")), Some(root.join("a"))),
            (text(root.join("escape")), None),
            (text(root.join("../root-evil")), None),
            (text(outside.clone()), None),
            (text(root.join("missing")), None),
            (text(root.join("file")), None),
            ("a/b".to_owned(), None),
            (String::new(), None),
        ] {
            let body = json!({"workspace": {"dir": dir}});
            let (workspace, found) = complaints(&body, std::slice::from_ref(&root));
            assert_eq!(workspace.unwrap().dir, expected, "{dir}");
            assert_eq!(found.is_empty(), expected.is_some(), "{dir}");
        }
    }

    #[test]
    fn a_folder_that_was_replaced_is_not_opened_again() {
        let held = tempfile::tempdir().unwrap();
        let base = held.path().canonicalize().unwrap();
        let (root, dir) = (base.join("root"), base.join("root/w"));
        std::fs::create_dir_all(&dir).unwrap();
        let body = json!({"workspace": {"dir": dir}});
        let accepted = Complaints::default();
        let fields = Fields::read(&body, "", &accepted).unwrap();
        let config = rooted(std::slice::from_ref(&root));
        let (workspace, workspace_id) = read(&fields, &Roots::new(&config, false));
        let dispatch = DispatchRequest {
            workspace,
            workspace_id,
            ..minimal()
        };
        let reopened = || reopen(&dispatch, &config);
        assert_eq!(reopened().unwrap().unwrap().id().ok(), workspace_id);

        std::fs::rename(&dir, base.join("kept")).unwrap();
        assert!(reopened().is_err(), "it is gone");
        symlink(base.join("kept"), &dir).unwrap();
        assert!(reopened().is_err(), "it is outside of the root");
        std::fs::remove_file(&dir).unwrap();
        std::fs::create_dir(root.join("other")).unwrap();
        symlink(root.join("other"), &dir).unwrap();
        assert!(reopened().is_err(), "it is a link");
        std::fs::remove_file(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
        assert!(reopened().is_err(), "it is another folder");
        std::fs::remove_dir(&dir).unwrap();
        std::fs::rename(base.join("kept"), &dir).unwrap();
        assert!(reopened().is_ok());
        assert!(reopen(&dispatch, &rooted(&[base.join("elsewhere")])).is_err());
        assert_eq!(reopen(&minimal(), &rooted(&[])).unwrap().map(drop), None);
    }

    #[test]
    fn only_steps_of_runs_work_in_their_checkouts() {
        let held = tempfile::tempdir().unwrap();
        let base = held.path().canonicalize().unwrap();
        let checkout = base.join("runs/one");
        std::fs::create_dir_all(&checkout).unwrap();
        let config = Config {
            checkouts: Some(base.join("runs")),
            ..rooted(std::slice::from_ref(&base))
        };
        for (dir, is_step, is_allowed) in [
            (&checkout, true, true),
            (&checkout, false, false),
            (&base, true, false),
            (&base, false, true),
        ] {
            let found = resolve(dir, &Roots::new(&config, is_step));
            assert_eq!(found.is_ok(), is_allowed, "{dir:?} {is_step}");
        }
    }

    #[test]
    fn without_roots_no_folder_is_allowed() {
        let (_, found) = complaints(&json!({"workspace": {"dir": "/"}}), &[]);
        assert_eq!(found, ["workspace.dir"]);
    }

    #[test]
    fn prompt_files_are_relative_and_have_content() {
        for (file, field) in [
            (json!({"path": "a/b.md", "content": ""}), None),
            (json!({"path": "./a..b", "content": "x"}), None),
            (json!({"path": "../a", "content": "x"}), Some("path")),
            (json!({"path": "a/../b", "content": "x"}), Some("path")),
            (json!({"path": "a\\..\\b", "content": "x"}), Some("path")),
            (json!({"path": "/etc/passwd", "content": "x"}), Some("path")),
            (json!({"path": "c:/x", "content": "x"}), Some("path")),
            (json!({"path": "a\u{0}b", "content": "x"}), Some("path")),
            (json!({"path": "", "content": "x"}), Some("path")),
            (json!({"path": "a/", "content": "x"}), Some("path")),
            (json!({"content": "x"}), Some("path")),
            (json!({"path": "a"}), Some("content")),
            (json!({"path": "a", "content": 5}), Some("content")),
        ] {
            let (workspace, found) = complaints(&json!({"workspace": {"files": [file]}}), &[]);
            let expected: Vec<String> = field
                .map(|field| format!("workspace.files[0].{field}"))
                .into_iter()
                .collect();
            assert_eq!(found, expected, "{file}");
            assert_eq!(workspace.unwrap().files.len(), 1 - expected.len());
        }
    }

    #[test]
    fn the_output_file_is_relative() {
        for (path, good) in [
            ("out/result.md", true),
            ("../x", false),
            ("/x", false),
            (".", false),
        ] {
            let (_, found) = complaints(&json!({"outputFile": path}), &[]);
            assert_eq!(found.is_empty(), good, "{path}");
        }
    }
}
