//! Checks of an adapter: what it sends to an agent, and what it makes of good, bad and missing answers.

use forge_adapter_api::conformance::Outcome;
use forge_signals::record::{Record, content_problems};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hyper::header::CONTENT_TYPE;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::lab::{Received, Script, Session};
use super::report::{Check, Report};
use super::run::{Exit, Run, Subject};
use super::signature::{Match, compare};

const SCENARIOS: &str = include_str!("adapter.json");
const BLOCK_MESSAGE: &str = "Budget 7f3a is used up.";
const NO_SIGNAL: &str = "no signal was sent";
/// Largest difference of `ts` from this machine's clock.
const CLOCK: SignedDuration = SignedDuration::from_mins(5);

/// A run and the checks that it decides.
#[derive(Deserialize)]
struct Scenario {
    #[serde(flatten)]
    script: Script,
    checks: Vec<JudgedCheck>,
}

#[derive(Deserialize)]
struct JudgedCheck {
    #[serde(flatten)]
    check: Check,
    judge: Judge,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Judge {
    Started,
    ContentType,
    SignatureHeader,
    SignatureKey,
    SignatureBytes,
    Fields,
    AdapterId,
    NoContent,
    Timestamp,
    SessionId,
    SessionEnd,
    Continues,
    ContinuesAfterSignals,
    Environment,
    Redirect,
    Blocks,
    BlocksSilently,
    Restart,
    NoStorm,
}

impl Judge {
    fn of(self, run: &Run) -> Outcome {
        match self {
            Judge::Started => started(run),
            Judge::ContentType => content_type(run),
            Judge::SignatureHeader => signature_header(run),
            Judge::SignatureKey => signature_key(run),
            Judge::SignatureBytes => signature_bytes(run),
            Judge::Fields => fields(run),
            Judge::AdapterId => adapter_id(run),
            Judge::NoContent => no_content(run),
            Judge::Timestamp => timestamp(run),
            Judge::SessionId => session_id(run),
            Judge::SessionEnd => session_end(run),
            Judge::Continues => continues(run),
            Judge::ContinuesAfterSignals => continues_after(run, run.emits().count()),
            Judge::Environment => environment(run),
            Judge::Redirect => redirect(run),
            Judge::Blocks => blocks(run),
            Judge::BlocksSilently => blocks_silently(run),
            Judge::Restart => restart(run),
            Judge::NoStorm => no_storm(run),
        }
    }
}

/// Runs the adapter as often as the wanted checks need, and adds their rows.
pub(super) async fn check(subject: &Subject, report: &mut Report<'_>) -> anyhow::Result<()> {
    let mut wanted: Vec<Scenario> = serde_json::from_str(SCENARIOS)?;
    wanted.retain(|scenario| {
        scenario
            .checks
            .iter()
            .any(|one| report.wants(&one.check.id))
    });
    let runs = wanted
        .iter()
        .map(|scenario| subject.run(scenario.script.clone()));
    let runs = Vec::from_iter(runs);
    let mut runs = stream::iter(runs).buffered(subject.width());
    for scenario in &wanted {
        let Some(run) = runs.try_next().await? else {
            break;
        };
        for JudgedCheck { check, judge } in &scenario.checks {
            report.add(check, judge.of(&run))?;
        }
    }
    Ok(())
}

fn ensure(holds: bool, seen: impl FnOnce() -> String) -> Outcome {
    match holds {
        true => Outcome::Passed,
        false => Outcome::Failed(seen()),
    }
}

/// The first failure of these; `none` if there are none at all.
fn each<T>(
    items: impl Iterator<Item = T>,
    none: &str,
    wrong: impl Fn(T) -> Option<String>,
) -> Outcome {
    let mut items = items.peekable();
    if items.peek().is_none() {
        return Outcome::Failed(none.to_owned());
    }
    items
        .find_map(wrong)
        .map_or(Outcome::Passed, Outcome::Failed)
}

fn started(run: &Run) -> Outcome {
    each(run.starts(), "no session was started", |start| {
        let adapter = &start.json()["adapter"];
        (adapter != run.adapter.as_str()).then(|| format!("`adapter` of the start is {adapter}"))
    })
}

fn content_type(run: &Run) -> Outcome {
    each(run.received.iter(), NO_SIGNAL, |one| {
        let kind = one
            .headers
            .get(CONTENT_TYPE)
            .map(|kind| kind.to_str().unwrap_or_default());
        let right = kind.is_some_and(|kind| kind.split(';').next() == Some("application/json"));
        (!right).then(|| format!("{} was sent as {kind:?}", one.path))
    })
}

/// The session that a signal names, else the newest.
fn session<'a>(run: &'a Run, signal: &Received) -> Option<&'a Session> {
    let id = &signal.json()["session_id"];
    let named = run
        .sessions
        .iter()
        .find(|session| *id == session.id.as_str());
    named.or(run.sessions.last())
}

