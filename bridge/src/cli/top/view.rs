//! Drawing of `top`; no requests and no state of its own.

use forge_base::text::escaped;
use jiff::{SignedDuration, Timestamp};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use super::Now;
use crate::cli::Environment;
use crate::cli::screen;

/// Colours; none if `NO_COLOR` is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    coloured: bool,
}

impl Palette {
    pub(super) fn of(environment: &Environment) -> Self {
        let refused = environment
            .get("NO_COLOR")
            .is_some_and(|value| !value.is_empty());
        Self { coloured: !refused }
    }

    fn colour(self, colour: Color) -> Style {
        match self.coloured {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Style of a state name.
    fn state(self, state: &str) -> Style {
        match state {
            "healthy" | "ok" => self.colour(Color::Green),
            "running" => self.colour(Color::Blue),
            // Requested by a caller, so no error.
            "cancelled" => self.dim(),
            "degraded" | "queued" | "accepted" | "input_required" => self.colour(Color::Yellow),
            _ => self.colour(Color::Red),
        }
    }
}

/// Below this height the throughput is hidden; below `LOWEST`, the adapters as well.
const LOW: u16 = 22;
const LOWEST: u16 = 14;
/// Below this width, lists have no columns for adapter, agent and time of acceptance.
const NARROW: u16 = 80;

pub(super) fn draw(frame: &mut Frame<'_>, now: &Now, palette: Palette) {
    let area = frame.area();
    let adapters = now.health["adapters"]
        .as_object()
        .map_or(0, |all| all.len());
    let adapters = u16::try_from(adapters).unwrap_or(u16::MAX).clamp(1, 8);
    let health = if area.height < LOWEST {
        0
    } else {
        adapters + 1
    };
    let rate = if area.height < LOW { 0 } else { 6 };
    // Running dispatches get the space they need, at most half of the rest.
    let left = area.height.saturating_sub(3 + health + rate);
    let running = u16::try_from(now.running.len()).unwrap_or(u16::MAX);
    let running = running.clamp(1, 50).saturating_add(2).min(left / 2);
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(health),
        Constraint::Length(rate),
        Constraint::Length(running),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [head, health, rate, running, latest, foot] = areas.areas(area);
    frame.render_widget(Paragraph::new(headlines(now, palette)), head);
    frame.render_widget(adapter_table(now, palette), health);
    throughput(frame, now, palette, rate);
    let width = area.width;
    frame.render_widget(dispatches("Running", &now.running, palette, width), running);
    frame.render_widget(dispatches("Latest", &now.latest, palette, width), latest);
    let keys = "q quits   ·   the web console is at the same address";
    frame.render_widget(Line::styled(keys, palette.dim()), foot);
}

/// Status of the bridge; below it, numbers of dispatches and callbacks.
fn headlines(now: &Now, palette: Palette) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let version = format!("forge-bridge {}  ", text(&now.health, "/version"));
    let mut first = vec![Span::styled(version, bold)];
    match &now.trouble {
        Some(trouble) => first.push(Span::styled(visible(trouble), palette.state("offline"))),
        None => {
            let state = text(&now.health, "/status");
            first.push(Span::styled(format!("{state}  "), palette.state(&state)));
            if now.health["draining"] == true {
                first.push(Span::styled("draining  ", palette.state("degraded")));
            }
            let seconds = now.health["uptimeSeconds"].as_i64().unwrap_or(0);
            first.push(Span::raw(format!("up {}  ", rough(seconds))));
            first.push(Span::styled(visible(&now.url), palette.dim()));
        }
    }
    let sum = |name: &str| -> u64 {
        let adapters = now.health["adapters"].as_object().into_iter().flatten();
        adapters.filter_map(|(_, one)| one[name].as_u64()).sum()
    };
    let owed = |name: &str| now.health["deliveries"][name].as_u64().unwrap_or(0);
    let dead = owed("dead");
    let style = if dead > 0 {
        palette.state("offline")
    } else {
        Style::new()
    };
    let work = format!("{} running  {} queued  ", sum("running"), sum("queued"));
    let second = vec![
        Span::raw(work),
        Span::raw(format!("{} callbacks pending  ", owed("pending"))),
        Span::styled(format!("{dead} dead"), style),
    ];
    vec![Line::from(first), Line::from(second)]
}

fn adapter_table(now: &Now, palette: Palette) -> Table<'static> {
    let adapters = now.health["adapters"].as_object();
    let rows = adapters.into_iter().flatten().map(|(name, adapter)| {
        let state = text(adapter, "/status");
        let number = |name: &str| adapter[name].as_u64().unwrap_or(0);
        let (running, most) = (number("running"), number("maxConcurrent"));
        Row::new([
            Cell::new(visible(name)),
            Cell::new(state.clone()).style(palette.state(&state)),
            Cell::new(bar(running, most)).style(palette.colour(Color::Blue)),
            Cell::new(format!("{running} of {most}")),
            Cell::new(format!("{} queued", number("queued"))),
            Cell::new(match adapter.get("pausedAt") {
                Some(_) => "paused".to_owned(),
                None => visible(adapter["message"].as_str().unwrap_or_default()),
            })
            .style(palette.dim()),
        ])
    });
    let widths = [
        Constraint::Length(18),
        Constraint::Length(9),
        Constraint::Length(12),
        Constraint::Length(10),
        Constraint::Length(14),
        Constraint::Fill(1),
    ];
    Table::new(rows, widths).block(titled("Adapters"))
}

