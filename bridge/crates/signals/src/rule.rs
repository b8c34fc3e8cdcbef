//! Rules file: checked by its JSON Schema, with all faults at once, and compiled. A budget is two rules.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use forge_base::json;
use forge_store::record::Severity;

use crate::FieldProblem;
use crate::money::MICROS;
use crate::window::Span;

/// JSON Schema of a rules file. It is executed, too.
pub const SCHEMA: &str = include_str!("../../../schemas/signal-rules.schema.json");
/// Maximum size of a rules file.
pub const RULES_BYTES: usize = 1024 * 1024;

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let schema = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    jsonschema::validator_for(&schema).expect("the schema is a JSON Schema")
});

/// Rules in force, in the order of the file, budgets last.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub rules: Vec<Rule>,
    /// Rules, then budgets as in the file, those that are not enabled too.
    pub entries: Vec<Entry>,
}

/// Rule or budget of the file.
#[derive(Clone, Debug)]
pub struct Entry {
    pub file: Value,
    /// Its rule, that at the limit of a budget; `None` if it is not enabled.
    pub(crate) rule: Option<Rule>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub id: String,
    pub scope: Scope,
    pub window: Span,
    pub action: Action,
    pub message: String,
    pub severity: Severity,
    /// True to cancel running executions, too.
    pub cancel_running: bool,
    /// All have to hold.
    pub(crate) tests: Vec<Test>,
}

/// Records that a rule adds up: those of one user, of one team, and so on.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    Org,
    Team,
    Project,
    User,
    Session,
}

impl Scope {
    /// All scopes, in the order of their numbers.
    pub(crate) const ALL: [Scope; 5] = [
        Scope::Org,
        Scope::Team,
        Scope::Project,
        Scope::User,
        Scope::Session,
    ];
}

/// Consequence of a rule, from the least to the most restrictive.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Allow,
    Notify,
    Block,
}

/// Comparison of one field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    Number(NumberField, NumberTest),
    Text(TextField, TextTest),
}

/// Sum of the window, or number of the record.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberField {
    CostUsd,
    TokensIn,
    TokensOut,
    Tokens,
    Signals,
    Errors,
    LatencyMs,
    DriftScore,
    Confidence,
}