fn comparison(run: &Run, signal: &Received) -> Match {
    let mut values = signal.headers.get_all("x-forg-signature").iter();
    match (values.next(), values.next(), session(run, signal)) {
        (Some(value), None, Some(session)) => compare(&session.key, &signal.body, value.as_bytes()),
        _ => Match::Malformed,
    }
}

fn signature_header(run: &Run) -> Outcome {
    each(run.emits(), NO_SIGNAL, |signal| {
        let values = || {
            signal
                .headers
                .get_all("x-forg-signature")
                .iter()
                .collect::<Vec<_>>()
        };
        (comparison(run, signal) == Match::Malformed)
            .then(|| format!("X-Forg-Signature is {:?}", values()))
    })
}

fn signature_key(run: &Run) -> Outcome {
    each(run.emits(), NO_SIGNAL, |signal| {
        match comparison(run, signal) {
            Match::Wrong => Some("the signature belongs to another key or another body".to_owned()),
            Match::TextOfKey => Some("the key is the base64 text, not its bytes".to_owned()),
            Match::Right | Match::Reserialised | Match::Malformed => None,
        }
    })
}

fn signature_bytes(run: &Run) -> Outcome {
    each(run.emits(), NO_SIGNAL, |signal| {
        let reserialised = comparison(run, signal) == Match::Reserialised;
        reserialised.then(|| "another serialisation of the body was signed".to_owned())
    })
}

fn fields(run: &Run) -> Outcome {
    let usage = run.records().filter(|record| record["hook"].is_null());
    if usage.count() == 0 {
        return Outcome::Failed("no call of a model was reported".to_owned());
    }
    each(run.records(), NO_SIGNAL, |record| {
        let content = content_problems(&record);
        let mut problems = Record::read(&record).err()?;
        problems.retain(|problem| !content.contains(problem));
        let problems = problems
            .into_iter()
            .map(|one| format!("`{}` {}", one.field, one.message));
        let problems = Vec::from_iter(problems).join("; ");
        (!problems.is_empty()).then_some(problems)
    })
}

fn adapter_id(run: &Run) -> Outcome {
    each(run.records(), NO_SIGNAL, |record| {
        let adapter = &record["adapter"];
        (adapter != run.adapter.as_str())
            .then(|| format!("`adapter` is {adapter}, not \"{}\"", run.adapter))
    })
}

fn no_content(run: &Run) -> Outcome {
    each(run.received.iter(), NO_SIGNAL, |one| {
        let found = content_problems(&one.json()).into_iter().next()?;
        Some(format!("`{}` {}", found.field, found.message))
    })
}

fn timestamp(run: &Run) -> Outcome {
    each(run.records(), NO_SIGNAL, |record| {
        let ts = &record["ts"];
        let of_text = ts.as_str().and_then(|text| text.parse().ok());
        let of_number = || {
            ts.as_i64()
                .and_then(|millis| Timestamp::from_millisecond(millis).ok())
        };
        let near = |at: Timestamp| at.duration_since(Timestamp::now()).abs() <= CLOCK;
        let right = of_text.or_else(of_number).is_some_and(near);
        (!right).then(|| format!("`ts` is {ts}"))
    })
}

