//! The agent's requests to read and write files through the adapter: allowed below the workspace only.

use std::io::{self, Read as _};
use std::path::Path;

use forge_adapter_api::folder::Folder;
use forge_adapter_transport::json_rpc::{INTERNAL_ERROR, INVALID_PARAMS, RpcError};
use serde_json::{Value, json};

/// Upper bound of a file that is read, in bytes.
const LARGEST: u64 = 8 << 20;

/// Answers an `fs/…` request. Blocks on file I/O.
pub(crate) fn answer(workspace: &Folder, method: &str, params: &Value) -> Result<Value, RpcError> {
    let path = Path::new(params["path"].as_str().ok_or_else(|| wrong("no path"))?);
    let outside = || wrong("the path is outside the workspace");
    let file = path.strip_prefix(workspace.path()).map_err(|_| outside())?;
    let done = if method == "fs/write_text_file" {
        let content = params["content"]
            .as_str()
            .ok_or_else(|| wrong("no content"))?;
        workspace
            .write_below(file, content.as_bytes())
            .map(|()| json!({}))
    } else {
        read(workspace, file, params)
    };
    done.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => outside(),
        _ => RpcError {
            code: INTERNAL_ERROR,
            message: format!("{}: {error}", path.display()),
            data: Value::Null,
        },
    })
}

fn read(workspace: &Folder, file: &Path, params: &Value) -> io::Result<Value> {
    let opened = workspace.open_below(file)?;
    if opened.metadata()?.len() > LARGEST {
        let text = format!("only files of at most {LARGEST} bytes can be read");
        return Err(io::Error::other(text));
    }
    let mut text = String::new();
    opened.take(LARGEST).read_to_string(&mut text)?;
    let number = |name: &str| params[name].as_u64().and_then(|n| usize::try_from(n).ok());
    let content = match (number("line"), number("limit")) {
        (None, None) => text,
        (first, limit) => text
            .split_inclusive('\n')
            .skip(first.unwrap_or(1).saturating_sub(1))
            .take(limit.unwrap_or(usize::MAX))
            .collect(),
    };
    Ok(json!({ "content": content }))
}

fn wrong(message: &str) -> RpcError {
    RpcError {
        code: INVALID_PARAMS,
        message: message.to_owned(),
        data: Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn files_below_the_workspace_are_written_and_read_and_no_others() {
        let held = tempfile::tempdir().unwrap();
        let root = Folder::open(&held.path().canonicalize().unwrap()).unwrap();
        let at = |name: &str| root.path().join(name).display().to_string();
        let ask = |method: &str, params: Value| answer(&root, method, &params);
        let (read, write) = ("fs/read_text_file", "fs/write_text_file");
        ask(
            write,
            json!({"path": at("new/a.txt"), "content": "1\n2\n3\n"}),
        )
        .unwrap();
        let cases = [
            (json!({"path": at("new/a.txt")}), "1\n2\n3\n"),
            (
                json!({"path": at("new/a.txt"), "line": 2, "limit": 1}),
                "2\n",
            ),
            (json!({"path": at("new/a.txt"), "line": 3}), "3\n"),
            (json!({"path": at("new/a.txt"), "line": 9}), ""),
        ];
        for (params, content) in cases {
            assert_eq!(
                ask(read, params.clone()).unwrap()["content"],
                content,
                "{params}"
            );
        }
        for (method, params, code) in [
            (read, json!({"path": "/etc/passwd"}), INVALID_PARAMS),
            (read, json!({"path": "new/a.txt"}), INVALID_PARAMS),
            (
                write,
                json!({"path": at("../b"), "content": ""}),
                INVALID_PARAMS,
            ),
            (write, json!({"path": at("b")}), INVALID_PARAMS),
            (read, json!({}), INVALID_PARAMS),
            (read, json!({"path": at("absent")}), INTERNAL_ERROR),
            (read, json!({"path": at("new")}), INTERNAL_ERROR),
            (
                write,
                json!({"path": at("new"), "content": ""}),
                INTERNAL_ERROR,
            ),
        ] {
            let error = ask(method, params.clone()).unwrap_err();
            assert_eq!(error.code, code, "{method} {params}: {error}");
        }
    }
    /// A workspace, the request for a file `flip/secret` in it, and the folder around it, which has that file.
    fn beside_a_secret() -> (tempfile::TempDir, Folder, Value) {
        let held = tempfile::tempdir().unwrap();
        let base = held.path().canonicalize().unwrap();
        fs::write(base.join("secret"), "secret").unwrap();
        fs::create_dir(base.join("w")).unwrap();
        let workspace = Folder::open(&base.join("w")).unwrap();
        let path = workspace.path().join("flip/secret");
        let params = json!({"path": path, "content": "stolen"});
        (held, workspace, params)
    }

    #[test]
    fn a_link_that_comes_and_goes_never_leads_out_of_the_workspace() {
        let (held, workspace, params) = beside_a_secret();
        let (flip, ended) = (workspace.path().join("flip"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    // Each can fail, because the other thread creates the folder too.
                    let _ = fs::create_dir(&flip);
                    let _ = fs::remove_dir_all(&flip);
                    let _ = symlink(held.path(), &flip);
                    let _ = fs::remove_file(&flip);
                }
            });
            for _ in 0..5_000 {
                // Most requests are refused.
                let _ = answer(&workspace, "fs/write_text_file", &params);
                if let Ok(read) = answer(&workspace, "fs/read_text_file", &params) {
                    assert_ne!(read["content"], "secret");
                }
            }
            ended.store(true, Ordering::Relaxed);
        });
        let secret = fs::read_to_string(held.path().join("secret"));
        assert_eq!(secret.unwrap(), "secret");
    }

    #[test]
    fn pipes_and_links_are_refused_at_once() {
        let (held, workspace, _) = beside_a_secret();
        let at = |name: &str| workspace.path().join(name);
        let made = Command::new("mkfifo").arg(at("pipe")).status();
        assert!(made.unwrap().success());
        symlink(held.path().join("secret"), at("link")).unwrap();
        fs::hard_link(held.path().join("secret"), at("hard")).unwrap();
        for name in ["pipe", "link", "hard"] {
            let params = json!({"path": at(name), "content": "stolen"});
            for method in ["fs/read_text_file", "fs/write_text_file"] {
                let error = answer(&workspace, method, &params).unwrap_err();
                assert_eq!(error.code, INTERNAL_ERROR, "{method} {name}: {error}");
            }
        }
        let secret = fs::read_to_string(held.path().join("secret"));
        assert_eq!(secret.unwrap(), "secret");
    }
}
