//! Writes of several tables as one statement, because each statement is planned, answered and read apart.

use super::statement::{Param, Statement, array};
use super::table::{Fields, Table, columns, names};

/// Writes that are carried out in their order. All of them see the rows from before the first one, so none may write a row
/// that another one has written.
#[derive(Default)]
pub(crate) struct Script<'a> {
    writes: Vec<String>,
    params: Vec<Param<'a>>,
}

/// Rows that are parameters.
pub(crate) struct Values {
    /// Values of the columns. Those of an only row are the parameters: to plan and read arrays of one takes twice as long.
    pub(crate) columns: Vec<String>,
    /// Of several arrays, `unnest` is a form of `FROM` and not a name that is looked up.
    source: Option<String>,
}

impl Values {
    /// The clause `FROM` in which the values are found, besides another table.
    pub(crate) fn from(&self, other: Option<&str>) -> String {
        let all: Vec<_> = other.into_iter().chain(self.source.as_deref()).collect();
        match all.is_empty() {
            true => String::new(),
            false => format!("FROM {}", all.join(", ")),
        }
    }
}

impl<'a> Script<'a> {
    /// Inserts rows, in the order in which they are given.
    pub(crate) fn insert<F: Fields>(&mut self, table: &str, rows: &[&'a F]) {
        self.insert_or(table, rows, "");
    }

    /// Inserts rows, with a clause such as `ON CONFLICT`.
    pub(crate) fn insert_or<F: Fields>(&mut self, table: &str, rows: &[&'a F], clause: &str) {
        let (columns, values) = (columns::<F>(""), self.values(rows));
        let (from, after) = (values.from(None), self.after());
        let values = values.columns.join(", ");
        self.writes.push(format!(
            "INSERT INTO {table} ({columns}) SELECT {values} {from} WHERE {after} {clause}"
        ));
    }

    /// Inserts rows after a function, such as one that locks.
    pub(crate) fn insert_after<F: Fields>(&mut self, function: &str, table: &str, rows: &[&'a F]) {
        let (columns, values) = (columns::<F>(""), self.values(rows));
        let (from, after) = (values.from(Some(&format!("{function} AS l"))), self.after());
        let values = values.columns.join(", ");
        self.writes.push(format!(
            "INSERT INTO {table} ({columns}) SELECT {values} {from} WHERE {after}"
        ));
    }

    /// Replaces all columns of the rows with these keys.
    pub(crate) fn update<T: Table>(&mut self, rows: &[&'a T]) {
        let (table, names, values) = (T::NAME, names::<T>(), self.values(rows));
        let (from, after) = (values.from(None), self.after());
        let columns = names.iter().zip(&values.columns);
        let set = columns.map(|(name, value)| format!("{name} = {value}"));
        let set = set.skip(1).collect::<Vec<_>>().join(", ");
        let (name, key) = (names[0], &values.columns[0]);
        self.writes.push(format!(
            "UPDATE {table} AS t SET {set} {from} WHERE t.{name} = {key} AND {after}"
        ));
    }

    /// Deletes the rows with these keys.
    pub(crate) fn delete<T: Table>(&mut self, keys: impl IntoIterator<Item = &'a T::Key>)
    where
        T::Key: 'a,
    {
        let (table, key) = (T::NAME, names::<T>()[0]);
        let (keys, after) = (self.param(array(keys)), self.after());
        self.writes.push(format!(
            "DELETE FROM {table} WHERE {key} = ANY({keys}) AND {after}"
        ));
    }

    /// Adds a parameter and returns its name.
    pub(crate) fn param(&mut self, param: Param<'a>) -> String {
        self.params.push(param);
        format!("${}", self.params.len())
    }

    /// Adds rows as parameters.
    pub(crate) fn values<F: Fields>(&mut self, rows: &[&'a F]) -> Values {
        let (first, names) = (self.params.len() + 1, names::<F>());
        F::send(rows, &mut self.params);
        let numbers = (first..=self.params.len()).map(|number| format!("${number}"));
        let numbers: Vec<_> = numbers.collect();
        match rows {
            [_] => Values {
                columns: numbers,
                source: None,
            },
            _ => Values {
                columns: names.iter().map(|name| format!("n.{name}")).collect(),
                source: Some(format!(
                    "unnest({}) AS n({})",
                    numbers.join(", "),
                    names.join(", ")
                )),
            },
        }
    }

    /// Condition that is looked at after the writes so far, which are carried out for it.
    pub(crate) fn after(&self) -> String {
        match self.writes.len() {
            0 => "true".to_owned(),
            last => format!("(SELECT pg_catalog.count(*) FROM w{last}) IS NOT NULL"),
        }
    }

    /// The statement, if there is a write.
    pub(crate) fn statement(mut self) -> Option<Statement<'a>> {
        let last = self.writes.pop()?;
        Some(self.with(Vec::new(), &last))
    }

    /// The writes, followed by further `WITH` queries and a query.
    pub(crate) fn with(self, further: Vec<String>, query: &str) -> Statement<'a> {
        let writes = self.writes.iter().zip(1..);
        let writes = writes.map(|(write, number)| format!("w{number} AS ({write} RETURNING 1)"));
        let all: Vec<_> = writes.chain(further).collect();
        let sql = match all.is_empty() {
            true => query.to_owned(),
            false => format!("WITH {} {query}", all.join(", ")),
        };
        Statement::new(sql, self.params)
    }
}
