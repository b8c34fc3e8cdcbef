//! Lists that the bridge answers in pages.

use std::io;

use anyhow::ensure;
use clap::Args;
use serde_json::Value;

use super::Context;
use super::client::{Client, Target};
use super::screen::Screen;

/// Refuses options of a list before another command, which would not act.
pub(super) fn is_behind_list<Listing: Default + PartialEq>(given: &Listing) -> anyhow::Result<()> {
    ensure!(
        *given == Listing::default(),
        "options of the list stand before a command; write them behind `list`, or leave the command out"
    );
    Ok(())
}

/// Part of a list that is shown.
#[derive(Debug, Default, PartialEq, Args)]
pub(super) struct Range {
    /// Entries of a page, at most 200; 50 when absent
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u64>,
    /// Continue a list with the cursor that it ended with
    #[arg(long)]
    cursor: Option<String>,
    /// Show all pages; with --json, each on a line of its own
    #[arg(long)]
    all: bool,
}

impl Range {
    /// Prints the pages of a list, with the names of the columns before the first row. `what` names the entries in the
    /// remark that there are older ones.
    pub(super) async fn print<const N: usize>(
        &self,
        context: &Context,
        client: &Client,
        list: Target<'_>,
        names: [&str; N],
        rows: impl Fn(&Value) -> Vec<[String; N]>,
        what: &str,
    ) -> anyhow::Result<()> {
        let screen = context.screen();
        let limit = self.limit.map(|limit| limit.to_string());
        let mut cursor = self.cursor.clone();
        let mut has_heading = false;
        loop {
            let mut query = list.query.to_vec();
            query.extend(limit.as_deref().map(|limit| ("limit", limit)));
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let path = list.path;
            let query = &query;
            let page = client.get(Target { path, query }).await?;
            match (context.global.json, self.all) {
                (true, true) => screen.value_line(&page)?,
                (true, false) => screen.value(&page)?,
                (false, _) => table(&screen, names, rows(&page), has_heading)?,
            }
            has_heading = true;
            cursor = page["nextCursor"].as_str().map(str::to_owned);
            if cursor.is_none() || !self.all {
                break;
            }
        }
        if let Some(cursor) = cursor.filter(|_| !context.global.json) {
            screen.aside(format_args!(
                "older {what} exist: --cursor {cursor} shows the next page, --all shows all"
            ))?;
        }
        Ok(())
    }
}

fn table<const N: usize>(
    screen: &Screen,
    names: [&str; N],
    rows: Vec<[String; N]>,
    has_heading: bool,
) -> io::Result<()> {
    let heading = names.map(str::to_owned);
    let rows: Vec<_> = [heading].into_iter().chain(rows).map(Vec::from).collect();
    match has_heading {
        true => screen.table_part(&rows),
        false => screen.table(&rows),
    }
}
