//! Check of query plans.

use rusqlite::{Connection, params_from_iter};

use super::schema;

/// Asserts that each question begins with this search, sorts nothing and scans nothing.
pub(super) fn check(questions: &[(&str, &str)]) {
    let connection = Connection::open_in_memory().unwrap();
    schema::create(&connection).unwrap();
    for (sql, expected) in questions {
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        let mut statement = connection.prepare(&explain).unwrap();
        let nulls = vec![None::<i64>; statement.parameter_count()];
        let plan = statement.query_map(params_from_iter(nulls), |row| row.get(3));
        let plan: Vec<String> = plan.unwrap().map(Result::unwrap).collect();
        let first = plan.iter().find(|step| step.starts_with("SEARCH"));
        assert_eq!(first, Some(&format!("SEARCH {expected}")), "{sql}");
        for costly in ["TEMP B-TREE", "SCAN"] {
            let is_costly = plan.iter().any(|step| step.contains(costly));
            assert!(!is_costly, "{sql}: {plan:?}");
        }
    }
}
