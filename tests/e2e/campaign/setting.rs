//! The two ways in which a campaign runs its bridge.

use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::harness::image::Image;
use super::super::harness::process::Home;
use super::super::harness::{library, plugins};

/// A user without rights: that of files without a known owner.
const ORDINARY_USER: u32 = 65534;

/// Runs the bridge as in a container of the image: its folders at their places, with its users, in a root that cannot be
/// written. `$1` is the home, `$2` the capabilities, `$3` the program that the harness appends.
const CONTAINER: &str = r#"
set -e
cd "$1"
for folder in /opt /srv /var/lib /var/cache; do mount -t tmpfs -o mode=755 none "$folder"; done
while read -r from to mode; do
    mkdir -p "$to"
    mount --bind "$from" "$to"
    mount -o "remount,bind,$mode" "$to"
done < mounts
for file in passwd group hosts; do
    mount --bind "$file" "/etc/$file"
    mount -o remount,bind,ro "/etc/$file"
done
mount --bind tmp /tmp
mount -o remount,bind,ro /
cd /opt/forge-bridge
capabilities=$2
shift 3
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="$capabilities" /opt/forge-bridge/forge-bridge "$@"
"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    /// The settings of the image and of the compose file, as root with `process.user`.
    Shipped,
    /// Defaults, as an ordinary user.
    Ordinary,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Setting::Shipped => "settings of the image",
            Setting::Ordinary => "defaults",
        })
    }
}

/// Files of a bridge: as the test opens them, and as the bridge knows them.
pub(super) struct Places {
    setting: Setting,
    root: PathBuf,
}

impl Places {
    /// Program, settings and plugins.
    pub(super) fn program(&self) -> PathBuf {
        self.root.join("opt")
    }

    pub(super) fn key(&self) -> PathBuf {
        match self.setting {
            Setting::Shipped => self.root.join("lib/secret.key"),
            Setting::Ordinary => self.root.join("own/.config/forge-bridge/secret.key"),
        }
    }

    pub(super) fn store(&self) -> PathBuf {
        match self.setting {
            Setting::Shipped => self.root.join("lib/store"),
            Setting::Ordinary => self.root.join("own/.local/share/forge-bridge"),
        }
    }

    /// Folder of `dispatch.workspace_roots`.
    pub(super) fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    /// File of the names of hosts, if the bridge has one of its own.
    pub(super) fn hosts(&self) -> Option<PathBuf> {
        (self.setting == Setting::Shipped).then(|| self.root.join("hosts"))
    }

    /// User of the programs of adapters, of a bridge that has another one.
    pub(super) fn agents(&self) -> Option<u32> {
        (self.setting == Setting::Shipped).then(|| agents_user(&Image::read()).1)
    }

    /// User of the bridge.
    pub(super) fn owner(&self) -> u32 {
        match self.setting {
            Setting::Ordinary if is_root() => ORDINARY_USER,
            _ => rustix::process::geteuid().as_raw(),
        }
    }

    /// Path as the bridge knows it.
    pub(super) fn seen(&self, path: &Path) -> String {
        let inner = path.strip_prefix(&self.root).unwrap();
        if self.setting == Setting::Ordinary {
            return path.display().to_string();
        }
        let mounts = mounts(&Image::read());
        let found = mounts.iter().find_map(|(from, to, _)| {
            let rest = inner.strip_prefix(from).ok()?;
            Some(Path::new(to).join(rest).display().to_string())
        });
        found.unwrap_or_else(|| panic!("the bridge cannot see {}", inner.display()))
    }
}

/// A home with the program, the plugins `echo`, `acp` and `command`, and these settings. `None` where the setting is
/// impossible on this machine.
pub(super) fn home(setting: Setting) -> Option<(Home, Places)> {
    if setting == Setting::Shipped && !can_mount() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    mode(&root, 0o755);
    for folder in [
        "opt/plugins",
        "lib",
        "cache",
        "agent",
        "own",
        "work",
        "runs",
        "tmp",
    ] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    mode(&root.join("opt"), 0o755);
    mode(&root.join("opt/plugins"), 0o755);
    let program = Path::new(env!("CARGO_BIN_EXE_forge-bridge"));
    let copy = root.join("opt/forge-bridge");
    // Another file system has no second name for it.
    if fs::hard_link(program, &copy).is_err() {
        fs::copy(program, &copy).unwrap();
    }
    for name in ["echo", "acp", "command"].map(library::file_name) {
        let copy = root.join("opt/plugins").join(&name);
        fs::copy(plugins().join(&name), &copy).unwrap();
        library::make_safe(&copy);
    }
    let places = Places { setting, root };
    let mut home = Home {
        dir,
        variables: Default::default(),
        wrapper: Vec::new(),
    };
    match setting {
        Setting::Shipped => shipped(&mut home, &places),
        Setting::Ordinary => ordinary(&mut home, &places),
    }
    home.set("BRIDGE_LISTEN", "127.0.0.1:0");
    home.set("BRIDGE_SIGNALS_LISTEN", "127.0.0.1:0");
    home.set("BRIDGE_DRAIN_ACCEPT", "0s");
    home.set(
        "BRIDGE_RUNS_FOLDER",
        &places.seen(&places.root.join("runs")),
    );
    home.set(
        "BRIDGE_DISPATCH_WORKSPACE_ROOTS",
        &places.seen(&places.work()),
    );
    Some((home, places))
}

