//! Rules for loading libraries, one row for each rule.

use std::fs::{self, Permissions};
use std::os::unix::fs::{self as unix, PermissionsExt as _};
use std::path::{Path, PathBuf};

use forge_base::digest::{hex, sha256};
use forge_plugin_host::{Config, Registry, Trust};
use serde_json::json;

use super::{Place, SOON, run, start};

/// A library and the configuration to load it with.
struct Case {
    place: Place,
    library: PathBuf,
    config: Config,
}

impl Case {
    fn new() -> Self {
        let place = Place::new();
        let library = place.compile("c-echo", "c-adapter/adapter.c", &[]);
        let config = place.setup(&["c-echo"]).config;
        Self {
            place,
            library,
            config,
        }
    }

    fn folder(&self) -> &Path {
        self.library.parent().unwrap()
    }

    fn allow(&mut self, name: &str, sha256: Option<&str>) {
        let list = json!([{ "name": name, "sha256": sha256 }]);
        self.config.allow = serde_json::from_value(list).unwrap();
    }

    fn digest(&self) -> String {
        hex(&sha256(fs::read(&self.library).unwrap()))
    }

    fn copies(&self) -> PathBuf {
        self.place.folder.path().join("state/adapters/c-echo")
    }

    fn copy(&self) -> PathBuf {
        let end = std::env::consts::DLL_EXTENSION;
        self.copies().join(format!("{}.{end}", self.digest()))
    }

    /// Loads the library and checks that it works; returns the error if it is refused.
    async fn load(&self) -> Option<String> {
        let mut setup = self.place.setup(&["c-echo"]);
        setup.config = self.config.clone();
        let (registry, _relayed) = match Registry::start(setup).await {
            Ok(started) => started,
            Err(error) => return Some(error.to_string()),
        };
        let (_, answer) = run(&registry.get("c-echo").unwrap(), "ok").await;
        assert_eq!(answer.unwrap()["output"], "hello from C");
        registry.shutdown(SOON).await;
        None
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Change of a library or the configuration before loading.
type Change = fn(&mut Case);
/// Text that the error must contain; `None` if the library is loaded.
type Wanted = Option<&'static str>;

#[tokio::test]
async fn only_what_no_other_user_can_write_and_the_list_allows_is_loaded() {
    let rows: &[(&str, Change, Wanted)] = &[
        ("as it should be", |_| {}, None),
        (
            "others may write it",
            |case| mode(&case.library, 0o757),
            Some("(mode 0757, uid"),
        ),
        (
            "others may write its folder",
            |case| mode(case.folder(), 0o777),
            Some("it is writable by others"),
        ),
        (
            "others may write a folder above its own",
            |case| mode(case.place.folder.path(), 0o777),
            Some("it is writable by others"),
        ),
        (
            "others may add to a folder above its own, not replace",
            |case| mode(case.place.folder.path(), 0o1777),
            None,
        ),
        (
            "others may write it, and that is said only",
            |case| {
                mode(&case.library, 0o757);
                case.config.trust = Trust::Warn;
            },
            None,
        ),
        (
            "a symbolic link, which a warning does not do for",
            |case| {
                let real = case.folder().join("real.so");
                fs::rename(&case.library, &real).unwrap();
                unix::symlink(&real, &case.library).unwrap();
                case.config.trust = Trust::Warn;
            },
            Some("is a symbolic link"),
        ),
        (
            "a link to nothing",
            |case| {
                fs::remove_file(&case.library).unwrap();
                unix::symlink("/nowhere", &case.library).unwrap();
            },
            Some("is a symbolic link"),
        ),
        (
            "a folder",
            |case| {
                fs::remove_file(&case.library).unwrap();
                fs::create_dir(&case.library).unwrap();
            },
            Some("is not a regular file"),
        ),
        (
            "any file of this name",
            |case| case.allow("c-echo", None),
            None,
        ),
        (
            "this file",
            |case| {
                let digest = case.digest();
                case.allow("c-echo", Some(&digest));
            },
            None,
        ),
        (
            "this file, in capitals",
            |case| {
                let digest = case.digest().to_uppercase();
                case.allow("c-echo", Some(&digest));
            },
            None,
        ),
        (
            "another name",
            |case| case.allow("other", None),
            Some("not on the allow-list"),
        ),
        (
            "another file",
            |case| case.allow("c-echo", Some("00ff")),
            Some("the allow-list wants 00ff"),
        ),
        (
            "another file, which a warning does not do for",
            |case| {
                case.allow("c-echo", Some("00ff"));
                case.config.trust = Trust::Warn;
            },
            Some("the allow-list wants 00ff"),
        ),
    ];
    for (name, change, wanted) in rows {
        check(name, *change, *wanted).await;
    }
}

#[tokio::test]
async fn what_belongs_to_another_user_or_a_shared_group_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("not run: only root can give files away; `trust.rs` has the rule as a table");
        return;
    }
    let rows: &[(&str, Change, Wanted)] = &[
        (
            "another user's",
            |case| unix::chown(&case.library, Some(12_345), None).unwrap(),
            Some("it belongs to another user"),
        ),
        (
            "in another user's folder",
            |case| unix::chown(case.folder(), Some(12_345), None).unwrap(),
            Some("it belongs to another user"),
        ),
        (
            "below another user's folder",
            |case| unix::chown(case.place.folder.path(), Some(12_345), None).unwrap(),
            Some("it belongs to another user"),
        ),
        (
            "a shared group may write it",
            |case| {
                unix::chown(&case.library, None, Some(12_345)).unwrap();
                mode(&case.library, 0o775);
            },
            Some("it is writable by a group"),
        ),
        (
            "a shared group may write its folder",
            |case| {
                unix::chown(case.folder(), None, Some(12_345)).unwrap();
                mode(case.folder(), 0o775);
            },
            Some("it is writable by a group"),
        ),
        (
            "a shared group may only read it",
            |case| unix::chown(&case.library, None, Some(12_345)).unwrap(),
            None,
        ),
    ];
    for (name, change, wanted) in rows {
        check(name, *change, *wanted).await;
    }
}

