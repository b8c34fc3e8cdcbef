//! Cost estimate for validating a value: the number of times that subschemas are applied, counted without
//! validating. Knows which keywords apply subschemas, not their meaning.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Maximum number of subschemas applied to one value. Repeated references multiply; real schemas stay below a few
/// hundred.
const APPLIED: u64 = 10_000;
/// Maximum number of applications for validating one value; takes seconds.
const WORK: u64 = 10_000_000;
const REFERENCE_DEPTH: usize = 256;

/// A schema as a graph of subschemas that apply others.
#[derive(Debug)]
pub(super) struct Cost {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// Subschemas that apply to the same value.
    beside: Vec<usize>,
    /// True if `beside` is applied twice, because an `unevaluated*` keyword needs to know the covered members.
    again: bool,
    /// Subschemas that apply to members, in groups of which at most one applies to the same member.
    below: Vec<Vec<usize>>,
}

impl Cost {
    /// Builds the graph. Fails if one value alone would exceed the limit, or if references cannot be followed.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let mut names = Names::default();
        names.collect(schema, schema)?;
        let mut builder = Builder {
            root: schema,
            names,
            known: HashMap::new(),
            nodes: Vec::new(),
        };
        builder.node(schema, 0)?;
        let cost = Self {
            nodes: builder.nodes,
        };
        let none = vec![0; cost.nodes.len()];
        if cost.level(1, &none).into_iter().any(|cost| cost > APPLIED) {
            return Err(format!(
                "applies more than {APPLIED} subschemas to one value"
            ));
        }
        Ok(cost)
    }

    /// Returns true if validating this value stays within the limit.
    pub(super) fn allows(&self, value: &Value) -> bool {
        let mut counts = Vec::new();
        count(value, 0, &mut counts);
        let mut work: u64 = 0;
        let mut applied = vec![0; self.nodes.len()];
        for (level, values) in counts.into_iter().enumerate() {
            applied = self.level(u64::from(level == 0), &applied);
            let all = applied.first().copied().unwrap_or_default();
            work = work.saturating_add(all.saturating_mul(values));
        }
        work <= WORK
    }

    /// Number of applications to a value of this level, for each node that its ancestor on the first level is validated
    /// with; `above` holds the numbers of the level above.
    fn level(&self, own: u64, above: &[u64]) -> Vec<u64> {
        let mut applied = vec![None; self.nodes.len()];
        for index in 0..self.nodes.len() {
            self.apply(index, own, above, &mut applied);
        }
        applied.into_iter().flatten().collect()
    }

    fn apply(&self, index: usize, own: u64, above: &[u64], applied: &mut [Option<u64>]) -> u64 {
        if let Some(known) = applied[index] {
            return known;
        }
        // A schema that refers back to itself adds nothing for the same value.
        applied[index] = Some(own);
        let node = &self.nodes[index];
        let mut beside: u64 = 0;
        for next in &node.beside {
            beside = beside.saturating_add(self.apply(*next, own, above, applied));
        }
        if node.again {
            beside = beside.saturating_mul(2);
        }
        let mut sum = own.saturating_add(beside);
        for group in &node.below {
            let most = group.iter().map(|next| above[*next]).max();
            sum = sum.saturating_add(most.unwrap_or_default());
        }
        applied[index] = Some(sum);
        sum
    }
}

/// Counts the values on each level.
fn count(value: &Value, level: usize, counts: &mut Vec<u64>) {
    if counts.len() == level {
        counts.push(0);
    }
    counts[level] += 1;
    match value {
        Value::Array(items) => items.iter().for_each(|item| count(item, level + 1, counts)),
        Value::Object(members) => members
            .values()
            .for_each(|member| count(member, level + 1, counts)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Names of subschemas, other than their paths.
#[derive(Default)]
struct Names<'a> {
    anchors: HashMap<&'a str, Vec<&'a Value>>,
    /// True if the root has an id, so that a reference to it need not begin with `#`.
    root_id: bool,
}

impl<'a> Names<'a> {
    fn collect(&mut self, root: &'a Value, value: &'a Value) -> Result<(), String> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.collect(root, item)),
            Value::Object(members) => {
                let text = |name: &str| members.get(name).and_then(Value::as_str);
                for name in ["$anchor", "$dynamicAnchor"] {
                    if let Some(anchor) = text(name) {
                        self.anchors.entry(anchor).or_default().push(value);
                    }
                }
                let old = root["$schema"]
                    .as_str()
                    .is_some_and(|s| s.contains("draft-04"));
                let ids = [text("$id"), text("id").filter(|_| old)];
                for id in ids.into_iter().flatten() {
                    match id.strip_prefix('#') {
                        Some(anchor) => self.anchors.entry(anchor).or_default().push(value),
                        None if std::ptr::eq(root, value) => self.root_id = true,
                        None => return Err(format!("has the id {id:?} below its root")),
                    }
                }
                if text("$schema").is_some() && !std::ptr::eq(root, value) {
                    return Err("has $schema below its root".to_owned());
                }
                members
                    .values()
                    .try_for_each(|member| self.collect(root, member))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }
}

struct Builder<'a> {
    root: &'a Value,
    names: Names<'a>,
    /// Node indexes by address: the walk only visits values inside `root`, which does not move.
    known: HashMap<*const Value, usize>,
    nodes: Vec<Node>,
}

