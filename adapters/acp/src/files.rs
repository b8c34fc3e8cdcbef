//! The agent's requests to read and write files through the adapter: allowed below the workspace only.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use forge_adapter_transport::folder::is_below;
use forge_adapter_transport::json_rpc::{INTERNAL_ERROR, INVALID_PARAMS, RpcError};
use serde_json::{Value, json};

/// Upper bound of a file that is read, in bytes.
const LARGEST: u64 = 8 << 20;

/// Answers an `fs/…` request. Blocks on file I/O.
pub(crate) fn answer(workspace: &Path, method: &str, params: &Value) -> Result<Value, RpcError> {
    let path = PathBuf::from(params["path"].as_str().ok_or_else(|| wrong("no path"))?);
    if !path.is_absolute() || !is_below(workspace, &path) {
        return Err(wrong("the path is outside the workspace"));
    }
    let done = if method == "fs/write_text_file" {
        let content = params["content"]
            .as_str()
            .ok_or_else(|| wrong("no content"))?;
        write(&path, content)
    } else {
        read(&path, params)
    };
    done.map_err(|error| RpcError {
        code: INTERNAL_ERROR,
        message: format!("{}: {error}", path.display()),
        data: Value::Null,
    })
}

fn read(path: &Path, params: &Value) -> io::Result<Value> {
    // Opening a pipe would block until another process writes to it.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > LARGEST {
        let text = format!("only regular files of at most {LARGEST} bytes can be read");
        return Err(io::Error::other(text));
    }
    let mut text = String::new();
    fs::File::open(path)?
        .take(LARGEST)
        .read_to_string(&mut text)?;
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

fn write(path: &Path, content: &str) -> io::Result<Value> {
    if path.exists() && !path.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, content)?;
    Ok(json!({}))
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
    use super::*;

    #[test]
    fn files_below_the_workspace_are_written_and_read_and_no_others() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name).display().to_string();
        let ask = |method: &str, params: Value| answer(root.path(), method, &params);
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
}