/// Bar of twelve cells, rounded up so that one running of a hundred is visible.
fn bar(running: u64, most: u64) -> String {
    let filled = (running * 12).div_ceil(most.max(1)).min(12);
    let filled = usize::try_from(filled).unwrap_or(12);
    format!("{}{}", "█".repeat(filled), "·".repeat(12 - filled))
}

fn throughput(frame: &mut Frame<'_>, now: &Now, palette: Palette, area: Rect) {
    // Without the last second: it is still filling and would always look like a drop.
    let whole = now.finished.len().saturating_sub(1);
    let seconds: Vec<u64> = now.finished.iter().take(whole).copied().collect();
    let shown = seconds.len().min(usize::from(area.width));
    let last = seconds.last().copied().unwrap_or(0);
    let most = seconds.iter().max().copied().unwrap_or(0);
    let title = format!("Finished per second: {last}, at most {most}");
    let line = Sparkline::default()
        .block(titled(&title))
        .style(palette.colour(Color::Green))
        .data(&seconds[seconds.len() - shown..]);
    frame.render_widget(line, area);
}

fn dispatches(title: &str, items: &[Value], palette: Palette, width: u16) -> Table<'static> {
    let rows = items.iter().map(|dispatch| {
        let state = match dispatch["outcome"].as_str() {
            Some("ok") => "ok".to_owned(),
            Some(_) => text(dispatch, "/errorCode"),
            None => text(dispatch, "/status"),
        };
        let cells = [
            Cell::new(text(dispatch, "/taskId")),
            Cell::new(state.clone()).style(palette.state(&state)),
            Cell::new(text(dispatch, "/provider")),
            Cell::new(text(dispatch, "/agentId")),
            Cell::new(clock(dispatch)),
            Cell::new(took(dispatch, Timestamp::now())),
        ];
        Row::new(columns(cells, width))
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(16),
        Constraint::Length(18),
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(11),
    ];
    let header = ["Task", "State", "Adapter", "Agent", "Accepted", "Took"];
    Table::new(rows, columns(widths, width))
        .header(Row::new(columns(header, width)).style(palette.dim()))
        .block(titled(title))
}

/// Text of others as it is drawn: ratatui leaves out control characters only.
fn visible(text: &str) -> String {
    escaped(text, &[])
}

/// Text at a JSON pointer as it is drawn, or a dash if absent.
fn text(value: &Value, pointer: &str) -> String {
    visible(&screen::text(value, pointer))
}

/// Columns that fit the width of the terminal.
fn columns<T>(all: [T; 6], width: u16) -> Vec<T> {
    let [task, state, provider, agent, accepted, took] = all;
    match width < NARROW {
        true => vec![task, state, took],
        false => vec![task, state, provider, agent, accepted, took],
    }
}

fn titled(title: &str) -> Block<'static> {
    Block::new()
        .borders(Borders::TOP)
        .title(format!(" {title} "))
}

/// Time of day of the acceptance in UTC, as in the log.
fn clock(dispatch: &Value) -> String {
    let accepted = text(dispatch, "/acceptedAt");
    accepted.get(11..19).unwrap_or_default().to_owned()
}

/// Duration from start to end, or until now; empty if not started.
fn took(dispatch: &Value, now: Timestamp) -> String {
    let time = |name: &str| dispatch[name].as_str()?.parse::<Timestamp>().ok();
    let Some(started) = time("startedAt") else {
        return String::new();
    };
    let Some(finished) = time("finishedAt") else {
        let seconds = now.duration_since(started).as_secs().max(0);
        return match dispatch["status"] == "running" {
            true => rough(seconds),
            false => String::new(),
        };
    };
    let took: SignedDuration = finished.duration_since(started);
    match took.as_millis() {
        millis if millis < 1000 => format!("{millis} ms"),
        millis if millis < 60_000 => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        _ => rough(took.as_secs()),
    }
}

