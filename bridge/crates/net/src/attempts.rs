//! Named attempts to make the bridge call a forbidden address; none reaches the point of connecting. Names are
//! resolved from the table and connections are only recorded, so that nothing leaves the process whatever the guard
//! decides. The last test calls a name whose address changes with the real client.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use reqwest::Method;
use reqwest::header::HeaderMap;
use url::{Host, Url};

use super::guard::{Guard, Lookup, Resolver, Trust};
use super::{Client, Config, Outgoing, SendError};
use forge_test_support::callback::{Answer, CallbackSink};

/// Name of the attempt, its URL, and the addresses that its host resolves to.
type Row = (&'static str, &'static str, &'static [&'static str]);

const LITERALS: &[Row] = &[
    ("loopback", "http://127.0.0.1/", &[]),
    ("the other end of loopback", "http://127.255.255.254/", &[]),
    ("two parts", "http://127.1/", &[]),
    ("three parts", "http://127.0.1/", &[]),
    ("one decimal number", "http://2130706433/", &[]),
    ("one hexadecimal number", "http://0x7f000001/", &[]),
    ("one octal number", "http://017700000001/", &[]),
    ("hexadecimal parts", "http://0x7f.0x0.0x0.0x1/", &[]),
    ("octal parts", "http://0177.0.0.01/", &[]),
    ("more zeros than fit", "http://00000177.0.0.1/", &[]),
    ("mixed parts", "http://0x7f.1/", &[]),
    ("a trailing dot", "http://127.0.0.1./", &[]),
    ("percent-encoded digits", "http://%31%32%37.0.0.1/", &[]),
    ("fullwidth digits", "http://１２７.０.０.１/", &[]),
    ("circled digits", "http://①②⑦.⓪.⓪.①/", &[]),
    ("ideographic full stops", "http://127。0。0。1/", &[]),
    ("a line break inside", "http://127.0.\n0.1/", &[]),
    ("no slashes", "http:127.0.0.1/", &[]),
    ("one slash too many", "http:///127.0.0.1/", &[]),
    ("backslashes", "http:\\\\127.0.0.1\\", &[]),
    ("zero", "http://0/", &[]),
    ("unspecified", "http://0.0.0.0:8080/", &[]),
    ("private 10", "http://10.0.0.1/", &[]),
    ("private 172.16", "http://172.16.0.1/", &[]),
    ("the end of private 172", "http://172.31.255.255/", &[]),
    ("private 192.168", "http://192.168.1.1/", &[]),
    ("carrier-grade NAT", "http://100.64.0.1/", &[]),
    (
        "the end of carrier-grade NAT",
        "http://100.127.255.255/",
        &[],
    ),
    ("link-local", "http://169.254.1.1/", &[]),
    ("metadata", "http://169.254.169.254/latest/meta-data/", &[]),
    ("metadata as a number", "http://2852039166/", &[]),
    ("metadata in hexadecimal", "http://0xa9fea9fe/", &[]),
    ("metadata of a container", "http://169.254.170.2/", &[]),
    ("Azure's wire server", "http://168.63.129.16/", &[]),
    ("Alibaba's metadata", "http://100.100.100.200/", &[]),
    ("Oracle's metadata", "http://192.0.0.192/", &[]),
    ("benchmarking", "http://198.18.0.1/", &[]),
    ("documentation", "http://203.0.113.1/", &[]),
    ("a 6to4 relay", "http://192.88.99.1/", &[]),
    ("multicast", "http://224.0.0.1/", &[]),
    ("reserved", "http://240.0.0.1/", &[]),
    ("broadcast", "http://255.255.255.255/", &[]),
    ("IPv6 loopback", "http://[::1]/", &[]),
    ("IPv6 loopback in full", "http://[0:0:0:0:0:0:0:1]/", &[]),
    ("IPv6 unspecified", "http://[::]/", &[]),
    ("IPv4-mapped", "http://[::ffff:127.0.0.1]/", &[]),
    ("IPv4-mapped in hexadecimal", "http://[::ffff:7f00:1]/", &[]),
    ("IPv4-mapped metadata", "http://[::ffff:a9fe:a9fe]/", &[]),
    (
        "IPv4-mapped, public inside",
        "http://[::ffff:8.8.8.8]/",
        &[],
    ),
    ("IPv4-compatible", "http://[::127.0.0.1]/", &[]),
    ("IPv4-translated", "http://[::ffff:0:127.0.0.1]/", &[]),
    ("NAT64", "http://[64:ff9b::127.0.0.1]/", &[]),
    ("NAT64 to metadata", "http://[64:ff9b::a9fe:a9fe]/", &[]),
    ("local NAT64", "http://[64:ff9b:1::7f00:1]/", &[]),
    (
        "the end of local NAT64",
        "http://[64:ff9b:1:ffff::a00:1]/",
        &[],
    ),
    ("6to4 to loopback", "http://[2002:7f00:1::1]/", &[]),
    ("6to4 to a private network", "http://[2002:a00:1::1]/", &[]),
    (
        "Teredo",
        "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
        &[],
    ),
    ("ORCHID", "http://[2001:20::1]/", &[]),
    ("unique local fc", "http://[fc00::1]/", &[]),
    ("unique local fd", "http://[fdff:ffff::1]/", &[]),
    ("Amazon's metadata", "http://[fd00:ec2::254]/", &[]),
    ("Google's metadata", "http://[fd20:ce::254]/", &[]),
    ("IPv6 link-local", "http://[fe80::1]/", &[]),
    ("the end of IPv6 link-local", "http://[febf::1]/", &[]),
    ("a zone id", "http://[fe80::1%25eth0]/", &[]),
    ("a bare zone id", "http://[fe80::1%eth0]/", &[]),
    ("site-local", "http://[fec0::1]/", &[]),
    ("IPv6 multicast", "http://[ff02::1]/", &[]),
    ("IPv6 documentation", "http://[2001:db8::1]/", &[]),
    ("more IPv6 documentation", "http://[3fff::1]/", &[]),
    ("discard only", "http://[100::1]/", &[]),
    ("segment routing", "http://[5f00::1]/", &[]),
    ("not assigned yet", "http://[4000::1]/", &[]),
    ("a user before it", "http://example.com@127.0.0.1/", &[]),
    (
        "a user and a port before it",
        "http://example.com:80@169.254.169.254/",
        &[],
    ),
    (
        "an encoded at sign",
        "http://example.com%40@127.0.0.1/",
        &[],
    ),
    ("a password alone", "http://:secret@10.0.0.1/", &[]),
    (
        "itself as the user",
        "http://127.0.0.1@example.com/",
        &["93.184.216.34"],
    ),
    ("a file", "file:///etc/passwd", &[]),
    ("gopher", "gopher://127.0.0.1:6379/_FLUSHALL", &[]),
    ("ftp", "ftp://127.0.0.1/", &[]),
    ("data", "data:text/plain,hello", &[]),
];

