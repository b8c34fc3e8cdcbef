//! Publishing: branches are moved under a lease and read back, so "published" is a fact about the remote.

use super::remote::Side;
use super::repository::{FETCH, listed, remote, zero};
use super::{Branch, CommitId, Error, Push, Repository};

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
        let name = branch.full();
        match self.remotes().push {
            Push::Always => {
                self.push(branch, expected, to).await?;
                self.step(&["update-ref", &name, to.as_str()])
                    .bytes()
                    .await?;
            }
            Push::Never if self.tip(branch).await?.as_ref() != Some(to) => {
                let old = expected.map_or_else(|| zero(to), ToString::to_string);
                let step = self.step(&["update-ref", &name, to.as_str(), &old]);
                if step.run().await?.code != 0 {
                    return Err(self.moved(branch, expected).await?);
                }
            }
            Push::Never => {}
        }
        match self.published(branch).await? {
            Some(found) if found == *to => Ok(()),
            found => Err(Error::NotThere {
                branch: branch.clone(),
                pushed: to.clone(),
                found: shown(found.as_ref()),
            }),
        }
    }

    async fn push(
        &self,
        branch: &Branch,
        expected: Option<&CommitId>,
        to: &CommitId,
    ) -> Result<(), Error> {
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
        let call = self.remotes().call(self.url()).await?;
        let output = call
            .apply(step, Side::Receives)
            .arg(format!("{to}:{name}"))
            .run()
            .await?;
        if output.code == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        match text.lines().find_map(|line| line.strip_prefix("!\t")) {
            Some(line) if line.contains("[rejected]") => Err(self.moved(branch, expected).await?),
            Some(line) => Err(Error::PushRefused {
                branch: branch.clone(),
                reason: line.rsplit('\t').next().unwrap_or(line).to_owned(),
            }),
            None => Err(output.remote_failure()),
        }
    }

    async fn moved(&self, branch: &Branch, expected: Option<&CommitId>) -> Result<Error, Error> {
        Ok(Error::Moved {
            branch: branch.clone(),
            expected: shown(expected),
            found: shown(self.published(branch).await?.as_ref()),
        })
    }

    /// Commit of a branch where results are published, as it is now.
    pub async fn published(&self, branch: &Branch) -> Result<Option<CommitId>, Error> {
        if self.remotes().push == Push::Never {
            return self.tip(branch).await;
        }
        let call = self.remotes().call(self.url()).await?;
        let step = call.apply(self.step(&["ls-remote", "--refs"]), Side::Sends);
        let listed = listed(step.arg(branch.full())).await?;
        let found = listed.iter().find(|(_, name)| *name == branch.full());
        Ok(found.and_then(|(id, _)| CommitId::parse(id)))
    }

    /// Fetches the published commit of a branch, to merge with it; `None` if there is no such branch.
    pub async fn fetch(&self, branch: &Branch) -> Result<Option<CommitId>, Error> {
        let found = self.published(branch).await?;
        if found.is_some() && self.remotes().push == Push::Always {
            let call = self.remotes().call(self.url()).await?;
            let refs = format!("+{}:refs/forge/fetched/{branch}", branch.full());
            remote(call.apply(self.step(&FETCH), Side::Sends).arg(refs)).await?;
        }
        Ok(found)
    }
}

fn shown(commit: Option<&CommitId>) -> String {
    commit.map_or_else(|| "absent".to_owned(), ToString::to_string)
}
