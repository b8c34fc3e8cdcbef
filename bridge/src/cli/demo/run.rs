//! `forge-bridge demo --run`: one run on a sample repository, from the interview to a proved merge.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::client::{Client, Target};
use super::super::runs::{follow, page, plan};
use super::super::sample::Sample;
use super::super::screen::{Tone, text};
use super::super::stream::Events;
use super::Stage;

/// Message that a Captain with a model would ask about.
const WISH: &str = "A page in two languages with a style sheet";

/// Message to the Captain of echo, which has no model: the plan itself.
fn plan_for_echo() -> Value {
    let task = |id: &str, title: &str, dependencies: &[&str], instructions: &str| {
        json!({
            "id": id, "title": title, "type": 2, "dependencies": dependencies,
            "instructions": instructions,
        })
    };
    json!({
        "specs": {"site": "Plain HTML, one style sheet, no scripts."},
        "tasks": [
            task("style", "Write the style sheet", &[], "write site.css h1 { color: teal }\nsleep 150"),
            // The first attempt fails in the middle of its file; the second one begins without it.
            task("german", "Greet in German", &[], "write de.html <h1>Hal\nfail-once echo_failed\nwrite de.html <h1>Hallo</h1>"),
            task("links", "Link the pages", &["style"],
                "append index.html <link rel=stylesheet href=site.css>\nappend index.html <a href=de.html>Deutsch</a>"),
        ],
    })
}

impl Stage {
    /// Plays the run; returns what was seen of it.
    pub(super) async fn play_run(&self, sample: &Sample) -> anyhow::Result<Value> {
        let client = Client::new(&self.url, None)?;
        let url = sample.url()?;
        self.introduce(&client, ("repository", &url)).await?;
        self.scene(2, "POST /api/v1/runs, and the interview")?;
        let runs = Target::path(&["api", "v1", "runs"]);
        let request = json!({ "repoUrl": url, "message": WISH });
        let created = client.post(runs, &request).await?;
        let run = text(&created, "/runId");
        self.say(format_args!("   {run} {}", text(&created, "/status")))?;

        let mut stream = follow::events(client.clone(), &run, None, false);
        let mut events = self.interview(&client, &mut stream, &run).await?;
        self.scene(3, "The plan")?;
        let path = ["api", "v1", "runs", &run];
        let record = client.get(Target::path(&path)).await?;
        self.graph(&record)?;
        self.scene(4, "Each task in a checkout of its own")?;
        let merge = self.tasks(&mut stream, &mut events).await?;
        self.scene(5, "The merge, read back from the repository")?;
        let record = client.get(Target::path(&path)).await?;
        let verified = client
            .get(Target::path(&[&path[..], &["verify"]].concat()))
            .await?;
        if let Some(merge) = &merge {
            self.proof(sample, merge, &record)?;
            let count = text(&verified, "/seq");
            let same = self
                .screen
                .paint(Tone::Good, "its state is the fold of its log");
            self.say(format_args!("   {same}: {count} events, none missing"))?;
        }
        Ok(json!({ "run": record, "events": events, "merge": merge, "verify": verified }))
    }

    /// Talks to the Captain until there is a plan.
    async fn interview(
        &self,
        client: &Client,
        stream: &mut Events,
        run: &str,
    ) -> anyhow::Result<Vec<Value>> {
        let say = async |message: &str| {
            let captain = Target::path(&["api", "v1", "captain", "message"]);
            let body = json!({ "runId": run, "message": message });
            client.post(captain, &body).await
        };
        let line = |who: &str, text: &str| {
            let who = self.screen.paint(Tone::Name, format_args!("{who:<9}"));
            self.say(format_args!("   {who}{text}"))
        };
        line("you", WISH)?;
        let (mut events, mut calls, mut has_asked) = (Vec::new(), BTreeMap::new(), false);
        while let Some(event) = stream.next().await? {
            let kind = text(&event, "/type");
            match kind.as_str() {
                "captain.message" => {
                    line("captain", &text(&event, "/data/content"))?;
                    if !std::mem::replace(&mut has_asked, true) {
                        line(
                            "you",
                            "the plan as JSON, since echo is no model that could write one",
                        )?;
                        say(&plan_for_echo().to_string()).await?;
                    }
                }
                "captain.tool_call" => {
                    *calls.entry(text(&event, "/data/toolName")).or_insert(0) += 1;
                }
                _ => {}
            }
            let is_over = kind == "plan.finalized" || follow::is_last(&event);
            events.push(event);
            if is_over {
                break;
            }
        }
        let calls = calls.iter().map(|(name, count)| format!("{count} {name}"));
        line(
            "captain",
            &format!("calls of tools: {}", calls.collect::<Vec<_>>().join(", ")),
        )?;
        Ok(events)
    }

    fn graph(&self, record: &Value) -> std::io::Result<()> {
        let nodes = record.pointer("/dag/nodes").and_then(Value::as_array);
        let lines = plan::lines(nodes.map_or(&[][..], Vec::as_slice));
        for (id, after) in lines {
            let title = text(&record["tasks"][id.trim_start()], "/title");
            let after = match after.as_str() {
                "" => String::new(),
                after => format!("  ◄─ {after}"),
            };
            let title = self.screen.paint(Tone::Quiet, title);
            self.say(format_args!("   {id:<20}{title}{after}"))?;
        }
        Ok(())
    }

    /// Shows the tasks until the run has ended; returns the data of its merge.
    async fn tasks(
        &self,
        stream: &mut Events,
        events: &mut Vec<Value>,
    ) -> anyhow::Result<Option<Value>> {
        let mut merge = None;
        while let Some(event) = stream.next().await? {
            let attempt = format!("{}/{}", text(&event, "/taskId"), text(&event, "/attemptId"));
            let data = |name: &str| text(&event["data"], name);
            let seen = match event["type"].as_str() {
                Some("task.started") => {
                    Some((Tone::Quiet, format!("works on {}", data("/branch"))))
                }
                Some("task.failed") => Some((Tone::Bad, data("/error"))),
                Some("task.retried") => {
                    Some((Tone::Quiet, "again, in a fresh checkout".to_owned()))
                }
                Some("branch.pushed") => Some((Tone::Good, format!("pushed {}", data("/ref")))),
                Some("refinery.started") => Some((Tone::Quiet, "merges".to_owned())),
                _ => None,
            };
            if let Some((tone, what)) = seen {
                let clock = text(&event, "/timestamp");
                let clock = clock.get(11..23).unwrap_or(&clock);
                let what = self.screen.paint(tone, what);
                self.say(format_args!("   {clock}  {attempt:<18}{what}"))?;
            }
            if event["type"] == "refinery.merged" {
                merge = Some(event["data"].clone());
            }
            let is_last = follow::is_last(&event);
            events.push(event);
            if is_last {
                break;
            }
        }
        Ok(merge)
    }

    fn proof(&self, sample: &Sample, merge: &Value, record: &Value) -> anyhow::Result<()> {
        let target = text(record, "/target");
        for line in page::merged(&self.screen, merge, &target) {
            self.say(format_args!("   {line}"))?;
        }
        let file = sample.file(&target, "index.html");
        self.say(format_args!("   {target}:index.html"))?;
        for line in file.context("the merge cannot be read back")?.lines() {
            self.say(format_args!(
                "     {}",
                self.screen.paint(Tone::Quiet, line)
            ))?;
        }
        Ok(())
    }
}
