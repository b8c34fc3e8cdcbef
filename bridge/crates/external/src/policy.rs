//! Decision if a caller may call an entry. Pure; it is made before anything is sent to the service.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::Enforce;
use crate::identity::Identity;
use crate::manifest::{Entry, EntryKind};

/// Named policy: permits users that have any of the roles or any of the permissions.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    pub roles: Vec<String>,
    pub permissions: Vec<String>,
}

/// Rules that decide.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub policies: &'a BTreeMap<String, Policy>,
    pub enforce: &'a [Enforce],
}

impl Rules<'_> {
    /// `Err` with the reason of a denial.
    pub fn decide(&self, entry: &Entry, caller: &Identity) -> Result<(), String> {
        self.policy(entry, caller)?;
        let kind = entry.kind.as_str();
        let scoped = entry.tenant_scoped == Some(true) && self.enforce.contains(&Enforce::Tenant);
        match scoped && caller.tenant().is_none() {
            true => Err(format!("{kind} requires a tenant, and the caller has none")),
            false => Ok(()),
        }
    }

    /// True if a call waits for an approval.
    pub fn holds(&self, entry: &Entry) -> bool {
        entry.kind == EntryKind::Command
            && entry.needs_approval == Some(true)
            && self.enforce.contains(&Enforce::Approval)
    }

    fn policy(&self, entry: &Entry, caller: &Identity) -> Result<(), String> {
        let kind = entry.kind.as_str();
        let name = entry.policy.as_deref().unwrap_or("public");
        let user = match (name, caller) {
            ("public", _) | ("system", Identity::System { .. }) => return Ok(()),
            ("system", _) => return Err(format!("{kind} requires system auth context")),
            (_, Identity::Anonymous) => return Err(format!("{kind} requires authenticated user")),
            (_, Identity::System { .. }) => {
                return Err(format!("{kind} requires user auth context"));
            }
            ("user", Identity::User(_)) => return Ok(()),
            (_, Identity::User(user)) => user,
        };
        let permits = self.policies.get(name).is_some_and(|policy| {
            let has =
                |wanted: &[String], own: &[String]| own.iter().any(|one| wanted.contains(one));
            let role = user.role.as_slice();
            has(&policy.roles, role)
                || has(&policy.roles, &user.roles)
                || has(&policy.permissions, &user.permissions)
        });
        match permits {
            true => Ok(()),
            false => {
                let role = user.role.as_deref().unwrap_or("unknown");
                Err(format!(
                    "role '{role}' and permissions denied for policy '{name}'"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::TokenIdentity;

    fn entry(kind: &str, policy: Option<&str>) -> Entry {
        let mut entry = json!({"name": "e", "kind": kind, "tenantScoped": true});
        if let Some(policy) = policy {
            entry["policy"] = policy.into();
        }
        serde_json::from_value(entry).unwrap()
    }

    fn user(roles: &[&str], permissions: &[&str], tenant: Option<&str>) -> Identity {
        let own = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        Identity::from(&TokenIdentity {
            user_id: "u".to_owned(),
            tenant_id: tenant.map(str::to_owned),
            roles: own(roles),
            permissions: own(permissions),
        })
    }

    #[test]
    fn each_policy_decides_for_each_caller() {
        let policies = BTreeMap::from([(
            "billing".to_owned(),
            Policy {
                roles: vec!["admin".to_owned()],
                permissions: vec!["pay".to_owned()],
            },
        )]);
        let rules = Rules {
            policies: &policies,
            enforce: &[],
        };
        let anonymous = Identity::Anonymous;
        let system = Identity::System { tenant_id: None };
        let plain = user(&["guest", "other"], &[], None);
        let second_role = user(&["guest", "admin"], &[], None);
        let permission = user(&[], &["pay"], None);
        let nothing = user(&[], &[], None);
        let denied = "role 'guest' and permissions denied for policy 'billing'";
        for (policy, caller, reason) in [
            (None, &anonymous, None),
            (Some("public"), &anonymous, None),
            (Some("public"), &system, None),
            (
                Some("user"),
                &anonymous,
                Some("command requires authenticated user"),
            ),
            (Some("user"), &nothing, None),
            (
                Some("user"),
                &system,
                Some("command requires user auth context"),
            ),
            (Some("system"), &system, None),
            (
                Some("system"),
                &second_role,
                Some("command requires system auth context"),
            ),
            (
                Some("system"),
                &anonymous,
                Some("command requires system auth context"),
            ),
            (
                Some("billing"),
                &anonymous,
                Some("command requires authenticated user"),
            ),
            (
                Some("billing"),
                &system,
                Some("command requires user auth context"),
            ),
            (Some("billing"), &plain, Some(denied)),
            (Some("billing"), &second_role, None),
            (Some("billing"), &permission, None),
            (
                Some("billing"),
                &nothing,
                Some("role 'unknown' and permissions denied for policy 'billing'"),
            ),
            (
                Some("nowhere"),
                &second_role,
                Some("role 'guest' and permissions denied for policy 'nowhere'"),
            ),
        ] {
            let decided = rules.decide(&entry("command", policy), caller);
            assert_eq!(decided.err().as_deref(), reason, "{policy:?} {caller:?}");
        }
        let query = rules.decide(&entry("query", Some("user")), &anonymous);
        assert_eq!(query.unwrap_err(), "query requires authenticated user");
    }

    #[test]
    fn a_tenant_is_required_only_where_that_is_enforced() {
        let policies = BTreeMap::new();
        for (enforce, tenant, denied) in [
            (vec![], None, false),
            (vec![Enforce::Tenant], Some("t"), false),
            (vec![Enforce::Tenant], None, true),
        ] {
            let rules = Rules {
                policies: &policies,
                enforce: &enforce,
            };
            let decided = rules.decide(&entry("command", Some("user")), &user(&[], &[], tenant));
            assert_eq!(decided.is_err(), denied, "{enforce:?} {tenant:?}");
        }
    }
}
