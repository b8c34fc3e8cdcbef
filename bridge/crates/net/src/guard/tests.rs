//! Tests of `guard`.

use super::*;

fn guard(allow: &[&str]) -> Guard {
    let allow: Vec<String> = allow.iter().map(|&entry| entry.to_owned()).collect();
    Guard::new(&allow).unwrap()
}

fn check(allow: &[&str], url: &str) -> Result<(), Refused> {
    guard(allow).check_url(&Url::parse(url).unwrap())
}

#[test]
fn addresses_that_are_not_public_are_refused_however_they_are_written() {
    for url in [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://0/",
        "http://0.0.0.0:80/",
        "http://10.0.0.1/",
        "http://172.16.0.1/",
        "http://172.31.255.255/",
        "http://192.168.1.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://168.63.129.16/",
        "http://100.64.0.1/",
        "http://100.127.255.255/",
        "http://198.18.0.1/",
        "http://192.0.2.1/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://[::]/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:8.8.8.8]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b:1::1]/",
        "http://[2002:7f00:1::]/",
        "http://[2001::1]/",
        "http://[2001:db8::1]/",
        "http://[fc00::1]/",
        "http://[fd00:ec2::254]/",
        "http://[fe80::1]/",
        "http://[fec0::1]/",
        "http://[ff02::1]/",
        "http://[4000::1]/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://a.localhost/",
        "http://１２７.0.0.1/",
    ] {
        assert!(check(&[], url).is_err(), "{url}");
    }
}

#[test]
fn public_addresses_and_names_pass() {
    for url in [
        "http://8.8.8.8/",
        "https://172.32.0.1/",
        "https://100.128.0.1:8443/",
        "http://[2606:4700::1111]/",
        "https://example.com/hook",
        "https://127.0.0.1.example.com/",
    ] {
        assert_eq!(check(&[], url), Ok(()), "{url}");
    }
}

#[test]
fn only_http_without_user_info_is_called() {
    assert_eq!(
        check(&[], "ftp://example.com/"),
        Err(Refused::Scheme("ftp".into()))
    );
    assert!(check(&[], "file:///etc/passwd").is_err());
    assert_eq!(
        check(&[], "http://a:b@example.com/"),
        Err(Refused::Userinfo)
    );
    assert_eq!(check(&[], "http://a@example.com/"), Err(Refused::Userinfo));
}

#[test]
fn an_entry_allows_what_it_says_and_no_more() {
    for (allow, url, passes) in [
        ("loopback", "http://127.0.0.1:9/", true),
        ("loopback", "http://127.8.8.8/", true),
        ("loopback", "http://[::1]:9/", true),
        ("loopback", "http://localhost/", true),
        ("loopback", "http://10.0.0.1/", false),
        ("loopback", "http://[::ffff:127.0.0.1]/", false),
        ("10.0.0.0/8", "http://10.9.9.9/", true),
        ("10.0.0.0/8", "http://11.0.0.1/", true),
        ("10.0.0.0/8", "http://192.168.0.1/", false),
        ("10.0.0.5", "http://10.0.0.5:81/", true),
        ("10.0.0.5", "http://10.0.0.6/", false),
        ("10.0.0.5:81", "http://10.0.0.5:81/", true),
        ("10.0.0.5:81", "http://10.0.0.5/", false),
        ("[::1]:81", "http://[::1]:81/", true),
        ("[::1]:81", "http://[::1]:82/", false),
        ("::1", "http://[::1]:82/", true),
        ("[::1]", "http://[::1]:82/", true),
        ("fd00::/8", "http://[fd12::1]/", true),
        ("localhost", "http://localhost:1/", true),
        ("localhost:80", "http://localhost/", true),
        ("localhost:81", "http://localhost/", false),
        ("LocalHost", "http://localhost/", true),
    ] {
        assert_eq!(check(&[allow], url).is_ok(), passes, "{allow} {url}");
    }
}

#[test]
fn a_named_host_is_followed_wherever_it_leads() {
    for (allow, url, expected) in [
        ("hooks.internal", "http://hooks.internal/", Trust::Named),
        ("hooks.internal", "http://hooks.internal./", Trust::Named),
        ("hooks.internal", "http://a.hooks.internal/", Trust::Checked),
        ("*.internal", "http://hooks.internal/", Trust::Named),
        ("*.internal", "http://a.b.internal:9/", Trust::Named),
        ("*.internal", "http://internal/", Trust::Checked),
        ("*.internal", "http://evilinternal/", Trust::Checked),
        ("*.internal:9", "http://a.internal/", Trust::Checked),
        ("*.internal:9", "http://a.internal:9/", Trust::Named),
        ("a.internal:443", "https://a.internal/", Trust::Named),
        ("a.internal:443", "http://a.internal/", Trust::Checked),
    ] {
        let url = Url::parse(url).unwrap();
        assert_eq!(guard(&[allow]).trust(&url), Ok(expected), "{allow} {url}");
    }
}

#[test]
fn an_entry_that_means_nothing_is_refused() {
    for entry in [
        "",
        "*",
        "*.",
        "a.*.b",
        "http://example.com",
        "example.com/path",
        "example.com:port",
        "example.com:99999",
        "10.0.0.0/33",
    ] {
        let entry = entry.to_owned();
        assert!(
            Guard::new(std::slice::from_ref(&entry)).is_err(),
            "{entry:?}"
        );
    }
}

#[test]
fn an_error_shows_no_credentials() {
    for (entry, shown) in [
        ("https://user:hush@hooks.example", "[hidden]@hooks.example"),
        ("hush@hooks.example", "[hidden]@hooks.example"),
        ("a@hush@hooks.example:1", "[hidden]@hooks.example:1"),
        ("not an entry", "not an entry"),
    ] {
        let error = Guard::new(&[entry.to_owned()]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{shown:?} is not")), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
}

#[tokio::test]
async fn a_name_is_refused_by_the_addresses_it_leads_to() {
    let resolve = async |allow: &[&str]| {
        let resolver = Resolver {
            guard: Some(guard(allow)),
            lookup: system_lookup(),
        };
        resolver.find("localhost".to_owned()).await
    };
    let refused = resolve(&[]).await.unwrap_err();
    let refused = refused.downcast::<Refused>().unwrap();
    assert!(matches!(*refused, Refused::Name { .. }), "{refused}");

    let found = resolve(&["loopback"]).await.unwrap();
    assert!(!found.is_empty() && found.iter().all(|a| a.ip().is_loopback()));
}
