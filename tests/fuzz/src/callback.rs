//! Callback guard: no URL text leads to an address that is not public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use forge_net::guard::Guard;
use forge_net::origin;
use url::{Host, Url};

/// Input: an entry of `callback.allow`, a line end, and a URL.
pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (entry, url) = text.split_once('\n').unwrap_or(("", &text));
    let Ok(url) = Url::parse(url) else {
        return;
    };
    let closed = Guard::new(&[]).unwrap();
    let passes = closed.check_url(&url).is_ok();
    if let Ok(open) = Guard::new(&[entry.to_owned()]) {
        // An entry can only allow more.
        assert!(!passes || open.check_url(&url).is_ok(), "{entry:?} {url}");
    }
    if !passes {
        return;
    }
    assert!(matches!(url.scheme(), "http" | "https"), "{url}");
    assert!(
        url.username().is_empty() && url.password().is_none(),
        "{url}"
    );
    let origin = origin(&url);
    assert!(
        origin.starts_with(url.scheme()) && origin.contains(':'),
        "{origin}"
    );
    let address = match url.host().unwrap() {
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            assert!(
                name != "localhost" && !name.ends_with(".localhost"),
                "{url}"
            );
            // A host that the connector would parse as an address must not count as a name.
            assert!(url.host_str().unwrap().parse::<IpAddr>().is_err(), "{url}");
            return;
        }
        Host::Ipv4(address) => IpAddr::V4(address),
        Host::Ipv6(address) => IpAddr::V6(address),
    };
    assert!(is_public(address), "{url} leads to {address}");
}

/// Reference implementation, independent of the guard's.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_unspecified()
        || address.is_broadcast()
        || address.is_multicast()
        || address.is_documentation()
        || matches!(
            (a, b, c),
            (0 | 240..=255, _, _) | (100, 64..=127, _) | (198, 18 | 19, _)
        );
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let hidden = address
        .to_ipv4()
        .is_some_and(|inside| !is_public_v4(inside));
    let special = address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || address.is_unique_local()
        || address.is_unicast_link_local()
        || hidden
        || first & 0xe000 != 0x2000
        || (first, second) == (0x2001, 0x0db8)
        || first == 0x2002;
    !special
}
