//! Credentials of a remote while git uses them: other processes of the machine read environments and arguments.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::remote::{Before, serve, settings};
use super::*;

const CREDENTIAL: &str = "Basic aGVyZS1pcy1hLXNlY3JldDphbmQtYS1sb25nLW9uZQ==";

/// Observations during the requests of git.
#[derive(Default)]
struct Seen {
    /// Requests with the credential, by the service of git.
    requests: BTreeSet<&'static str>,
    /// Programs of git that ran at the time.
    programs: BTreeSet<String>,
    /// Files in `/proc` with the credential.
    exposed: BTreeSet<String>,
}

impl Seen {
    fn look(&mut self) {
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let process = entry.path();
            let arguments = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let program = arguments
                .split(|byte| *byte == 0)
                .next()
                .unwrap_or_default();
            let program = String::from_utf8_lossy(program);
            let program = program.rsplit('/').next().unwrap_or_default();
            if program.starts_with("git") {
                self.programs.insert(program.to_owned());
            }
            for file in ["environ", "cmdline"] {
                let content = std::fs::read(process.join(file)).unwrap_or_default();
                if String::from_utf8_lossy(&content).contains(CREDENTIAL) {
                    self.exposed.insert(format!("{file} of {program}"));
                }
            }
        }
    }
}

#[tokio::test]
async fn credentials_of_a_push_are_in_no_environment_and_no_argument() {
    let origin = Origin::new();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let before: Arc<Before> = {
        let seen = Arc::clone(&seen);
        Arc::new(move |head: &str, _| {
            let mut seen = seen.lock().unwrap();
            let services = ["git-upload-pack", "git-receive-pack"];
            let service = services.into_iter().find(|service| head.contains(service));
            if head.contains(CREDENTIAL) {
                seen.requests.extend(service);
            }
            seen.look();
            true
        })
    };
    let address = serve(origin.root.path(), before);
    let settings = settings(std::slice::from_ref(&address));
    let text = format!("{settings}authorization = {{ {address:?} = {CREDENTIAL:?} }}\n");
    let bridge = Bridge::configured(&text, &[]).await;
    let run = create(
        &bridge.api,
        &json!({"repoUrl": format!("{address}/origin.git")}),
    )
    .await;
    say(
        &bridge.api,
        &run,
        &plan(&[task("a", &[], "write a.txt one")]),
    )
    .await;
    let record = ended(&bridge.api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(
        seen.requests,
        ["git-receive-pack", "git-upload-pack"].into()
    );
    let names: Vec<_> = seen.programs.iter().map(String::as_str).collect();
    assert!(
        names.contains(&"git") && names.iter().any(|name| name.starts_with("git-remote")),
        "{names:?}"
    );
    assert_eq!(seen.exposed, BTreeSet::new());
    bridge.stop().await;
}
