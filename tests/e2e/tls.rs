//! TLS of the listener: certificates and their reload, refused files, and handshakes that never finish.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use reqwest::{Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::harness::api::{owed, quiet};
use super::harness::process::{Home, Process};
use super::harness::{Api, Bridge, until};

/// A self-signed certificate for `localhost` and its key, in PEM.
struct Made {
    cert: String,
    key: String,
}

fn made() -> Made {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    Made {
        cert: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
    }
}

/// Certificate and key file of a bridge.
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

impl Files {
    fn at(folder: &Path, made: &Made) -> Self {
        let files = Self {
            cert: folder.join("tls.crt"),
            key: folder.join("tls.key"),
        };
        files.hold(made);
        files
    }

    fn hold(&self, made: &Made) {
        fs::write(&self.cert, &made.cert).unwrap();
        fs::write(&self.key, &made.key).unwrap();
        fs::set_permissions(&self.key, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn variables(&self) -> [(String, String); 2] {
        [
            ("BRIDGE_TLS_CERT", &self.cert),
            ("BRIDGE_TLS_KEY", &self.key),
        ]
        .map(|(name, path)| (name.to_owned(), path.display().to_string()))
    }
}

/// A home whose bridge has this certificate.
fn home(made: &Made) -> (Home, Files) {
    let mut home = Home::new(&[]);
    let files = Files::at(home.dir.path(), made);
    home.variables.extend(files.variables());
    (home, files)
}

async fn serves(api: &Api) -> bool {
    let request = api.request(Method::GET, "/api/health/live");
    request
        .send()
        .await
        .is_ok_and(|answer| answer.status() == StatusCode::OK)
}

/// Runs a command against a bridge; the command trusts this file.
fn command(home: &Home, bridge: &Process, ca: &Path, arguments: &[&str]) -> Output {
    let url = bridge.api.url.replace("127.0.0.1", "localhost");
    let mut command = home.command();
    command
        .args(arguments)
        .args(["--url", &url, "--ca"])
        .arg(ca);
    command.output().unwrap()
}

#[tokio::test]
async fn only_a_client_that_trusts_the_certificate_is_served() {
    let (made, other) = (made(), made());
    let (home, files) = home(&made);
    let bridge = home.start();
    assert!(bridge.api.url.starts_with("https://"), "{}", bridge.api.url);
    assert!(serves(&Api::trusting(&bridge.api.url, &made.cert)).await);
    assert!(!serves(&Api::trusting(&bridge.api.url, &other.cert)).await);
    let clear = bridge.api.url.replace("https", "http");
    assert!(!serves(&Api::new(clear)).await, "nothing goes in the clear");

    let done = command(&home, &bridge, &files.cert, &["dispatch", "hello"]);
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    for arguments in [["deliveries"].as_slice(), &["adapters"], &["health"]] {
        let done = command(&home, &bridge, &files.cert, arguments);
        assert!(done.status.success(), "{arguments:?}");
    }
    let strange = home.dir.path().join("other.crt");
    fs::write(&strange, &other.cert).unwrap();
    let refused = command(&home, &bridge, &strange, &["health"]);
    assert_eq!(refused.status.code(), Some(3));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("certificate"), "{said}");
}

/// The receiver is another bridge: it answers the callback with 400, which is readable only if it is trusted.
#[tokio::test]
async fn a_callback_goes_only_to_a_receiver_that_the_machine_trusts() {
    let trusted = made();
    let (home, files) = home(&trusted);
    let receiver = home.start();
    let url = receiver.api.url.replace("127.0.0.1", "localhost") + "/api/v2/dispatch";
    let strange = home.dir.path().join("strange.crt");
    fs::write(&strange, made().cert).unwrap();
    for (ca, expected) in [
        (&files.cert, (Some(400), None)),
        (&strange, (None, Some("the TLS handshake failed"))),
    ] {
        let mut home = Home::new(&[]);
        home.set("SSL_CERT_FILE", &ca.display().to_string());
        let bridge = home.start();
        let id = bridge.api.dispatch(owed("one", "ok", &url)).await;
        let attempt = async || {
            let record = bridge.api.record(&id).await;
            let path = record["deliveries"][0]["href"].as_str()?.to_owned();
            let (_, delivery) = bridge.api.get(&path).await;
            Some(delivery["attempts"][0].clone()).filter(|attempt| !attempt.is_null())
        };
        let attempt = until("an attempt", attempt).await;
        let error = attempt["error"].as_str();
        let error = error.and_then(|error| error.split(':').next());
        assert_eq!((attempt["status"].as_u64(), error), expected, "{attempt}");
    }
}

#[tokio::test]
async fn a_new_certificate_is_shown_while_a_stream_stays_open() {
    let (first, second) = (made(), made());
    let folder = tempfile::tempdir().unwrap();
    let files = Files::at(folder.path(), &first);
    let [cert, key] = files.variables();
    let variables = [&cert, &key].map(|(name, path)| (name.as_str(), path.as_str()));
    let every = ("BRIDGE_TLS_EVERY", "20ms");
    let bridge = Bridge::with(&[variables[0], variables[1], every]).await;
    let url = &bridge.api.url;
    let (old, new) = (
        Api::trusting(url, &first.cert),
        Api::trusting(url, &second.cert),
    );
    let stream = old
        .request(Method::GET, "/api/v2/events")
        .header("accept", "application/x-ndjson");
    let mut stream = stream.send().await.unwrap();
    assert!(!serves(&new).await);

    // A certificate without its key is not applied, nor is a truncated file.
    fs::write(&files.cert, &second.cert).unwrap();
    fs::write(&files.key, &second.key[..40]).unwrap();
    assert!(serves(&Api::trusting(url, &first.cert)).await);
    files.hold(&second);
    until("the new certificate", || async {
        serves(&new).await.then_some(())
    })
    .await;
    assert!(!serves(&Api::trusting(url, &first.cert)).await);

    new.run(quiet("t-1", "ok")).await;
    let mut told = String::new();
    while !told.contains("execution.completed") {
        let chunk = stream.chunk().await.unwrap().expect("the stream is open");
        told.push_str(&String::from_utf8_lossy(&chunk));
    }
    drop(stream);
    bridge.stop().await;
}

#[tokio::test]
async fn sighup_reloads_the_files_and_refuses_half_of_them() {
    let (first, second) = (made(), made());
    let (home, files) = home(&first);
    let bridge = home.start();
    let new = Api::trusting(&bridge.api.url, &second.cert);
    let said = |text: &'static str| {
        let home = &home;
        move || async move { home.log().contains(text).then_some(()) }
    };
    fs::write(&files.key, &second.key).unwrap();
    bridge.hang_up();
    until("the refusal", said("settings unchanged: tls.key")).await;
    assert!(serves(&Api::trusting(&bridge.api.url, &first.cert)).await);
    files.hold(&second);
    bridge.hang_up();
    until("the reload", said("no configuration file to reload")).await;
    assert!(serves(&new).await);
}

