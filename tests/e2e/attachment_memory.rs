//! Memory of a large attachment on its way to the model: of the bridge, and of the process of an adapter that has one.

use std::fs;

use forge_test_model::Model;
use serde_json::{Value, json};

use super::harness::api::{quiet, with};
use super::harness::process::Home;
use super::harness::until;

/// Largest size of all attachments together.
const SIZE: usize = 20 << 20;
/// Memory of anything else, such as connections and pages of the store.
const SLACK: usize = 8 << 20;

/// Process ids of a process and its descendants.
fn family(of: u32) -> Vec<u32> {
    let mut found = vec![of];
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let id = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
            let (_, rest) = stat.rsplit_once(") ")?;
            Some((id, rest.split(' ').nth(1)?.parse().ok()?))
        })
        .collect();
    let mut at = 0;
    while at < found.len() {
        let children = parents.iter().filter(|(_, parent)| *parent == found[at]);
        let children: Vec<u32> = children.map(|(id, _)| *id).collect();
        found.extend(children);
        at += 1;
    }
    found
}

/// Sum of a line of `/proc/<id>/status` in bytes: `VmRSS` is the resident memory, `VmHWM` its peak.
fn memory(family: &[u32], line: &str) -> usize {
    let of = |id: &u32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let kib = status.lines().find_map(|found| found.strip_prefix(line))?;
        let kib = kib.trim_matches([':', ' ', '\t']).trim_end_matches(" kB");
        kib.parse::<usize>().ok()
    };
    family.iter().filter_map(of).sum::<usize>() * 1024
}

#[tokio::test]
async fn an_attachment_of_the_workspace_is_in_memory_once_and_only_while_it_runs() {
    let model = Model::start().await;
    let home = Home::new(&[("BRIDGE_ADAPTERS", "inside,apart")]);
    let settings = |id: &str, isolation: &str| {
        format!(
            "[adapters.{id}]\nlibrary = \"openai-compatible\"\nisolation = \"{isolation}\"\n\
             base_url = \"{}/v1\"\napi_key = \"k-1\"\nmodel = \"fake-1\"\n",
            model.url()
        )
    };
    let file = settings("inside", "in_process") + &settings("apart", "process");
    fs::write(home.dir.path().join("forge-bridge.toml"), file).unwrap();
    let work = home.dir.path().join("work");
    let content: Vec<u8> = (0..=250).cycle().take(SIZE).collect();
    fs::write(work.join("large.png"), &content).unwrap();
    let bridge = home.start();
    let named = |source: Value| with(source, &json!({"name": "a.png", "mediaType": "image/png"}));
    let run = async |name: &str, provider: &str, attachment: &Value| {
        let extra =
            json!({"provider": provider, "attachments": [attachment], "workspace": {"dir": work}});
        let result = bridge.api.run(with(quiet(name, "fake-1"), &extra)).await;
        assert_eq!(result["status"], "ok", "{result}");
    };
    let small = named(json!({"data": "YWJj"}));
    for provider in ["inside", "apart"] {
        run(&format!("{provider} small"), provider, &small).await;
    }
    let large = named(json!({"path": "large.png"}));
    let family = family(bridge.id());
    let before = memory(&family, "VmRSS");
    // Base64 is a third longer than the content.
    for round in ["first", "second"] {
        for provider in ["inside", "apart"] {
            for id in &family {
                fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap();
            }
            run(&format!("{provider} {round}"), provider, &large).await;
            let peak = memory(&family, "VmHWM").saturating_sub(before);
            assert!(peak <= 2 * SIZE + SLACK, "{provider} {round}: {peak} bytes");
            until("the memory to be free", async || {
                let after = memory(&family, "VmRSS").saturating_sub(before);
                (after <= SLACK).then_some(())
            })
            .await;
        }
    }
}
