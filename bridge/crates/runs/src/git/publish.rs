//! Publishing: branches are moved under a lease and read back, so "published" is a fact about the remote.

use super::remote::Side;
use super::repository::{FETCH, listed, refs};
use super::{Branch, CommitId, Error, Push, Repository, shown};

/// Words of a remote that cannot write a branch at the moment, in distinction from one that does not want to.
const TROUBLE: [&str; 7] = [
    "failed to update ref",
    "cannot lock ref",
    "unable to ",
    "failed to write",
    "unpacker error",
    "missing necessary objects",
    "internal server error",
];
/// Pushes, and lists the branch at the remote.
const PUSH: &str = r#"git "$@" || exit
exec git ls-remote --refs ${UPLOAD_PACK:+"$UPLOAD_PACK"} "$ADDRESS" "$BRANCH""#;
/// Words for a branch that stands in the way.
const EXCLUDED: &str = "cannot create";

impl Repository {
    /// Moves a branch to a commit, at the remote or, under [`Push::Never`], here, if its commit is `expected` there
    /// (`None`: it does not exist), and reads it back. Done if it is at the commit already.
    pub async fn publish(
        &self,
        branch: &Branch,
        expected: Option<&CommitId>,
        to: &CommitId,
    ) -> Result<(), Error> {
        if self.default_branch() == Some(branch.as_str()) {
            return Err(Error::DefaultBranch(branch.clone()));
        }
        let found = match self.remotes().push {
            Push::Always => self.push(branch, expected, to).await?,
            Push::Never => {
                self.advance(branch, expected, to).await?;
                self.tip(branch).await?
            }
        };
        match found {
            Some(found) if found == *to => Ok(()),
            found => Err(Error::NotThere {
                branch: branch.clone(),
                pushed: to.clone(),
                found: shown(found.as_ref()),
            }),
        }
    }

    /// Returns the commit that the branch then has at the remote.
    async fn push(
        &self,
        branch: &Branch,
        expected: Option<&CommitId>,
        to: &CommitId,
    ) -> Result<Option<CommitId>, Error> {
        let name = branch.full();
        let lease = format!(
            "--force-with-lease={name}:{}",
            expected.map_or("", CommitId::as_str)
        );
        let step = self.step(&[
            "push",
            "--porcelain",
            "--no-verify",
            "--no-follow-tags",
            &lease,
        ]);
        let call = self.git().call(self.url()).await?;
        let step = call.apply(step, Side::Receives).script(PUSH);
        let step = step.env("UPLOAD_PACK", call.program(Side::Sends).unwrap_or_default());
        let step = step.env("ADDRESS", call.address.as_str());
        let step = step.env("BRANCH", name.as_str());
        let output = step.arg(format!("{to}:{name}")).run().await?;
        let text = String::from_utf8_lossy(&output.stdout);
        if output.code == 0 {
            return Ok(found(&refs(&text), branch));
        }
        let Some(line) = text.lines().find_map(|line| line.strip_prefix("!\t")) else {
            return Err(output.remote_failure());
        };
        // A branch that moves while it is pushed is refused by the remote itself, in words of its own.
        let found = self.published(branch).await?;
        if found.as_ref() == Some(to) {
            return Ok(found);
        }
        if line.contains("[rejected]") || found.as_ref() != expected {
            return Err(Error::moved(branch, expected, found.as_ref()));
        }
        // "failed to update ref" alone does not name the lock that a killed git left at the remote.
        let said = output.said().lines();
        let said = said.filter_map(|line| line.strip_prefix("remote: "));
        let reason = line.rsplit('\t').next().unwrap_or(line);
        let reason: Vec<&str> = [reason].into_iter().chain(said.map(str::trim)).collect();
        let reason = reason.join(" ").trim_end().to_owned();
        let branch = branch.clone();
        let is_trouble = TROUBLE.iter().any(|phrase| reason.contains(phrase));
        Err(match is_trouble && !reason.contains(EXCLUDED) {
            true => Error::PushFailed { branch, reason },
            false => Error::PushRefused { branch, reason },
        })
    }

    /// Commit of a branch where results are published, as it is now.
    pub async fn published(&self, branch: &Branch) -> Result<Option<CommitId>, Error> {
        if self.remotes().push == Push::Never {
            return self.tip(branch).await;
        }
        let call = self.git().call(self.url()).await?;
        let step = call.apply(self.step(&["ls-remote", "--refs"]), Side::Sends);
        let listed = listed(step.arg(branch.full())).await?;
        Ok(found(&listed, branch))
    }

    /// Fetches the published commit of a branch, to merge with it; `None` if there is no such branch.
    pub async fn fetch(&self, branch: &Branch) -> Result<Option<CommitId>, Error> {
        let found = self.published(branch).await?;
        if found.is_some() && self.remotes().push == Push::Always {
            let call = self.git().call(self.url()).await?;
            let refs = format!("+{}:refs/forge/fetched/{branch}", branch.full());
            let fetch = call.apply(self.step(&FETCH), Side::Sends).arg(refs);
            let download = self.git().further_download(self.bare()).await?;
            download.run(fetch).await?;
        }
        Ok(found)
    }
}

/// Commit of a branch in the output of `ls-remote`.
fn found(listed: &[(String, String)], branch: &Branch) -> Option<CommitId> {
    let found = listed.iter().find(|(_, name)| *name == branch.full());
    found.and_then(|(id, _)| CommitId::parse(id))
}