/// Text of the record.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TextField {
    Adapter,
    Model,
    Hook,
    Type,
    Tool,
    ProjectId,
    UserId,
    ErrorCode,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NumberTest {
    Order(Order, f64),
    In(Vec<f64>),
    NotIn(Vec<f64>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TextTest {
    In(Vec<String>),
    NotIn(Vec<String>),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    Gt,
    Gte,
    Lt,
    Lte,
    Eq,
}

/// A file that matches the schema.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    rules: Vec<RuleEntry>,
    #[serde(default)]
    budgets: Vec<Budget>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuleEntry {
    id: String,
    name: Option<String>,
    enabled: Option<bool>,
    scope: Scope,
    window: Span,
    condition: Map<String, Value>,
    action: Action,
    message: Option<String>,
    severity: Option<Severity>,
    #[serde(default)]
    cancel_running: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Budget {
    id: String,
    scope: Scope,
    window: Span,
    limit_usd: Option<f64>,
    limit_tokens: Option<f64>,
    warn_percent: Option<f64>,
    on_exceed: Option<Action>,
}

impl Rules {
    /// Reads the bytes of a rules file.
    pub fn read(bytes: &[u8]) -> Result<Self, Vec<FieldProblem>> {
        if bytes.len() > RULES_BYTES {
            return Err(FieldProblem::whole(format!(
                "a rules file has at most {RULES_BYTES} bytes"
            )));
        }
        let tree = json::parse(bytes).map_err(|error| FieldProblem::whole(error.to_string()))?;
        let mut problems: Vec<_> = VALIDATOR
            .iter_errors(&tree)
            .map(|error| fault(&error))
            .collect();
        problems.extend(same_ids(&tree));
        problems.extend(limits(&tree));
        if !problems.is_empty() {
            return Err(problems);
        }
        let file =
            File::deserialize(&tree).map_err(|error| FieldProblem::whole(error.to_string()))?;
        let own: Vec<_> = file.rules.into_iter().map(RuleEntry::compiled).collect();
        let budgets: Vec<_> = file.budgets.iter().map(Budget::rules).collect();
        let limits = budgets.iter().map(|[_, limit]| Some(limit.clone()));
        let deciding = own.iter().cloned().chain(limits);
        let written = ["rules", "budgets"].map(|list| tree[list].as_array().into_iter().flatten());
        let entries = written.into_iter().flatten().zip(deciding);
        let entries = entries.map(|(file, rule)| Entry {
            file: file.clone(),
            rule,
        });
        let entries = entries.collect();
        let rules = own.into_iter().flatten();
        Ok(Self {
            rules: rules.chain(budgets.into_iter().flatten()).collect(),
            entries,
        })
    }
}

fn fault(error: &jsonschema::ValidationError<'_>) -> FieldProblem {
    FieldProblem::new(shown(error.instance_path().as_str()), error.to_string())
}

/// `rules[2].window` for `/rules/2/window`.
fn shown(pointer: &str) -> String {
    let mut path = String::new();
    for segment in pointer.split('/').skip(1) {
        match segment.parse::<usize>() {
            Ok(index) => path.push_str(&format!("[{index}]")),
            Err(_) if path.is_empty() => path.push_str(segment),
            Err(_) => path.extend([".", segment]),
        }
    }
    path
}

/// Ids that are used twice. A budget's two rules share its id, so budgets and rules must not.
fn same_ids(tree: &Value) -> Vec<FieldProblem> {
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for list in ["rules", "budgets"] {
        let entries = tree[list].as_array().into_iter().flatten();
        for (index, id) in entries.enumerate().map(|(index, one)| (index, &one["id"])) {
            if id.as_str().is_some_and(|id| !seen.insert(id)) {
                problems.push(FieldProblem::new(
                    format!("{list}[{index}].id"),
                    format!("there is another rule or budget {id}"),
                ));
            }
        }
    }
    problems
}

/// Budgets without one limit.
fn limits(tree: &Value) -> Vec<FieldProblem> {
    let budgets = tree["budgets"].as_array().into_iter().flatten();
    let wrong = budgets.enumerate().filter(|(_, budget)| {
        budget.is_object()
            && budget.get("limitUsd").is_some() == budget.get("limitTokens").is_some()
    });
    wrong
        .map(|(index, _)| {
            let message = "needs limitUsd or limitTokens, and not both";
            FieldProblem::new(format!("budgets[{index}]"), message)
        })
        .collect()
}

impl RuleEntry {
    /// `None` if the rule is not enabled.
    fn compiled(self) -> Option<Rule> {
        if self.enabled == Some(false) {
            return None;
        }
        let tests = self.condition.iter().flat_map(|(field, operations)| {
            let operations = operations.as_object().into_iter().flatten();
            operations.map(move |(operator, value)| Test::new(field, operator, value))
        });
        let tests = tests.collect();
        let label = self.name.as_deref().unwrap_or(&self.id);
        let message = self.message.unwrap_or_else(|| match self.action {
            Action::Block => format!("Blocked by the rule {label:?}."),
            Action::Notify => format!("The rule {label:?} holds."),
            Action::Allow => format!("Allowed by the rule {label:?}."),
        });
        Some(Rule {
            scope: self.scope,
            window: self.window,
            action: self.action,
            severity: self.severity.unwrap_or(match self.action {
                Action::Block => Severity::Critical,
                Action::Notify => Severity::Warning,
                Action::Allow => Severity::Info,
            }),
            cancel_running: self.cancel_running,
            message,
            tests,
            id: self.id,
        })
    }
}

impl Budget {
    /// The warning, and what happens at the limit.
    fn rules(&self) -> [Rule; 2] {
        let (field, limit, what) = match (self.limit_usd, self.limit_tokens) {
            (Some(limit), _) => (NumberField::CostUsd, (limit * MICROS).round(), "Cost"),
            (None, limit) => (NumberField::Tokens, limit.unwrap_or_default(), "Token"),
        };
        let percent = self.warn_percent.unwrap_or(80.0);
        let action = self.on_exceed.unwrap_or(Action::Block);
        let rule = |least: f64, action, severity, message| Rule {
            id: self.id.clone(),
            scope: self.scope,
            window: self.window,
            action,
            message,
            severity,
            cancel_running: false,
            tests: vec![Test::Number(field, NumberTest::Order(Order::Gte, least))],
        };
        let consumed =
            format!("{what} budget {percent}% consumed — consider wrapping up this session.");
        let exceeded = format!("{what} budget {:?} is used up.", self.id);
        let warning = limit * percent / 100.0;
        [
            rule(warning, Action::Notify, Severity::Warning, consumed),
            rule(limit, action, Severity::Critical, exceeded),
        ]
    }
}

impl Test {
    /// The schema has checked field, operator and value.
    fn new(field: &str, operator: &str, value: &Value) -> Self {
        let name = Value::from(field);
        match TextField::deserialize(&name) {
            Ok(field) => Test::Text(field, TextTest::new(operator, value)),
            Err(_) => {
                let field = NumberField::deserialize(&name);
                let field = field.expect("the schema knows the same fields");
                Test::Number(field, NumberTest::new(field, operator, value))
            }
        }
    }
}

impl TextTest {
    fn new(operator: &str, value: &Value) -> Self {
        let texts = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        let texts = texts.iter().filter_map(Value::as_str).map(str::to_owned);
        match operator {
            "not_in" => TextTest::NotIn(texts.collect()),
            // `eq` is an `in` of one.
            _ => TextTest::In(texts.collect()),
        }
    }
}

impl NumberTest {
    /// Amounts of money become micro-dollars.
    fn new(field: NumberField, operator: &str, value: &Value) -> Self {
        let number = |value: &Value| {
            let number = value.as_f64().unwrap_or_default();
            match field {
                NumberField::CostUsd => (number * MICROS).round(),
                _ => number,
            }
        };
        let numbers = || value.as_array().into_iter().flatten().map(number).collect();
        match operator {
            "in" => NumberTest::In(numbers()),
            "not_in" => NumberTest::NotIn(numbers()),
            order => {
                let order = Order::deserialize(&Value::from(order));
                let order = order.expect("the schema knows the same operators");
                NumberTest::Order(order, number(value))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(tree: &Value) -> Result<Rules, Vec<FieldProblem>> {
        Rules::read(tree.to_string().as_bytes())
    }

    fn rule() -> Value {
        json!({
            "id": "r", "scope": "user", "window": "1d", "action": "block",
            "condition": {"cost_usd": {"gte": 5}, "model": {"in": ["a", "b"]}},
        })
    }

    #[test]
    fn a_rule_and_a_budget_are_compiled() {
        let budget = json!({"id": "b", "scope": "team", "window": "month", "limitUsd": 10});
        let rules = read(&json!({"version": 1, "rules": [rule()], "budgets": [budget]})).unwrap();
        let [own, warning, limit] = rules.rules.as_slice() else {
            panic!("{rules:?}");
        };
        assert_eq!((own.severity, own.tests.len()), (Severity::Critical, 2));
        assert_eq!(own.message, "Blocked by the rule \"r\".");
        assert_eq!(
            (warning.action, limit.action),
            (Action::Notify, Action::Block)
        );
        assert_eq!(
            warning.message,
            "Cost budget 80% consumed — consider wrapping up this session."
        );
        let least =
            |amount| Test::Number(NumberField::CostUsd, NumberTest::Order(Order::Gte, amount));
        assert_eq!(warning.tests, [least(8_000_000.0)]);
        assert_eq!(limit.tests, [least(10_000_000.0)]);
        let off = json!({"version": 1, "rules": [{"id": "r", "enabled": false, "scope": "org", "window": "1h",
            "action": "allow", "condition": {"signals": {"gt": 0}}}]});
        assert!(read(&off).unwrap().rules.is_empty());
    }

    #[test]
    fn each_fault_is_told_with_its_path() {
        let faults = |change: fn(&mut Value)| {
            let mut rule = rule();
            change(&mut rule);
            let found = read(&json!({"version": 1, "rules": [rule]})).unwrap_err();
            found.into_iter().map(|one| one.field).collect::<Vec<_>>()
        };
        assert_eq!(
            faults(|rule| rule["window"] = "2h".into()),
            ["rules[0].window"]
        );
        assert_eq!(
            faults(|rule| rule["scope"] = "all".into()),
            ["rules[0].scope"]
        );
        assert_eq!(faults(|rule| rule["extra"] = 1.into()), ["rules[0]"]);
        assert_eq!(
            faults(|rule| rule["condition"] = json!({})),
            ["rules[0].condition"]
        );
        let unfit = |rule: &mut Value| rule["condition"] = json!({"model": {"gt": 1}});
        assert_eq!(faults(unfit), ["rules[0].condition.model"]);
        let unfit = |rule: &mut Value| rule["condition"] = json!({"tokens": {"eq": "1"}});
        assert_eq!(faults(unfit), ["rules[0].condition.tokens.eq"]);

        let all = json!({
            "version": 2, "rules": [rule(), rule(), {"id": "x"}],
            "budgets": [
                {"id": "r", "scope": "org", "window": "1h", "limitUsd": 1, "limitTokens": 1},
                {"id": "c", "scope": "org", "window": "1h"},
            ],
        });
        let found: BTreeSet<String> = read(&all)
            .unwrap_err()
            .into_iter()
            .map(|one| one.field)
            .collect();
        let expected = [
            "budgets[0]",
            "budgets[0].id",
            "budgets[1]",
            "rules[1].id",
            "rules[2]",
            "version",
        ];
        assert_eq!(Vec::from_iter(found), expected);
        assert!(Rules::read(b"{").is_err() && Rules::read(&vec![b' '; RULES_BYTES + 1]).is_err());
    }
}
