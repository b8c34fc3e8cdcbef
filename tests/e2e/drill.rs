//! `forge-bridge drill` with few kills: nothing accepted is lost.

use std::process::Command;

use serde_json::Value;

use super::harness::plugins;

#[test]
fn the_drill_kills_and_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
        .env_clear()
        .env("HOME", home.path())
        .env("BRIDGE_PLUGIN_PATH", plugins())
        .args(["drill", "--kills", "4", "--json"])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{complaints}");
    assert!(complaints.is_empty(), "{complaints}");
    let report: Value = serde_json::from_str(&told).unwrap();
    let count = |name: &str| report[name].as_u64().unwrap();
    assert_eq!(report["passed"], true, "{report}");
    assert_eq!((count("kills"), count("lost")), (4, 0), "{report}");
    assert!(count("accepted") > 20, "{report}");
    assert_eq!(count("accepted"), count("delivered"), "{report}");
    assert!(count("events") >= 4 * count("accepted"), "{report}");
    assert!(report["readyAfterMs"]["longest"].is_u64(), "{report}");
    let left = std::fs::read_dir(home.path()).unwrap().count();
    assert_eq!(left, 0, "the folder is removed");
}
