//! The table "Reach" of `docs/security.md`: each cell is a right of its party, or links to the test that shows it.

use std::collections::BTreeMap;
use std::fs;

use super::harness::library::root;

/// Cells without a test: the party and the columns.
const UNTESTED: [(&str, &[&str]); 1] = [("caller, scope `read`", &["network", "disk"])];
/// Beginnings of cells that are rights, or those of another row.
const RIGHTS: [&str; 2] = ["yes", "as the agent of its user"];

/// Cell of the table.
struct Cell {
    party: String,
    column: String,
    text: String,
}

fn cells(section: &str) -> Vec<Cell> {
    let split = |line: &str| -> Vec<String> {
        let cells = line.trim().trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let mut rows = section.lines().filter(|line| line.starts_with('|'));
    let head = split(rows.next().unwrap());
    let mut found = Vec::new();
    for row in rows.skip(1).map(split) {
        assert_eq!(row.len(), head.len(), "{row:?}");
        for (column, text) in head.iter().zip(&row).skip(1) {
            found.push(Cell {
                party: row[0].clone(),
                column: column.clone(),
                text: text.clone(),
            });
        }
    }
    found
}

/// Files of the links of the section and the names of their tests, by label.
fn links(section: &str) -> BTreeMap<&str, (&str, &str)> {
    section
        .lines()
        .filter_map(|line| {
            let (label, target) = line.strip_prefix('[')?.split_once("]: ")?;
            let (file, name) = target.split_once(' ')?;
            Some((label, (file, name.trim_matches('"'))))
        })
        .collect()
}

#[test]
fn each_cell_is_a_right_or_links_to_its_test() {
    let page = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let (_, section) = page.split_once("\n## Reach\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let (cells, links) = (cells(section), links(section));
    assert!(cells.len() > 50 && links.len() > 10);
    for (label, (file, name)) in &links {
        let test = fs::read_to_string(root().join("docs").join(file)).unwrap();
        let declared = test.split_once(&format!("fn {name}()"));
        let (before, _) = declared.unwrap_or_else(|| panic!("{label}: {file} has no test {name}"));
        let above = before.rsplit("\n\n").next().unwrap();
        assert!(above.contains("test"), "{label}: {name} is no test");
        assert!(
            section.contains(&format!("][{label}]")),
            "{label} is not used"
        );
    }
    for Cell {
        party,
        column,
        text,
    } in &cells
    {
        let is_right = RIGHTS.iter().any(|right| text.starts_with(right));
        let labels = text.split("][").skip(1);
        let mut labels = labels
            .map(|rest| rest.split(']').next().unwrap())
            .peekable();
        let is_linked = labels.peek().is_some();
        assert!(
            labels.all(|label| links.contains_key(label)),
            "{party}, {column}: a link of {text:?} leads nowhere"
        );
        let is_listed = UNTESTED
            .iter()
            .any(|(of, columns)| of == party && columns.contains(&column.as_str()));
        assert_eq!(
            is_right || is_linked,
            !is_listed,
            "{party}, {column}: {text:?} needs a link to its test, or is listed above although it has one"
        );
    }
}