#[test]
fn what_cannot_be_served_is_one_line_at_the_start() {
    let (first, second) = (made(), made());
    let (home, files) = home(&first);
    type Spoil = fn(&Files, &Made);
    let cases: [(Spoil, &str); 4] = [
        (
            |files, other| fs::write(&files.key, &other.key).unwrap(),
            "is not the key of the certificate in tls.cert",
        ),
        (
            |files, _| fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).unwrap(),
            "can be read or changed by others (mode 644); run: chmod 600",
        ),
        (
            |files, _| fs::write(&files.cert, "").unwrap(),
            "holds no certificate in PEM",
        ),
        (
            |files, _| fs::remove_file(&files.cert).unwrap(),
            "cannot read tls.cert",
        ),
    ];
    for (spoil, wanted) in cases {
        files.hold(&first);
        spoil(&files, &second);
        let ended = home.command().output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{wanted}");
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains(wanted), "{wanted:?} is not in {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let checked = home.command().arg("check").output().unwrap();
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(said.contains(wanted), "{wanted:?} is not in {said}");
    }
}

#[tokio::test]
async fn handshakes_that_do_not_come_delay_no_client() {
    let made = made();
    let folder = tempfile::tempdir().unwrap();
    let [cert, key] = Files::at(folder.path(), &made).variables();
    let bridge = Bridge::with(&[
        (&cert.0, &cert.1),
        (&key.0, &key.1),
        ("BRIDGE_HTTP_HEADER_TIMEOUT", "500ms"),
    ])
    .await;
    let address = bridge.app.as_ref().unwrap().addr;
    let mut stuck = Vec::new();
    for number in 0..100_u8 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Sends the beginning of a handshake, or nothing.
        let begin: &[u8] = if number % 2 == 0 { &[0x16, 3, 1] } else { &[] };
        stream.write_all(begin).await.unwrap();
        stuck.push(stream);
    }
    assert!(serves(&Api::trusting(&bridge.api.url, &made.cert)).await);
    for mut stream in stuck {
        // The bridge closes the connection, with or without an alert.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    let mut clear = TcpStream::connect(address).await.unwrap();
    clear
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = clear.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    bridge.stop().await;
}

