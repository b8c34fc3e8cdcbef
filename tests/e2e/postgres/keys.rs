//! Rotation of the key of bridges that share a database, each with a key file of its own.

use std::time::Duration;

use reqwest::StatusCode;

use super::fleet::Fleet;
use crate::harness::api::quiet;
use crate::harness::until;

/// Id of the key that encrypts, by the mark in the store.
const MARK: &str =
    "SELECT encode(substr(value, 2, 4), 'hex') FROM sealed WHERE name = 'sealed-under'";
/// Nodes that have published two keys.
const TOLD: &str = "SELECT count(*) FROM node
   WHERE json_array_length(convert_from(offer, 'UTF8')::json -> 'keys') = 2";

#[tokio::test]
async fn a_new_key_encrypts_once_all_bridges_have_it() {
    let mut fleet = Fleet::new(&["echo", "echo"]);
    let first = fleet.homes[0].variables["BRIDGE_SECRET_KEY_FILE"].clone();
    let second = fleet.homes[1].dir.path().join("second.key");
    // The first start makes it.
    drop(fleet.homes[0].start());
    std::fs::copy(&first, &second).unwrap();
    fleet.homes[1].set("BRIDGE_SECRET_KEY_FILE", &second.display().to_string());
    let bridges = fleet.start().await;
    let old = fleet.query(MARK);

    let rotated = fleet.homes[0]
        .command()
        .args(["secrets", "rotate"])
        .status();
    assert!(rotated.unwrap().success());
    bridges[0].hang_up();
    let told = async |count: &str| {
        until("the keys are published", async || {
            (fleet.query(TOLD) == count).then_some(())
        })
        .await;
    };
    told("1").await;
    // Time for the first to encrypt with the new key, which the second has not.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fleet.query(MARK), old);

    std::fs::copy(&first, &second).unwrap();
    bridges[1].hang_up();
    told("2").await;
    until("the new key encrypts", async || {
        (fleet.query(MARK) != old).then_some(())
    })
    .await;
    for (number, bridge) in bridges.iter().enumerate() {
        let body = quiet(&format!("t-{number}"), "ok");
        let (status, answer) = bridge.api.post("/api/v2/dispatch", &body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    }
    // A bridge that has the former key alone is refused.
    drop(bridges);
    let former = std::fs::read_to_string(&second).unwrap();
    std::fs::write(&second, former.lines().last().unwrap()).unwrap();
    let log = fleet.homes[1].launch().err().unwrap();
    assert!(log.contains("is encrypted with another key"), "{log}");
}
