//! Tests of `tls`.

use super::*;

fn at(year: i32, month: u8, day: u8) -> UnixTime {
    let seconds = rcgen::date_time_ymd(year, month, day).unix_timestamp();
    UnixTime::since_unix_epoch(Duration::from_secs(seconds.try_into().unwrap()))
}

#[test]
fn the_age_of_a_certificate_is_seen_with_any_issuer() {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2026, 2, 1);
    params.not_after = rcgen::date_time_ymd(2026, 5, 1);
    let authority = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    for is_ca in [rcgen::IsCa::NoCa, authority] {
        params.is_ca = is_ca;
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = params.self_signed(&key).unwrap().der().clone();
        for (now, expected) in [
            (at(2026, 1, 1), Age::NotYet(at(2026, 2, 1))),
            (at(2026, 3, 1), Age::Valid),
            (at(2026, 4, 20), Age::EndsSoon(at(2026, 5, 1))),
            (at(2026, 6, 1), Age::Expired(at(2026, 5, 1))),
        ] {
            assert_eq!(age(&leaf, now), expected, "{now:?}");
        }
    }
}

#[test]
fn half_of_it_and_a_pasted_key_are_refused() {
    let config = |cert: Option<&str>, key: Option<&str>| Config {
        cert: cert.map(PathBuf::from),
        key: key.map(PathBuf::from),
        ..Config::default()
    };
    assert!(Tls::open(&config(None, None)).unwrap().is_none());
    let pasted = "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\n";
    for (config, wanted) in [
        (config(Some("a"), None), "tls.key is not set"),
        (config(None, Some("a")), "tls.cert is not set"),
        (
            config(Some("/dev/null"), Some(pasted)),
            "tls.key must be the path",
        ),
        (config(Some("/dev/zero"), Some("a")), "longer than any"),
    ] {
        let error = Tls::open(&config).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
}