#[tokio::test]
async fn a_listener_for_the_network_without_tls_is_warned_about() {
    let home = Home::new(&[("BRIDGE_LISTEN", "0.0.0.0:0"), ("BRIDGE_TOKENS", "one")]);
    let bridge = home.start();
    let warned = || async {
        home.log()
            .contains("reachable from the network without TLS")
            .then_some(())
    };
    until("the warning", warned).await;
    bridge.kill();

    let (mut home, _) = self::home(&made());
    let network = [("BRIDGE_LISTEN", "0.0.0.0:0"), ("BRIDGE_TOKENS", "one")];
    home.variables
        .extend(network.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let bridge = home.start();
    bridge.terminate();
    assert!(bridge.wait().success());
    let log = home.log();
    assert!(!log.contains("without TLS"), "{log}");
}

#[tokio::test]
async fn an_expired_certificate_is_a_warning() {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap();
    let (home, _) = home(&Made {
        cert: cert.pem(),
        key: key.serialize_pem(),
    });
    let _bridge = home.start();
    let warned = || async {
        home.log()
            .contains("expired at 2021-01-01T00:00:00Z")
            .then_some(())
    };
    until("the warning", warned).await;
}

/// For a name of other machines alone: `localhost` has other servers too, on other ports.
#[tokio::test]
async fn a_browser_is_kept_to_tls_by_a_bridge_that_speaks_it() {
    let made = made();
    let folder = tempfile::tempdir().unwrap();
    let files = Files::at(folder.path(), &made);
    let [cert, key] = files.variables();
    let [cert, key] = [&cert, &key].map(|(name, path)| (name.as_str(), path.as_str()));
    let hosts = ("BRIDGE_HTTP_HOSTS", "bridge.example");
    let encrypted = Bridge::with(&[cert, key, hosts]).await;
    let clear = Bridge::with(&[hosts]).await;
    let trusting = Api::trusting(&encrypted.api.url, &made.cert);
    for (api, host, expected) in [
        (&trusting, "bridge.example", Some("max-age=31536000")),
        (&trusting, "bridge.example:7420", Some("max-age=31536000")),
        (&trusting, "localhost", None),
        (&trusting, "LOCALHOST:7420", None),
        (&trusting, "127.0.0.1:7420", None),
        (&clear.api, "bridge.example", None),
    ] {
        for path in ["/api/health", "/", "/nowhere"] {
            let request = api.request(Method::GET, path).header("host", host);
            let answer = request.send().await.unwrap();
            let given = answer.headers().get("strict-transport-security");
            let given = given.map(|value| value.to_str().unwrap());
            assert_eq!(given, expected, "{host} {path}: {}", answer.status());
        }
    }
    encrypted.stop().await;
    clear.stop().await;
}