const NAMES: &[Row] = &[
    ("localhost", "http://localhost/", &["127.0.0.1", "::1"]),
    (
        "localhost in capitals, with a dot",
        "http://LOCALHOST./",
        &["127.0.0.1"],
    ),
    ("below localhost", "http://a.localhost/", &["127.0.0.1"]),
    (
        "localhost in fullwidth letters",
        "http://ｌｏｃａｌｈｏｓｔ/",
        &["127.0.0.1"],
    ),
    (
        "localhost and a backslash",
        "http://localhost\\@example.com/",
        &["127.0.0.1"],
    ),
    (
        "a name for loopback",
        "http://127.0.0.1.nip.example/",
        &["127.0.0.1"],
    ),
    (
        "a name for a private host",
        "http://internal.example/",
        &["10.0.0.1"],
    ),
    (
        "a name for metadata",
        "http://metadata.google.internal/",
        &["169.254.169.254"],
    ),
    ("a name for IPv6 loopback", "http://six.example/", &["::1"]),
    (
        "a name for an IPv4-mapped address",
        "http://m.example/",
        &["::ffff:10.0.0.1"],
    ),
    (
        "a name for NAT64",
        "http://n.example/",
        &["64:ff9b::a9fe:a9fe"],
    ),
    (
        "a name for local NAT64",
        "http://l.example/",
        &["64:ff9b:1::a9fe:a9fe"],
    ),
    (
        "a name for 6to4",
        "http://s.example/",
        &["2002:a9fe:a9fe::1"],
    ),
    ("a name for Teredo", "http://t.example/", &["2001:0:1::1"]),
    ("a name for link-local", "http://k.example/", &["fe80::1"]),
    (
        "a name for unique local",
        "http://u.example/",
        &["fd00:ec2::254"],
    ),
    ("a name for zero", "http://z.example/", &["0.0.0.0"]),
    (
        "many private ones",
        "http://many.example/",
        &["10.0.0.1", "192.168.0.1", "fc00::1"],
    ),
    ("an IDN", "http://bücher.example/", &["127.0.0.1"]),
    (
        "a name with a dot at its end",
        "http://internal.example./",
        &["10.0.0.1"],
    ),
    ("a name that leads nowhere", "http://nowhere.example/", &[]),
];

