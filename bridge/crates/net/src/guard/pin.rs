//! Addresses for programs that connect by themselves: they are given the addresses that were checked, so that the
//! checked address is the one connected to.

use std::net::IpAddr;

use url::{Host, Url};

use super::{Guard, Refused, Resolver, Trust, system_lookup};
use crate::SendError;

impl Guard {
    /// Resolves the name in a URL and returns the addresses that can be called; none for a literal address, which is
    /// only checked.
    pub async fn addresses(&self, url: &Url) -> Result<Vec<IpAddr>, SendError> {
        let trust = self.trust(url).map_err(SendError::Refused)?;
        let Some(Host::Domain(name)) = url.host() else {
            return Ok(Vec::new());
        };
        let resolver = Resolver {
            guard: match trust {
                Trust::Checked => Some(self.clone()),
                Trust::Named => None,
            },
            lookup: system_lookup(),
        };
        match resolver.find(name.to_owned()).await {
            Ok(found) => Ok(found.iter().map(|endpoint| endpoint.ip()).collect()),
            Err(error) => Err(match error.downcast::<Refused>() {
                Ok(refused) => SendError::Refused(*refused),
                Err(error) => SendError::Resolve(error.to_string()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_checked_addresses_are_returned() {
        let find = async |allow: &[&str], url: &str| {
            let allow: Vec<String> = allow.iter().map(|&entry| entry.to_owned()).collect();
            let url = Url::parse(url).unwrap();
            Guard::new(&allow).unwrap().addresses(&url).await
        };
        let refused = find(&[], "https://localhost/").await.unwrap_err();
        assert!(matches!(refused, SendError::Refused(_)), "{refused}");
        let found = find(&["loopback"], "https://localhost/").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback));
        assert!(
            find(&["loopback"], "https://127.0.0.1/")
                .await
                .unwrap()
                .is_empty()
        );
        assert!(find(&[], "https://127.0.0.1/").await.is_err());
        let unknown = find(&[], "https://name.invalid/").await.unwrap_err();
        assert!(matches!(unknown, SendError::Resolve(_)), "{unknown}");
    }
}