fn rough(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn shown(now: &Now, width: u16, height: u16) -> String {
        let palette = Palette { coloured: true };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, now, palette)).unwrap();
        terminal.backend().to_string()
    }

    fn now() -> Now {
        Now {
            url: "http://127.0.0.1:7420".to_owned(),
            health: json!({
                "version": "0.1.0", "status": "degraded", "uptimeSeconds": 3700, "draining": false,
                "deliveries": {"pending": 3, "dead": 1},
                "adapters": {
                    "echo": {"status": "healthy", "running": 2, "maxConcurrent": 8, "queued": 0},
                    "vercel-ai": {
                        "status": "degraded", "running": 0, "maxConcurrent": 8, "queued": 4,
                        "message": "no credentials",
                    },
                },
            }),
            running: vec![json!({
                "taskId": "review-1", "agentId": "coder", "provider": "echo", "status": "running",
                "acceptedAt": "2026-11-21T02:41:12.123Z",
            })],
            latest: vec![json!({
                "taskId": "review-0", "agentId": "coder", "provider": "echo", "status": "finished",
                "outcome": "error", "errorCode": "timeout", "acceptedAt": "2026-11-21T02:40:12.123Z",
                "startedAt": "2026-11-21T02:40:12.123Z", "finishedAt": "2026-11-21T02:40:13.623Z",
            })],
            finished: [0, 1, 4, 8, 2, 0].into(),
            trouble: None,
        }
    }

    #[test]
    fn everything_is_on_one_screen() {
        insta::assert_snapshot!(shown(&now(), 100, 24));
    }

    #[test]
    fn a_small_terminal_keeps_tasks_states_and_what_is_owed() {
        let shown = shown(&now(), 50, 12);
        for said in [
            "2 running",
            "3 callbacks pending",
            "1 dead",
            "review-1",
            "review-0",
            "timeout",
        ] {
            assert!(shown.contains(said), "{said} is missing in\n{shown}");
        }
    }

    #[test]
    fn what_runs_has_run_until_now() {
        let at = |text: &str| text.parse().unwrap();
        let running = json!({"status": "running", "startedAt": "2026-11-21T02:41:12.123Z"});
        assert_eq!(took(&running, at("2026-11-21T02:43:13Z")), "2 min");
        assert_eq!(took(&running, at("2026-11-21T02:41:00Z")), "0 s");
    }

    #[test]
    fn without_colour_states_are_still_words() {
        let palette = Palette::of(&[("NO_COLOR".to_owned(), "1".to_owned())].into());
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &now(), palette)).unwrap();
        let cells = &terminal.backend().buffer().content;
        assert!(cells.iter().all(|cell| cell.fg == Color::Reset));
        assert!(terminal.backend().to_string().contains("degraded"));
    }

    #[test]
    fn a_bridge_that_is_gone_is_said_beside_what_was_last_known() {
        let gone = Now {
            trouble: Some("cannot reach the bridge".to_owned()),
            ..now()
        };
        let shown = shown(&gone, 100, 24);
        assert!(shown.contains("cannot reach the bridge") && shown.contains("review-1"));
    }

    #[test]
    fn text_of_others_is_drawn_with_unseen_characters_escaped() {
        const TEXT: &str = "a\u{202e}b\u{200b}\u{1b}[2J\u{2066}";
        let dispatch = json!({
            "taskId": TEXT, "agentId": TEXT, "provider": TEXT, "status": TEXT, "outcome": "error",
            "errorCode": TEXT, "acceptedAt": format!("0123456789A{TEXT}{TEXT}"),
        });
        let adapter = json!({"status": TEXT, "message": TEXT});
        for trouble in [None, Some(TEXT.to_owned())] {
            let hostile = Now {
                url: TEXT.to_owned(),
                health: json!({"version": TEXT, "status": TEXT, "adapters": {TEXT: adapter}}),
                running: vec![dispatch.clone()],
                latest: vec![dispatch.clone()],
                trouble,
                ..now()
            };
            let drawn = shown(&hostile, 160, 24);
            let unseen = |c: char| forge_base::text::is_unseen(c) && c != '\n';
            assert_eq!(drawn.find(unseen), None, "{drawn:?}");
            assert!(drawn.contains(r"a\u{202e}b\u{200b}\u{1b}[2J"), "{drawn}");
        }
    }

    #[test]
    fn the_smallest_terminal_is_no_panic() {
        for (width, height) in [(1, 1), (10, 3), (300, 5)] {
            shown(&now(), width, height);
        }
        shown(&Now::default(), 80, 24);
    }
}