fn fixed(addresses: &'static [&'static str]) -> Lookup {
    Arc::new(move |_| {
        let found = addresses.iter().map(|text| {
            let address: IpAddr = text.parse().unwrap();
            SocketAddr::new(address, 0)
        });
        let found: Vec<_> = found.collect();
        let answer = match found.is_empty() {
            true => Err(io::Error::other("no such name")),
            false => Ok(found),
        };
        std::future::ready(answer).boxed()
    })
}

/// Follows a request of the client up to the connection; returns the addresses it would connect to.
async fn would_connect(guard: &Guard, url: &str, leads_to: &'static [&'static str]) -> Vec<IpAddr> {
    let Ok(url) = Url::parse(url) else {
        return Vec::new();
    };
    match (guard.trust(&url), url.host()) {
        (Err(_), _) => Vec::new(),
        (Ok(_), Some(Host::Ipv4(address))) => vec![address.into()],
        (Ok(_), Some(Host::Ipv6(address))) => vec![address.into()],
        (Ok(trust), Some(Host::Domain(name))) => {
            assert_eq!(trust, Trust::Checked, "no host is allowed by name");
            let resolver = Resolver {
                guard: Some(guard.clone()),
                lookup: fixed(leads_to),
            };
            let found = resolver.find(name.to_owned()).await;
            found.map_or(Vec::new(), |found| {
                found.iter().map(SocketAddr::ip).collect()
            })
        }
        (Ok(_), None) => panic!("{url} passes without a host"),
    }
}

#[tokio::test]
async fn no_attempt_gets_as_far_as_a_connection() {
    let guard = Guard::new(&[]).unwrap();
    let mut names = BTreeSet::new();
    for (name, url, leads_to) in LITERALS.iter().chain(NAMES) {
        assert_eq!(
            would_connect(&guard, url, leads_to).await,
            [] as [IpAddr; 0],
            "{name}: {url}"
        );
        assert!(names.insert(name), "two rows are called {name}");
    }
    assert!(names.len() >= 60, "{} attempts", names.len());
}

#[tokio::test]
async fn of_several_addresses_only_the_public_ones_are_connected_to() {
    let guard = Guard::new(&[]).unwrap();
    for (leads_to, expected) in [
        (&["8.8.8.8"] as &[&str], vec!["8.8.8.8"]),
        (&["10.0.0.1", "8.8.8.8", "::1"], vec!["8.8.8.8"]),
        (&["2606:4700::1111", "fe80::1"], vec!["2606:4700::1111"]),
    ] {
        let expected: Vec<IpAddr> = expected.iter().map(|a| a.parse().unwrap()).collect();
        let found = would_connect(&guard, "https://example.com/", leads_to).await;
        assert_eq!(found, expected);
    }
}

/// Both addresses are loopback, and one of them is allowed: even a broken guard would call no other machine.
#[tokio::test]
async fn a_name_that_changes_between_two_calls_is_checked_at_each_connection() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(204));
    let port = sink.address().port();
    let elsewhere = TcpListener::bind(("127.0.0.2", port)).unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let lookups = Arc::new(AtomicUsize::new(0));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let lookup: Lookup = {
        let (lookups, asked) = (Arc::clone(&lookups), Arc::clone(&asked));
        Arc::new(move |name| {
            asked.lock().unwrap().push(name);
            let address = match lookups.fetch_add(1, Ordering::Relaxed) % 2 {
                0 => [127, 0, 0, 1],
                _ => [127, 0, 0, 2],
            };
            std::future::ready(Ok(vec![SocketAddr::from((address, 0))])).boxed()
        })
    };
    // Every request opens a new connection.
    let config = Config {
        idle_per_origin: 0,
        ..Config::default()
    };
    let guard = Guard::new(&["127.0.0.1".to_owned()]).unwrap();
    let client = Client::looking_up(&config, guard, &lookup).unwrap();
    for call in 1..=6 {
        let answer = client.send(Outgoing {
            method: Method::GET,
            url: Url::parse(&format!("http://rebound.example:{port}/")).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            timeout: Duration::from_secs(10),
            answer_bytes: crate::ANSWER_BYTES,
        });
        match answer.await {
            Ok(answer) => assert_eq!((answer.status, call % 2), (204, 1)),
            Err(error) => {
                assert!(matches!(error, SendError::Refused(_)), "{error}");
                assert_eq!(call % 2, 0);
            }
        }
        // The checked address is the one connected to: one lookup per call.
        assert_eq!(lookups.load(Ordering::Relaxed), call);
    }
    assert_eq!(sink.received().len(), 3);
    let no_connection = elsewhere.accept().map(drop).unwrap_err();
    assert_eq!(no_connection.kind(), io::ErrorKind::WouldBlock);
    assert!(
        asked
            .lock()
            .unwrap()
            .iter()
            .all(|name| name == "rebound.example")
    );
}
