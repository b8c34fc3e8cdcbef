//! Incompatible libraries: each is refused with one clear line, and the process keeps running.

use std::fs;

use super::{Place, refusal};

/// Error line about the library that `make` installs as `broken`.
async fn line(make: impl FnOnce(&Place)) -> String {
    let place = Place::new();
    make(&place);
    let line = refusal(place.setup(&["broken"])).await.to_string();
    assert!(!line.contains('\n') && line.len() < 800, "{line}");
    line
}

/// Replaces a text by another one of the same length.
fn replace(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let places: Vec<usize> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, window)| *window == from)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    bytes
}

#[tokio::test]
async fn a_plain_library_of_another_shape_is_refused() {
    let table = [
        ("MAJOR", "speaks ABI 2, this bridge ABI 1"),
        ("SIZE", "its entry has 32 bytes, wanted 24"),
        ("NULLS", "its entry lacks manifest or create"),
        ("NO_ENTRY", "exports neither"),
        ("SCHEMA", "speaks JSON schemas 2 to 3, this bridge 1"),
        ("ABORT", r#"panic = "abort", wanted "unwind""#),
        ("MANIFEST", "unusable manifest"),
        ("HEADER", "another abi_stable (found"),
        ("INSTANCE_SIZE", "an instance table of 32 bytes, wanted 40"),
        ("INSTANCE_NULL", "without start, cancel or destroy"),
        ("NOTHING", "create failed: no room"),
    ];
    for (define, expected) in table {
        let line = line(|place| {
            place.compile("broken", "broken-abi/broken.c", &[define]);
        })
        .await;
        assert!(line.contains(expected), "{define}: {line}");
    }
}

#[tokio::test]
async fn a_rust_library_of_another_shape_is_refused() {
    // Renames a field of the boundary, and changes an id inside.
    let layout = line(|place| {
        place.echo_as("broken", |bytes| {
            replace(bytes, b"complete_fn", b"complete_gn")
        });
    })
    .await;
    assert!(layout.contains("an incompatible ABI layout"), "{layout}");

    let other = line(|place| {
        place.echo_as("broken", |bytes| bytes);
    })
    .await;
    assert!(
        other.contains(r#"is the adapter "echo", wanted "broken""#),
        "{other}"
    );
}

#[tokio::test]
async fn what_is_no_library_for_this_machine_is_refused() {
    let written =
        async |bytes: &[u8]| line(|place| fs::write(place.library("broken"), bytes).unwrap()).await;
    assert!(
        written(b"hello, I am a text\n")
            .await
            .contains("is a text file; wanted")
    );
    assert!(written(b"").await.contains("is an empty file"));

    let foreign = line(|place| {
        place.echo_as("broken", |mut bytes| {
            bytes[18..20].copy_from_slice(&243_u16.to_le_bytes());
            bytes
        });
    })
    .await;
    assert!(
        foreign.contains("is a library for riscv64; wanted"),
        "{foreign}"
    );

    let short = line(|place| {
        place.echo_as("broken", |mut bytes| {
            bytes.truncate(100_000);
            bytes
        });
    })
    .await;
    assert!(
        short.contains("is a library that was cut off (100000 of at least"),
        "{short}"
    );
}
