//! The parts that the bytes of a SQLite database file belong to, by SQLite's file format.

use rusqlite::Connection;

pub(super) const PAGE: usize = 4096;

/// A part of a file, by what a wrong byte there means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    FileHeader,
    PageHeader,
    /// The header of a page without cells, which is the only one of its tree.
    EmptyPageHeader,
    CellPointer,
    /// Child pages, lengths and row ids at the beginning of a cell.
    CellHeader,
    /// Types and lengths of a row's columns.
    RecordHeader,
    /// Columns of an index.
    IndexValue,
    /// Columns of a table without row ids, its key among them.
    KeyedValue,
    /// Columns of any other table.
    RowValue,
    OverflowPointer,
    /// The end of a long row.
    OverflowValue,
    FreeList,
    /// Bytes of a page that are not in use.
    Unused,
}

/// A table's tree or an index's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tree {
    Rows,
    Keyed,
    Index,
}

/// The part that each byte belongs to. The file has no WAL.
pub(super) fn parts(file: &std::path::Path) -> Vec<Part> {
    let bytes = std::fs::read(file).unwrap();
    let connection = Connection::open(file).unwrap();
    let roots = "SELECT type, rootpage, sql LIKE '%WITHOUT ROWID%' FROM sqlite_schema";
    let mut roots = connection.prepare(roots).unwrap();
    let mut trees = vec![(1, Tree::Rows)];
    let found = roots.query_map([], |row| {
        let is_keyed: Option<bool> = row.get(2)?;
        let tree = match (row.get::<_, String>(0)?.as_str(), is_keyed) {
            ("index", _) => Tree::Index,
            (_, Some(true)) => Tree::Keyed,
            _ => Tree::Rows,
        };
        Ok((row.get::<_, usize>(1)?, tree))
    });
    trees.extend(found.unwrap().map(Result::unwrap));
    let mut map = Map {
        parts: vec![Part::Unused; bytes.len()],
        bytes,
    };
    map.mark(0, 100, Part::FileHeader);
    map.free_list();
    for (root, tree) in trees {
        map.page(root, tree);
    }
    map.parts
}

struct Map {
    bytes: Vec<u8>,
    parts: Vec<Part>,
}

impl Map {
    fn mark(&mut self, at: usize, length: usize, part: Part) {
        self.parts[at..at + length].fill(part);
    }

    fn number(&self, at: usize, length: usize) -> usize {
        let bytes = &self.bytes[at..at + length];
        bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    }

    /// A variable-length integer and the position behind it.
    fn varint(&self, at: usize) -> (usize, usize) {
        let mut value = 0;
        for length in 1..=9 {
            let byte = usize::from(self.bytes[at + length - 1]);
            if length == 9 {
                return (value << 8 | byte, at + 9);
            }
            value = value << 7 | byte & 0x7f;
            if byte < 0x80 {
                return (value, at + length);
            }
        }
        unreachable!("nine bytes are the longest")
    }

    fn free_list(&mut self) {
        let mut trunk = self.number(32, 4);
        while trunk != 0 {
            let at = (trunk - 1) * PAGE;
            let leaves = self.number(at + 4, 4);
            self.mark(at, 8 + 4 * leaves, Part::FreeList);
            trunk = self.number(at, 4);
        }
    }

    fn page(&mut self, page: usize, tree: Tree) {
        let base = (page - 1) * PAGE;
        let header = if page == 1 { 100 } else { base };
        let is_leaf = self.bytes[header] & 8 != 0;
        let length = if is_leaf { 8 } else { 12 };
        let cells = self.number(header + 3, 2);
        let part = match cells {
            0 => Part::EmptyPageHeader,
            _ => Part::PageHeader,
        };
        self.mark(header, length, part);
        if !is_leaf {
            self.page(self.number(header + 8, 4), tree);
        }
        self.mark(header + length, 2 * cells, Part::CellPointer);
        for cell in 0..cells {
            let at = base + self.number(header + length + 2 * cell, 2);
            self.cell(at, is_leaf, tree);
        }
    }

    fn cell(&mut self, at: usize, is_leaf: bool, tree: Tree) {
        let mut end = at;
        if !is_leaf {
            end += 4;
            self.page(self.number(at, 4), tree);
        }
        if tree == Tree::Rows && !is_leaf {
            let (_, end) = self.varint(end);
            return self.mark(at, end - at, Part::CellHeader);
        }
        let (payload, behind) = self.varint(end);
        end = behind;
        if tree == Tree::Rows {
            (_, end) = self.varint(end);
        }
        self.mark(at, end - at, Part::CellHeader);
        let local = local_bytes(payload, tree);
        let value = match tree {
            Tree::Rows => Part::RowValue,
            Tree::Keyed => Part::KeyedValue,
            Tree::Index => Part::IndexValue,
        };
        self.mark(end, local, value);
        let (record_header, _) = self.varint(end);
        self.mark(end, record_header.min(local), Part::RecordHeader);
        if local < payload {
            self.mark(end + local, 4, Part::OverflowPointer);
            self.overflow(self.number(end + local, 4), payload - local);
        }
    }

    fn overflow(&mut self, mut page: usize, mut left: usize) {
        while page != 0 {
            let at = (page - 1) * PAGE;
            self.mark(at, 4, Part::OverflowPointer);
            let here = left.min(PAGE - 4);
            self.mark(at + 4, here, Part::OverflowValue);
            left -= here;
            page = self.number(at, 4);
        }
    }
}

/// Bytes of a payload that are on the b-tree page itself.
fn local_bytes(payload: usize, tree: Tree) -> usize {
    let most = match tree {
        Tree::Rows => PAGE - 35,
        Tree::Keyed | Tree::Index => (PAGE - 12) * 64 / 255 - 23,
    };
    if payload <= most {
        return payload;
    }
    let least = (PAGE - 12) * 32 / 255 - 23;
    let wanted = least + (payload - least) % (PAGE - 4);
    if wanted <= most { wanted } else { least }
}
