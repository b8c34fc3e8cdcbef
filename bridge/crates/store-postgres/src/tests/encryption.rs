//! TLS between a store and its server.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use forge_store::Config;
use forge_store::contract::sample::{accept, task};
use forge_store::roles::Maintenance as _;

use super::cluster::Cluster;
use crate::{Postgres, Target};

async fn open(url: &str) -> Result<Postgres, String> {
    let target = Target::new(url, None).unwrap();
    let store = Postgres::open(&Config::default(), target, "node").await;
    store.map_err(|error| error.to_string())
}

/// Writes the certificate and the key of a server for `localhost`, readable by the user that it runs as.
fn write_certificate(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("cert"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("key"), made.signing_key.serialize_pem()).unwrap();
    let script =
        r#"chmod 755 "$1"; chmod 600 "$1/key"; [ "$(id -u)" != 0 ] || chown postgres "$1/key""#;
    let done = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(folder)
        .status();
    assert!(done.unwrap().success());
}

#[tokio::test]
async fn a_certificate_is_verified_where_tls_is_required() {
    let folder = tempfile::tempdir().unwrap();
    write_certificate(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let settings = [
        "listen_addresses=127.0.0.1".to_owned(),
        format!("port={free}"),
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", file("cert")),
        format!("ssl_key_file={}", file("key")),
    ];
    let options = settings.iter().flat_map(|setting| ["-c", setting]);
    let _server = Cluster::start(&options.collect::<Vec<_>>());
    let url = |host: &str, settings: &str| {
        format!("postgres://forge@{host}:{free}/postgres?application_name=test{settings}")
    };
    let roots = format!("&sslrootcert={}", file("cert"));
    for (host, settings, expected) in [
        (
            "localhost",
            "",
            Some("invalid peer certificate: UnknownIssuer"),
        ),
        ("localhost", "&sslmode=require", Some("UnknownIssuer")),
        ("127.0.0.1", &roots, Some("certificate not valid for name")),
        ("localhost", &roots, None),
        ("localhost", "&sslmode=prefer", None),
        ("127.0.0.1", "&sslmode=disable", None),
    ] {
        let opened = open(&url(host, settings)).await;
        match (opened, expected) {
            (Ok(store), None) => {
                accept(&store, task(settings)).await;
                store.close().await;
            }
            (Err(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
            (opened, _) => panic!("{host}{settings}: {:?}", opened.map(drop)),
        }
    }
}