async fn check(name: &str, change: Change, wanted: Wanted) {
    let mut case = Case::new();
    change(&mut case);
    let found = case.load().await;
    assert_eq!(found.is_some(), wanted.is_some(), "{name}: {found:?}");
    let found = found.unwrap_or_default();
    assert!(
        found.contains(wanted.unwrap_or_default()),
        "{name}: {found}"
    );
    if wanted.is_some() {
        let kept = fs::read_dir(case.copies()).map_or(0, Iterator::count);
        assert_eq!(kept, 0, "{name}: what is refused is not kept");
    }
}

/// Replaces private copies that were changed or are links, instead of loading them.
#[tokio::test]
async fn a_private_copy_is_what_its_name_says() {
    let case = Case::new();
    assert_eq!(case.load().await, None);
    let (copy, good) = (case.copy(), fs::read(case.copy()).unwrap());
    assert_eq!(good, fs::read(&case.library).unwrap());
    let permissions = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let tamper: [fn(&Path); 3] = [
        |copy| fs::write(copy, "something else").unwrap(),
        |copy| drop(fs::File::create(copy).unwrap()),
        |copy| unix::symlink("/nowhere", copy).unwrap(),
    ];
    for tamper in tamper {
        // Removed before it is replaced, because the image stays mapped.
        fs::remove_file(&copy).unwrap();
        tamper(&copy);
        mode(&case.copies(), 0o755);
        assert_eq!(case.load().await, None);
        assert_eq!(fs::read(&copy).unwrap(), good);
        assert!(!copy.is_symlink());
        assert_eq!(
            (permissions(&copy), permissions(&case.copies())),
            (0o400, 0o700)
        );
        assert_eq!(fs::read_dir(case.copies()).unwrap().count(), 1);
    }
}

/// Overwriting a mapped file crashes its users, so the bridge runs a copy.
#[tokio::test]
async fn a_file_that_is_written_over_in_place_harms_no_execution() {
    let case = Case::new();
    let (registry, _relayed) = start(case.place.setup(&["c-echo"])).await;
    let adapter = registry.get("c-echo").unwrap();
    fs::write(&case.library, "").unwrap();
    let (_, answer) = run(&adapter, "ok").await;
    assert_eq!(answer.unwrap()["output"], "hello from C");
    assert!(adapter.reload().await.is_err());
    let (_, answer) = run(&adapter, "ok").await;
    assert_eq!(answer.unwrap()["output"], "hello from C");
    registry.shutdown(SOON).await;
}

/// Threads and thread-locals of a library can outlive every instance.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn an_image_stays_after_its_last_instance() {
    let case = Case::new();
    assert_eq!(case.load().await, None);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains(&case.copy().display().to_string()));
}
