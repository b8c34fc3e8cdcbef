//! Users of the programs that adapters and the bridge start: `process.user` and `adapters.<id>.user`.

use std::collections::BTreeMap;

use anyhow::Context as _;
use forge_adapter_api::{self as api, child::inherited};

use crate::config::Config;
use forge_base::tasks::Tasks;
use forge_dispatch::ProgramUsers;
use forge_plugin_host::ProgramUser;
use forge_process::ownership::UserId;
use forge_process::program::{Launcher, LauncherSettings};
use forge_process::{Children, User};

/// Users, found and permitted.
pub(super) struct Users {
    pub(super) default: Option<ProgramUser>,
    /// Users of adapters that name their own.
    pub(super) of_adapters: BTreeMap<String, Option<ProgramUser>>,
}

impl Users {
    pub(super) fn find(config: &Config, children: &Children) -> anyhow::Result<Self> {
        let find = |setting: String, name: &str| -> anyhow::Result<Option<ProgramUser>> {
            let user = User::find(name).context(setting)?;
            Ok(user.map(|user| program_user(user, children)))
        };
        let default = match &config.process.user {
            Some(name) => find("process.user".to_owned(), name)?,
            None => None,
        };
        let own = config.adapters.iter().filter_map(|(id, table)| {
            let name = table.user.as_deref()?;
            Some(find(format!("adapters.{id}.user"), name).map(|user| (id.clone(), user)))
        });
        Ok(Self {
            default,
            of_adapters: own.collect::<anyhow::Result<_>>()?,
        })
    }
}

/// Users without their supervisors.
pub(super) fn ids(users: &Users) -> ProgramUsers {
    let id = |user: &Option<ProgramUser>| {
        let user = &user.as_ref()?.user;
        Some(UserId {
            uid: user.uid,
            gid: user.gid,
        })
    };
    let own = users.of_adapters.iter();
    ProgramUsers {
        default: id(&users.default),
        of_adapters: own.map(|(name, user)| (name.clone(), id(user))).collect(),
    }
}

fn program_user(user: User, children: &Children) -> ProgramUser {
    ProgramUser {
        supervisor: children.supervisor_as(&user),
        user: api::User {
            name: user.name,
            uid: user.uid,
            gid: user.gid,
            home: user.home,
        },
    }
}

/// Launcher of the programs that the bridge itself starts, as this user.
pub(super) fn launcher(
    user: Option<&ProgramUser>,
    children: &Children,
    store_id: &str,
    tracker: &Tasks,
) -> Launcher {
    Launcher::new(LauncherSettings {
        supervisor: match user {
            Some(user) => user.supervisor.clone(),
            None => children.supervisor().to_vec(),
        },
        store_id: store_id.to_owned(),
        environment: inherited(user.map(|user| &user.user)).collect(),
        // That of the bridge can be closed to the user.
        dir: user.map(|_| "/".into()),
        tracker: tracker.clone(),
    })
}
