//! Address ranges outside the public internet, from the IANA registries of special-purpose addresses. Independent of
//! the rules in `callback.allow`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// Name of the special range that contains the address; `None` for a public one.
pub(super) fn special_range(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => SPECIAL_V4
            .iter()
            .find(|(net, _)| net.contains(&address))
            .map(|(_, range)| *range),
        IpAddr::V6(address) => SPECIAL_V6
            .iter()
            .find(|(net, _)| net.contains(&address))
            .map(|(_, range)| *range)
            .or_else(|| (!GLOBAL_V6.contains(&address)).then_some("not a public address")),
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(head: [u16; 6], prefix: u8) -> Ipv6Net {
    let [a, b, c, d, e, f] = head;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, 0, 0), prefix)
}

/// IANA registry of special-purpose addresses, and the public address that one cloud uses for metadata. Narrower
/// ranges come first, so that the name is the most specific.
const SPECIAL_V4: &[(Ipv4Net, &str)] = &[
    (v4(169, 254, 169, 254, 32), "a cloud metadata address"),
    (v4(168, 63, 129, 16, 32), "a cloud metadata address"),
    (v4(100, 100, 100, 200, 32), "a cloud metadata address"),
    (v4(192, 0, 0, 192, 32), "a cloud metadata address"),
    (v4(0, 0, 0, 0, 8), "an unspecified address"),
    (v4(10, 0, 0, 0, 8), "a private address"),
    (v4(100, 64, 0, 0, 10), "a carrier-grade NAT address"),
    (v4(127, 0, 0, 0, 8), "a loopback address"),
    (v4(169, 254, 0, 0, 16), "a link-local address"),
    (v4(172, 16, 0, 0, 12), "a private address"),
    (v4(192, 0, 0, 0, 24), "a protocol address"),
    (v4(192, 0, 2, 0, 24), "a documentation address"),
    (v4(192, 88, 99, 0, 24), "a 6to4 relay address"),
    (v4(192, 168, 0, 0, 16), "a private address"),
    (v4(198, 18, 0, 0, 15), "a benchmarking address"),
    (v4(198, 51, 100, 0, 24), "a documentation address"),
    (v4(203, 0, 113, 0, 24), "a documentation address"),
    (v4(224, 0, 0, 0, 4), "a multicast address"),
    (v4(240, 0, 0, 0, 4), "a reserved address"),
];

/// All public addresses are in this range; its special parts are in the table below.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0], 3);

const SPECIAL_V6: &[(Ipv6Net, &str)] = &[
    (
        Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128),
        "a cloud metadata address",
    ),
    (
        Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128),
        "a loopback address",
    ),
    (
        Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128),
        "an unspecified address",
    ),
    (v6([0, 0, 0, 0, 0, 0xffff], 96), "an IPv4-mapped address"),
    (
        v6([0, 0, 0, 0, 0xffff, 0], 96),
        "an IPv4-translated address",
    ),
    (v6([0, 0, 0, 0, 0, 0], 96), "an IPv4-compatible address"),
    (v6([0x64, 0xff9b, 0, 0, 0, 0], 96), "a NAT64 address"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0], 48), "a NAT64 address"),
    (v6([0x100, 0, 0, 0, 0, 0], 64), "a discard address"),
    // Teredo, benchmarking, ORCHID and the rest of the protocol assignments.
    (v6([0x2001, 0, 0, 0, 0, 0], 23), "a protocol address"),
    (
        v6([0x2001, 0xdb8, 0, 0, 0, 0], 32),
        "a documentation address",
    ),
    (v6([0x2002, 0, 0, 0, 0, 0], 16), "a 6to4 address"),
    (v6([0x3fff, 0, 0, 0, 0, 0], 20), "a documentation address"),
    (v6([0x5f00, 0, 0, 0, 0, 0], 16), "a segment routing address"),
    (v6([0xfc00, 0, 0, 0, 0, 0], 7), "a private address"),
    (v6([0xfe80, 0, 0, 0, 0, 0], 10), "a link-local address"),
    (v6([0xfec0, 0, 0, 0, 0, 0], 10), "a site-local address"),
    (v6([0xff00, 0, 0, 0, 0, 0], 8), "a multicast address"),
];