fn session_id(run: &Run) -> Outcome {
    each(run.records(), NO_SIGNAL, |record| {
        let id = &record["session_id"];
        let known = run
            .sessions
            .iter()
            .any(|session| *id == session.id.as_str());
        (!known).then(|| format!("`session_id` is {id}"))
    })
}

fn session_end(run: &Run) -> Outcome {
    let last = run.records().last().unwrap_or_default();
    let ends = run
        .records()
        .filter(|record| record["hook"] == "SessionEnd");
    match (ends.count(), &last["hook"]) {
        (1, hook) if hook == "SessionEnd" => Outcome::Passed,
        (0, _) => Outcome::Failed("no SessionEnd was sent".to_owned()),
        (1, _) => Outcome::Failed("signals follow the SessionEnd".to_owned()),
        (many, _) => Outcome::Failed(format!("{many} signals are a SessionEnd")),
    }
}

fn continues(run: &Run) -> Outcome {
    ensure(run.exit == Exit::Code(Some(0)), || ending(run))
}

/// As above, where a run without signals decides nothing.
fn continues_after(run: &Run, requests: usize) -> Outcome {
    match requests {
        0 => Outcome::Failed(NO_SIGNAL.to_owned()),
        _ => continues(run),
    }
}

/// End of the tool, with the last line that it printed.
fn ending(run: &Run) -> String {
    let last = run
        .output
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or_default();
    match run.exit {
        Exit::Code(Some(code)) => format!("the tool ended with code {code}: {last}"),
        Exit::Code(None) => "the tool was ended by a signal".to_owned(),
        Exit::Late => format!(
            "the tool still waited after its limit of {} ms",
            run.timeout.as_millis()
        ),
    }
}

fn redirect(run: &Run) -> Outcome {
    let mut others = run.received.iter().filter(|one| one.path == "/elsewhere");
    match others.next() {
        Some(_) => Outcome::Failed("the redirect was followed".to_owned()),
        None => continues_after(run, run.emits().count()),
    }
}

fn blocks(run: &Run) -> Outcome {
    match blocks_silently(run) {
        Outcome::Passed => ensure(run.output.contains(BLOCK_MESSAGE), || {
            format!("the message of the block was not printed: {}", ending(run))
        }),
        other => other,
    }
}

fn blocks_silently(run: &Run) -> Outcome {
    let calls = run
        .records()
        .filter(|record| record["hook"].is_null())
        .count();
    match run.exit {
        Exit::Code(Some(0)) => {
            Outcome::Failed("the tool ended as if nothing was blocked".to_owned())
        }
        Exit::Code(Some(_)) => ensure(calls == 1, || {
            format!("{calls} calls were reported; the first was blocked")
        }),
        Exit::Code(None) | Exit::Late => Outcome::Failed(ending(run)),
    }
}

fn environment(run: &Run) -> Outcome {
    if run.starts().next().is_some() {
        let why = "the adapter starts a session of its own".to_owned();
        return Outcome::NotChecked(why);
    }
    each(run.emits(), NO_SIGNAL, |signal| {
        let found = comparison(run, signal);
        (found != Match::Right).then(|| format!("the signature is not right: {found:?}"))
    })
}

fn restart(run: &Run) -> Outcome {
    let second = run.sessions.get(1);
    let used = second.is_some_and(|second| {
        run.records()
            .any(|record| record["session_id"] == second.id.as_str())
    });
    match (used, run.sessions.len()) {
        (true, 2) => continues(run),
        (true, many) => Outcome::Failed(format!("{many} sessions were started for one 401")),
        (false, _) => Outcome::Failed("no signal of a new session followed the 401".to_owned()),
    }
}

fn no_storm(run: &Run) -> Outcome {
    // Two calls and the end: each can be sent twice, and start a session between.
    let (starts, signals) = (run.starts().count(), run.emits().count());
    match starts <= 4 && signals <= 6 {
        true => continues_after(run, run.emits().count()),
        false => Outcome::Failed(format!(
            "{starts} starts and {signals} signals for two calls"
        )),
    }
}
