//! Memory of a large attachment, from the request to the model: of the bridge, and of the process of an adapter that has
//! one.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forge_test_model::Model;
use serde_json::{Value, json};

use super::harness::api::{quiet, with};
use super::harness::process::Home;
use super::harness::until;

/// Size of all attachments together.
const IN_WORKSPACE: usize = 20 << 20;
/// As much as a body of 10 MiB can hold in base64.
const IN_BODY: usize = 7 << 20;
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
async fn a_large_attachment_costs_little_and_nothing_after_its_run() {
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
    let content: Vec<u8> = (0..=250).cycle().take(IN_WORKSPACE).collect();
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
    let path = named(json!({"path": "large.png"}));
    let data = named(json!({"data": STANDARD.encode(&content[..IN_BODY])}));
    let family = family(bridge.id());
    let before = memory(&family, "VmRSS");
    // Base64 is a third longer than the content. In a body it is read, parsed and decoded, and the allocator keeps what is
    // free for a while, to use it for the next one.
    for (number, (attachment, most, kept)) in [
        (&path, 2 * IN_WORKSPACE, SLACK),
        (&path, 2 * IN_WORKSPACE, SLACK),
        (&data, 3 * IN_WORKSPACE, IN_WORKSPACE),
        (&data, 3 * IN_WORKSPACE, IN_WORKSPACE),
    ]
    .into_iter()
    .enumerate()
    {
        for provider in ["inside", "apart"] {
            for id in &family {
                fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap();
            }
            run(&format!("{provider} {number}"), provider, attachment).await;
            let peak = memory(&family, "VmHWM").saturating_sub(before);
            assert!(peak <= most + SLACK, "{provider} {number}: {peak} bytes");
            until("the memory to be free", async || {
                let after = memory(&family, "VmRSS").saturating_sub(before);
                (after <= kept).then_some(())
            })
            .await;
        }
    }
}
