//! `forg rules`: lists the rules in force; judges records of a file by rules of a file, on the time that the records
//! state; prints the schema of a rules file.

mod list;

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::super::screen::Tone;
use super::super::{Context, FAILED};
use super::files;
use forge_base::{json as bounded, time};
use forge_signals::evaluate::teams_of_users;
use forge_signals::rule::{Action, RULES_BYTES, SCHEMA};
use forge_signals::{FieldProblem, Offline, Record, Rules, Verdict};

/// Maximum size of a record, as on the wire.
const RECORD_BYTES: usize = 64 * 1024;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the rules in force, each with its fullest window
    List,
    /// Judge recorded signals by a rules file, without a bridge
    Test {
        /// Rules file
        rules: PathBuf,
        /// Records, one JSON object per line in the order of their arrival; `-` reads standard input
        records: PathBuf,
        /// Members of a team, for rules with the scope `team`
        #[arg(long = "team", value_name = "NAME=USER,USER…", value_parser = team)]
        teams: Vec<(String, Vec<String>)>,
    },
    /// Print the JSON Schema of a rules file
    Schema,
}

fn team(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, users) = text.split_once('=').ok_or("wanted NAME=USER,USER…")?;
    Ok((
        name.to_owned(),
        users.split(',').map(str::to_owned).collect(),
    ))
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        Command::List => list::run(context),
        Command::Schema => {
            context.screen().piece(SCHEMA)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Test {
            rules,
            records,
            teams,
        } => test(context, rules, records, teams),
    }
}

fn test(
    context: &Context,
    rules: &Path,
    records: &Path,
    teams: &[(String, Vec<String>)],
) -> anyhow::Result<ExitCode> {
    let read = Rules::read(&contents(rules, RULES_BYTES)?);
    let rules = match read {
        Ok(rules) => rules,
        Err(found) => return refused(context, &rules.display().to_string(), &found),
    };
    let teams = teams_of_users(teams.iter().map(|(name, users)| (name, users)));
    let mut offline = Offline::new(rules, teams);
    let mut lines: Box<dyn BufRead> = match records.as_os_str() == "-" {
        true => Box::new(BufReader::new(io::stdin())),
        false => {
            let file = files::stream(records);
            let file = file.with_context(|| format!("cannot read {}", records.display()))?;
            Box::new(BufReader::new(file))
        }
    };
    let mut report = Report::new(context);
    let mut now = None;
    for number in 1.. {
        let mut line = Vec::new();
        let limited = &mut (&mut lines).take(RECORD_BYTES as u64 + 1);
        limited.read_until(b'\n', &mut line)?;
        if line.is_empty() {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let record = match record(&line) {
            Ok(record) => record,
            Err(found) => {
                let place = format!("{}:{number}", records.display());
                return refused(context, &place, &found);
            }
        };
        // Records are in the order of their arrival, so time does not go back.
        let at = now.map_or(record.ts, |now| record.ts.max(now));
        now = Some(at);
        let session = record.session_id.clone().unwrap_or_else(|| {
            let user = record.user_id.as_deref().unwrap_or_default();
            format!("{} {user}", record.adapter)
        });
        let verdict = offline.judge(&record, &session, at);
        report.add(number, &record, &verdict)?;
    }
    report.end()
}

fn contents(path: &Path, limit: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = files::stream(path).with_context(|| format!("cannot read {}", path.display()))?;
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn record(line: &[u8]) -> Result<Record, Vec<FieldProblem>> {
    if line.len() > RECORD_BYTES {
        return Err(FieldProblem::whole(format!(
            "a record has at most {RECORD_BYTES} bytes"
        )));
    }
    let tree = bounded::parse(line).map_err(|error| FieldProblem::whole(error.to_string()))?;
    Record::read(&tree)
}

/// Reports what is wrong with a file.
fn refused(context: &Context, place: &str, found: &[FieldProblem]) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    if context.global.json {
        screen.value(&json!({ "file": place, "problems": found }))?;
        return Ok(ExitCode::from(FAILED));
    }
    for FieldProblem { field, message } in found {
        let field = match field.as_str() {
            "" => String::new(),
            field => format!("{field}: "),
        };
        let error = screen.paint_aside(Tone::Bad, "error");
        screen.aside(format_args!("{error}: {place}: {field}{message}"))?;
    }
    Ok(ExitCode::from(FAILED))
}

/// Output of a test: a line for each record that a rule holds for, and the sums.
struct Report<'a> {
    context: &'a Context,
    judged: Vec<Value>,
    records: usize,
    blocked: usize,
    notified: usize,
}

impl<'a> Report<'a> {
    fn new(context: &'a Context) -> Self {
        Self {
            context,
            judged: Vec::new(),
            records: 0,
            blocked: 0,
            notified: 0,
        }
    }

    fn add(&mut self, line: usize, record: &Record, verdict: &Verdict) -> io::Result<()> {
        self.records += 1;
        self.blocked += usize::from(verdict.is_blocked());
        let notices = verdict
            .begun
            .iter()
            .filter(|held| held.rule.action == Action::Notify);
        self.notified += notices.count();
        let Some(decided) = &verdict.decided else {
            return Ok(());
        };
        let rule = &decided.rule;
        if self.context.global.json {
            let begun = verdict.begun.iter().map(|held| {
                json!({"ruleId": held.rule.id, "action": held.rule.action, "scopeValue": held.scope_value})
            });
            let begun: Vec<_> = begun.collect();
            self.judged.push(json!({
                "line": line, "blocked": verdict.is_blocked(), "ruleId": rule.id, "action": rule.action,
                "severity": rule.severity, "message": rule.message, "scopeValue": decided.scope_value, "begun": begun,
            }));
            return Ok(());
        }
        let screen = self.context.screen();
        let tone = match rule.action {
            Action::Block => Tone::Bad,
            Action::Notify => Tone::Strong,
            Action::Allow => Tone::Quiet,
        };
        // A rule that goes on to hold is told again only if it blocks.
        if !verdict.is_blocked() && verdict.begun.is_empty() {
            return Ok(());
        }
        let action = match rule.action {
            Action::Block => "block",
            Action::Notify => "notify",
            Action::Allow => "allow",
        };
        screen.line(format_args!(
            "{line:>6}  {}  {}  {}: {}",
            time::format(record.ts),
            screen.paint(tone, format_args!("{action:<6}")),
            &rule.id,
            &rule.message,
        ))
    }

    fn end(self) -> anyhow::Result<ExitCode> {
        let screen = self.context.screen();
        if self.context.global.json {
            screen.value(&json!({
                "records": self.records, "blocked": self.blocked, "notifications": self.notified, "judged": self.judged,
            }))?;
        } else {
            let plural = |count: usize, one: &str| match count {
                1 => format!("1 {one}"),
                count => format!("{count} {one}s"),
            };
            screen.line(format_args!(
                "{}: {} blocked, {}",
                plural(self.records, "record"),
                self.blocked,
                plural(self.notified, "notification"),
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
