//! Identity of a caller, as policies read it and as services are given it.

mod jwt;
mod key_set;
mod verifier;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub(crate) use jwt::Tokens;
pub use jwt::{JwtConfig, JwtError, Refusal};

/// Caller of an entry, in the form that the protocol gives it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Identity {
    User(Box<User>),
    /// The bridge itself; never a caller over HTTP.
    System {
        #[serde(default, rename = "tenantId", skip_serializing_if = "Option::is_none")]
        tenant_id: Option<String>,
    },
    Anonymous,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    pub user_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// Main role, also the first of `roles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    pub roles: Vec<String>,
    /// Sorted, without doubles.
    pub permissions: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<IssuedToken>,
    pub claims: Map<String, Value>,
}

/// Origin of an identity.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuedToken {
    pub issuer: String,
    pub audience: String,
    pub subject: String,
    pub auth_provider: String,
}

/// Identity of the callers with a bridge token (`identity` of an `[[auth.token]]`).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenIdentity {
    pub user_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The first one is the main role.
    #[serde(default)]
    pub roles: Vec<String>,
    #[serde(default)]
    pub permissions: Vec<String>,
}

impl From<&TokenIdentity> for Identity {
    fn from(token: &TokenIdentity) -> Self {
        Identity::User(Box::new(User {
            user_id: token.user_id.clone(),
            tenant_id: token.tenant_id.clone(),
            role: token.roles.first().cloned(),
            roles: token.roles.clone(),
            permissions: sorted(token.permissions.clone()),
            token: None,
            claims: Map::new(),
        }))
    }
}

impl Identity {
    /// Identity that `x-forge-…` headers state: a user if they name one with a role, a permission or a claim, else
    /// anonymous. `header` returns the value of a header.
    pub fn of_headers<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let text = |name: &str| {
            let value = header(name).map(str::trim);
            value.filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let list = |name: &str| header(name).map(list).unwrap_or_default();
        let mut claims = header("x-forge-claims")
            .and_then(|value| serde_json::from_str::<Map<String, Value>>(value).ok())
            .unwrap_or_default();
        for (name, claim) in ORGANIZATION {
            if let Some(value) = text(name) {
                claims.insert(claim.to_owned(), value.into());
            }
        }
        let mut roles: Vec<String> = text("x-forge-role").into_iter().collect();
        for role in list("x-forge-roles") {
            if !roles.contains(&role) {
                roles.push(role);
            }
        }
        let permissions = sorted(list("x-forge-permissions"));
        let stated = !(roles.is_empty() && permissions.is_empty() && claims.is_empty());
        let Some(user_id) = text("x-forge-user-id").filter(|_| stated) else {
            return Identity::Anonymous;
        };
        let organization = claims.get(ORGANIZATION[0].1).and_then(Value::as_str);
        Identity::User(Box::new(User {
            tenant_id: text("x-forge-tenant-id").or(organization.map(str::to_owned)),
            role: roles.first().cloned(),
            roles,
            permissions,
            token: Some(IssuedToken {
                issuer: "dev-headers".to_owned(),
                audience: "dev".to_owned(),
                subject: user_id.clone(),
                auth_provider: "dev-headers".to_owned(),
            }),
            user_id,
            claims,
        }))
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Identity::User(_) => "user",
            Identity::System { .. } => "system",
            Identity::Anonymous => "anonymous",
        }
    }

    pub fn tenant(&self) -> Option<&str> {
        match self {
            Identity::User(user) => user.tenant_id.as_deref(),
            Identity::System { tenant_id } => tenant_id.as_deref(),
            Identity::Anonymous => None,
        }
    }

    /// Headers by which a service is given this identity. Values of lists and maps are JSON.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![("x-forge-auth-kind", self.kind().to_owned())];
        let tenant = self.tenant().map(str::to_owned);
        let Identity::User(user) = self else {
            headers.extend(tenant.map(|tenant| ("x-forge-tenant-id", tenant)));
            return headers;
        };
        headers.push(("x-forge-user-id", user.user_id.clone()));
        headers.extend(tenant.map(|tenant| ("x-forge-tenant-id", tenant)));
        headers.extend(user.role.clone().map(|role| ("x-forge-role", role)));
        headers.push(("x-forge-roles", ascii_json(&json!(user.roles))));
        headers.push(("x-forge-permissions", ascii_json(&json!(user.permissions))));
        headers.push(("x-forge-claims", ascii_json(&json!(user.claims))));
        for (name, claim) in ORGANIZATION {
            let value = user.claims.get(claim).and_then(Value::as_str);
            headers.extend(value.map(|value| (name, value.to_owned())));
        }
        headers
    }
}

