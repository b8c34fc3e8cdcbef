//! Query parameters: parsing a re-serialised query gives the same result.

use forge_server::error::Code;
use forge_server::fuzzing::{Asked, cursor, query};
use url::form_urlencoded::Serializer;

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match query(&text) {
        Ok(asked) => assert_eq!(query(&spell(&asked)), Ok(asked)),
        Err(code) => assert_eq!(code, Code::InvalidRequest),
    }
}

fn spell(asked: &Asked) -> String {
    let mut query = Serializer::new(String::new());
    let status = asked
        .choice
        .map(|choice| ["dead", "pending"][usize::from(choice) - 1]);
    let pairs = [
        ("agent_id", asked.text.clone()),
        ("since", asked.time.map(|time| time.to_string())),
        ("limit", asked.number.map(|number| number.to_string())),
        ("status", status.map(str::to_owned)),
        ("all", asked.flag.then(|| "true".to_owned())),
        ("cursor", asked.cursor.map(cursor)),
    ];
    for (name, value) in pairs {
        if let Some(value) = value {
            query.append_pair(name, &value);
        }
    }
    query.finish()
}