impl<'a> Builder<'a> {
    fn node(&mut self, schema: &'a Value, depth: usize) -> Result<usize, String> {
        if let Some(&index) = self.known.get(&std::ptr::from_ref(schema)) {
            return Ok(index);
        }
        if depth > REFERENCE_DEPTH {
            return Err(format!("nests references more than {REFERENCE_DEPTH} deep"));
        }
        let index = self.nodes.len();
        self.nodes.push(Node::default());
        self.known.insert(std::ptr::from_ref(schema), index);
        if let Some(keywords) = schema.as_object() {
            let mut targets = self.referenced(keywords)?;
            targets.extend(beside(keywords));
            let node = Node {
                beside: self.all(targets, depth)?,
                again: ["unevaluatedProperties", "unevaluatedItems"]
                    .iter()
                    .any(|name| keywords.contains_key(*name)),
                below: below(keywords)
                    .into_iter()
                    .map(|group| self.all(group, depth))
                    .collect::<Result<_, _>>()?,
            };
            for waiting in ["$defs", "definitions"] {
                let schemas = keywords.get(waiting).and_then(Value::as_object);
                for schema in schemas.into_iter().flat_map(Map::values) {
                    self.node(schema, depth + 1)?;
                }
            }
            self.nodes[index] = node;
        }
        Ok(index)
    }

    fn all(&mut self, schemas: Vec<&'a Value>, depth: usize) -> Result<Vec<usize>, String> {
        let nodes = schemas
            .into_iter()
            .map(|schema| self.node(schema, depth + 1));
        nodes.collect()
    }

    /// Targets of references inside the document; the compiler refuses references without a target.
    fn referenced(&self, keywords: &'a Map<String, Value>) -> Result<Vec<&'a Value>, String> {
        let mut targets = Vec::new();
        for name in ["$ref", "$dynamicRef", "$recursiveRef"] {
            let Some(reference) = keywords.get(name).and_then(Value::as_str) else {
                continue;
            };
            match reference.strip_prefix('#').map(unescaped) {
                Some(place) if place.is_empty() || place.starts_with('/') => {
                    targets.extend(self.root.pointer(&place));
                }
                Some(anchor) => {
                    targets.extend(
                        self.names
                            .anchors
                            .get(anchor.as_str())
                            .into_iter()
                            .flatten(),
                    );
                }
                None if self.names.root_id => {
                    return Err(format!("has the reference {reference:?}; begin it with #"));
                }
                None => {}
            }
        }
        Ok(targets)
    }
}

/// Decodes the percent-encoding of a fragment.
fn unescaped(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%')
            .then(|| std::str::from_utf8(after.get(..2)?).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Subschemas that apply to the same value.
fn beside(keywords: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let lists = ["allOf", "anyOf", "oneOf"].into_iter();
    let maps = ["dependentSchemas", "dependencies"].into_iter();
    let single = ["not", "if", "then", "else"].into_iter();
    lists
        .filter_map(|name| keywords.get(name)?.as_array())
        .flatten()
        .chain(
            maps.filter_map(|name| keywords.get(name)?.as_object())
                .flat_map(Map::values),
        )
        .chain(single.filter_map(|name| keywords.get(name)))
}

/// Subschemas that apply to members, grouped as in `Node::below`.
fn below(keywords: &Map<String, Value>) -> Vec<Vec<&Value>> {
    let members = |name: &str| keywords.get(name).and_then(Value::as_object);
    let mut groups = Vec::new();
    if let Some(properties) = members("properties") {
        groups.push(properties.values().collect());
    }
    for name in ["prefixItems", "items"] {
        if let Some(items) = keywords.get(name).and_then(Value::as_array) {
            groups.push(items.iter().collect());
        }
    }
    let patterns = members("patternProperties");
    let single = [
        "items",
        "additionalItems",
        "additionalProperties",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
    .into_iter();
    let alone = patterns
        .into_iter()
        .flat_map(Map::values)
        .chain(single.filter_map(|name| keywords.get(name)));
    groups.extend(alone.map(|schema| vec![schema]));
    groups
}

#[cfg(test)]
mod tests;
