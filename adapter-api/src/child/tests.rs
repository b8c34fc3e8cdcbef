//! Tests of `child`.

use super::streams::ENDLESS;
use super::*;

fn sh(script: &str) -> Program {
    Program {
        args: vec!["-c".into(), script.into()],
        ..Program::new("sh")
    }
}

fn start(program: &Program) -> Child {
    Child::start(&Host::detached(), Some("dsp_1/1"), program).unwrap()
}

async fn all(child: &mut Child) -> Vec<Line> {
    let mut lines = Vec::new();
    while let Some(line) = child.next().await {
        lines.push(line);
    }
    lines
}

fn text(line: &str) -> Line {
    Line::Text(line.to_owned())
}

#[tokio::test]
async fn lines_go_in_and_come_out_and_the_end_is_told() {
    let mut child = start(&sh(
        "while read line; do echo got $line; done; printf last; echo why >&2; exit 3",
    ));
    child.send("one");
    assert_eq!(child.next().await, Some(text("got one")));
    child.send("two");
    child.close_stdin();
    assert_eq!(all(&mut child).await, [text("got two"), text("last")]);
    assert_eq!(child.wait().await.unwrap().code(), Some(3));
    assert_eq!(child.stderr_tail(), "why");
}

#[tokio::test]
async fn pieces_of_a_line_come_before_its_end_and_once() {
    let mut child = start(&sh(
        "printf 'gr\\303'; read l; printf '\\274n\\r'; read l; printf '\\nx\\n\\377y'",
    ));
    let open = |text: &str| Some(Piece::Open(text.to_owned()));
    assert_eq!(child.next_piece().await, open("gr"));
    child.send("");
    assert_eq!(child.next_piece().await, open("\u{fc}n"));
    child.send("");
    let mut rest = Vec::new();
    while let Some(piece) = child.next_piece().await {
        rest.push(piece);
    }
    let lines = ["", "x", "\u{fffd}y"].map(|line| Piece::Rest(text(line)));
    assert_eq!(rest, lines);
}

#[tokio::test]
async fn a_program_that_writes_before_it_reads_does_not_block() {
    let mut child = start(&sh(
        "head -c 1000000 /dev/zero | tr '\\0' 'a'; echo; read line; echo ${#line}",
    ));
    child.send(&"b".repeat(1_000_000));
    let lines = all(&mut child).await;
    assert_eq!(lines[1], text("1000000"));
}

#[test]
fn a_line_without_end_is_reported_while_it_lasts() {
    let mut lines = Lines::new(1000);
    let mut sent = 0;
    let line = loop {
        lines.room().extend_from_slice(&[b'a'; 1 << 20]);
        sent += 1 << 20;
        match lines.pop() {
            Some(line) => break line,
            None => assert!(sent <= ENDLESS),
        }
    };
    let start = "a".repeat(1000);
    assert_eq!(line, Line::TooLong { bytes: sent, start });
    lines.room().extend_from_slice(b"after\n");
    assert_eq!(lines.pop(), Some(text("after")));
}

#[tokio::test]
async fn long_lines_and_long_errors_are_bounded() {
    let mut program =
        sh("echo short; head -c 100000 /dev/zero | tr '\\0' 'a'; echo; echo after; seq 1 9999 >&2");
    program.line_bytes = 1000;
    program.stderr_bytes = 9;
    let mut child = start(&program);
    let lines = all(&mut child).await;
    child.wait().await.unwrap();
    assert_eq!(
        lines,
        [
            text("short"),
            Line::TooLong {
                bytes: 100_000,
                start: "a".repeat(1000)
            },
            text("after")
        ]
    );
    assert_eq!(child.stderr_tail(), "998\n9999");
}

#[tokio::test]
async fn only_named_variables_reach_the_program() {
    let mut program = sh("env");
    program.env.insert("WANTED".to_owned(), "1".to_owned());
    let mut child = start(&program);
    let names: Vec<String> = all(&mut child)
        .await
        .into_iter()
        .filter_map(|line| match line {
            Line::Text(line) => Some(line.split_once('=')?.0.to_owned()),
            Line::TooLong { .. } => None,
        })
        .collect();
    assert!(names.contains(&"WANTED".to_owned()) && names.contains(&"FORGE_EXECUTION".to_owned()));
    assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
    assert!(
        !names.iter().any(|name| name.starts_with("CARGO")),
        "{names:?}"
    );
}

#[tokio::test]
async fn a_background_process_that_keeps_the_output_open_does_not_hold_the_end() {
    let mut child = start(&sh("sleep 300 & echo done"));
    assert_eq!(all(&mut child).await, [text("done")]);
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_deaf_program_is_stopped() {
    let mut child = start(&sh("trap '' TERM; echo on; while :; do sleep 300; done"));
    assert_eq!(child.next().await, Some(text("on")));
    child.kill();
    assert!(!child.stop(Duration::from_secs(1)).await.unwrap().success());
}

#[tokio::test]
async fn the_memory_of_a_program_is_that_of_its_tree() {
    let mut child = start(&sh(
        "sh -c 'x=$(head -c 20000000 /dev/zero | tr \\\\0 a); echo on; read l'; :",
    ));
    assert_eq!(child.next().await, Some(text("on")));
    let pid = child.pid().unwrap();
    assert!(memory_bytes(pid).unwrap() > 20_000_000);
    child.kill();
    child.wait().await.unwrap();
    assert_eq!((child.pid(), memory_bytes(pid)), (None, None));
}

#[tokio::test]
async fn a_missing_program_is_named() {
    for path in ["no-such-program-here", "/etc/passwd"] {
        let error = Child::start(&Host::detached(), None, &Program::new(path)).unwrap_err();
        assert_eq!(error.to_string(), format!("there is no program {path}"));
    }
}

#[tokio::test]
async fn a_program_starts_in_the_folder_that_was_opened_whatever_its_path_names_by_then() {
    let held = tempfile::tempdir().unwrap();
    let base = held.path().canonicalize().unwrap();
    let (path, moved) = (base.join("w"), base.join("moved"));
    std::fs::create_dir(&path).unwrap();
    let mut program = sh("pwd; : > here");
    program.workspace = Some(Folder::open(&path).unwrap());
    program.dir = Some(path.clone());
    std::fs::rename(&path, &moved).unwrap();
    std::fs::create_dir(&path).unwrap();
    let mut child = start(&program);
    assert_eq!(all(&mut child).await, [text(moved.to_str().unwrap())]);
    assert!(child.wait().await.unwrap().success());
    assert!(moved.join("here").exists() && !path.join("here").exists());
}