fn shipped(home: &mut Home, places: &Places) {
    let (image, root) = (Image::read(), &places.root);
    home.variables = image.variables.clone();
    let path = format!(
        "{}:{}",
        image.variables["PATH"],
        std::env::var("PATH").unwrap()
    );
    home.set("PATH", &path.replace("$PATH:", ""));
    let lines = mounts(&image).into_iter();
    let lines = lines.map(|(from, to, mode)| format!("{from} {to} {mode}\n"));
    fs::write(root.join("mounts"), lines.collect::<String>()).unwrap();
    for (file, separator) in [("passwd", "/home:/bin/sh"), ("group", "")] {
        let mut text = fs::read_to_string(format!("/etc/{file}")).unwrap();
        for (name, id, home) in &image.users {
            text.push_str(&match file {
                "passwd" => format!("{name}:x:{id}:{id}::{home}:/bin/sh\n"),
                _ => format!("{name}:x:{id}:{separator}\n"),
            });
        }
        fs::write(root.join(file), text).unwrap();
    }
    fs::write(root.join("hosts"), "127.0.0.1 localhost\n").unwrap();
    for (folder, bits) in &image.folders {
        let (from, _, _) = mounts(&image)
            .into_iter()
            .find(|(_, to, _)| to == folder)
            .unwrap();
        mode(&root.join(from), *bits);
    }
    mode(&root.join("tmp"), 0o1777);
    mode(&root.join("work"), 0o711);
    mode(&root.join("runs"), 0o711);
    let (_, user) = agents_user(&image);
    chown(root.join("agent"), Some(user), Some(user)).unwrap();
    let capabilities = image
        .capabilities
        .iter()
        .map(|name| format!(",+{}", name.to_lowercase()));
    let capabilities = format!("-all{}", capabilities.collect::<String>());
    let root = root.display().to_string();
    let words = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        CONTAINER,
        "sh",
        &root,
        &capabilities,
    ];
    home.wrapper = words.map(str::to_owned).into();
}

fn ordinary(home: &mut Home, places: &Places) {
    let root = &places.root;
    home.set("HOME", &root.join("own").display().to_string());
    home.set("TMPDIR", &root.join("tmp").display().to_string());
    home.set("PATH", &std::env::var("PATH").unwrap());
    let program = root.join("opt/forge-bridge").display().to_string();
    let script = format!(
        "cd {} && shift && exec {program} \"$@\"",
        root.join("opt").display()
    );
    let shell = ["sh", "-c", &script, "sh"];
    let id = ORDINARY_USER.to_string();
    let user = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
    let words = user.into_iter().filter(|_| is_root()).chain(shell);
    home.wrapper = words.map(str::to_owned).collect();
    for folder in ["own", "work", "runs", "tmp"] {
        let folder = root.join(folder);
        mode(&folder, 0o700);
        if is_root() {
            chown(folder, Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
        }
    }
}

/// Folders of the home with their places in the container. The first one that holds a path is its place.
fn mounts(image: &Image) -> Vec<(&'static str, String, &'static str)> {
    let home = image.variables["HOME"].clone();
    let (agents, _) = agents_user(image);
    vec![
        ("opt", image.working_folder.clone(), "ro"),
        ("lib", home, "rw"),
        ("cache", "/var/cache/forge-bridge".to_owned(), "rw"),
        ("agent", agents, "rw"),
        ("work", "/srv/work".to_owned(), "rw"),
        ("runs", "/srv/runs".to_owned(), "rw"),
    ]
}

/// Home and number of the user that `process.user` names.
fn agents_user(image: &Image) -> (String, u32) {
    let wanted = &image.variables["BRIDGE_PROCESS_USER"];
    let user = image.users.iter().find(|(name, _, _)| name == wanted);
    let (_, id, home) = user.unwrap();
    (home.clone(), *id)
}

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[expect(clippy::print_stdout, reason = "a test that does not run says why")]
fn can_mount() -> bool {
    let tried = is_root().then(|| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", "mount -t tmpfs none /srv"])
            .output()
    });
    let can = matches!(tried, Some(Ok(output)) if output.status.success());
    if !can {
        println!("not run: the settings of the image need root and the right to mount");
    }
    can
}