/// Headers that carry a claim, with the name of the claim.
const ORGANIZATION: [(&str, &str); 2] = [
    ("x-forge-organization-id", "organization_id"),
    (
        "x-forge-organization-membership-id",
        "organization_membership_id",
    ),
];

/// Items of a JSON array of texts, or of a list with commas.
fn list(value: &str) -> Vec<String> {
    let items: Vec<String> = match serde_json::from_str::<Vec<Value>>(value) {
        Ok(items) => {
            let texts = items.iter().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        }
        Err(_) => value
            .split(',')
            .map(|item| item.trim().to_owned())
            .collect(),
    };
    items.into_iter().filter(|item| !item.is_empty()).collect()
}

fn sorted(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list.dedup();
    list
}

/// Compact JSON in which each character outside of ASCII is escaped.
fn ascii_json(value: &Value) -> String {
    let mut text = String::new();
    for character in value.to_string().chars() {
        match character.is_ascii() {
            true => text.push(character),
            false => {
                let units = &mut [0; 2];
                for unit in character.encode_utf16(units) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&str, &str)]) -> Identity {
        Identity::of_headers(|name| {
            let mut found = headers.iter().filter(|(other, _)| *other == name);
            found.next().map(|(_, value)| *value)
        })
    }

    #[test]
    fn a_user_needs_an_id_and_something_that_distinguishes_it() {
        let user = ("x-forge-user-id", "u1");
        for (headers, kind) in [
            (vec![], "anonymous"),
            (vec![user], "anonymous"),
            (vec![user, ("x-forge-tenant-id", "t")], "anonymous"),
            (vec![user, ("x-forge-role", " ")], "anonymous"),
            (vec![user, ("x-forge-claims", "[]")], "anonymous"),
            (vec![user, ("x-forge-role", "admin")], "user"),
            (vec![user, ("x-forge-roles", "admin")], "user"),
            (vec![user, ("x-forge-permissions", "pay")], "user"),
            (vec![user, ("x-forge-claims", "{\"k\":1}")], "user"),
            (vec![user, ("x-forge-organization-id", "o")], "user"),
            (
                vec![("x-forge-user-id", ""), ("x-forge-role", "admin")],
                "anonymous",
            ),
            (vec![("x-forge-role", "admin")], "anonymous"),
        ] {
            assert_eq!(of(&headers).kind(), kind, "{headers:?}");
        }
    }

    #[test]
    fn the_identity_is_written_as_the_reference_writes_it() {
        let identity = of(&[
            ("x-forge-user-id", "u1"),
            ("x-forge-tenant-id", "t1"),
            ("x-forge-role", "admin"),
            ("x-forge-roles", "sec, admin"),
            ("x-forge-permissions", "b,a,b"),
            ("x-forge-claims", "{\"k\":1}"),
            ("x-forge-organization-membership-id", "om1"),
        ]);
        assert_eq!(
            serde_json::to_string(&identity).unwrap(),
            r#"{"kind":"user","userId":"u1","tenantId":"t1","role":"admin","roles":["admin","sec"],"permissions":["a","b"],"token":{"issuer":"dev-headers","audience":"dev","subject":"u1","authProvider":"dev-headers"},"claims":{"k":1,"organization_membership_id":"om1"}}"#
        );
        assert_eq!(
            serde_json::to_string(&Identity::Anonymous).unwrap(),
            r#"{"kind":"anonymous"}"#
        );
        let expected = [
            ("x-forge-auth-kind", "user"),
            ("x-forge-user-id", "u1"),
            ("x-forge-tenant-id", "t1"),
            ("x-forge-role", "admin"),
            ("x-forge-roles", r#"["admin","sec"]"#),
            ("x-forge-permissions", r#"["a","b"]"#),
            (
                "x-forge-claims",
                r#"{"k":1,"organization_membership_id":"om1"}"#,
            ),
            ("x-forge-organization-membership-id", "om1"),
        ];
        let headers = identity.headers();
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        assert_eq!(headers, expected);
    }

    #[test]
    fn lists_are_json_or_separated_by_commas_and_the_tenant_is_the_organization() {
        let identity = of(&[
            ("x-forge-user-id", "u"),
            ("x-forge-roles", r#"["a,b","",5,"é"]"#),
            ("x-forge-organization-id", "o"),
        ]);
        assert_eq!(identity.tenant(), Some("o"));
        let headers = identity.headers();
        let roles = headers.iter().find(|(name, _)| *name == "x-forge-roles");
        assert_eq!(roles.unwrap().1, r#"["a,b","\u00e9"]"#);
    }
}
