//! Tests of `pattern`.

use forge_net::guard::Guard;

use super::super::UrlRules;
use super::*;

/// Keys, addresses that they cover, and addresses that they do not, after a `!`.
const REMOTE: &str = "
    https://git.example.com/team/shop
        https://git.example.com/team/shop https://git.example.com/team/shop/ https://git.example.com/team/shop.git
        https://git.example.com/team/shop.git/ HTTPS://GIT.Example.COM/team/shop https://git.example.com:443/team/shop
        https://git.example.com./team/shop https://git.example.com//team///shop https://git.example.com/team/./shop
        https://git.example.com/x/../team/shop https://git.example.com/%74eam/sho%70 https://git%2eexample.com/team/shop
        https://git.example.com/team/shop/.git https://git.example.com/team/shop/part
        ! https://git.example.com/team/shop-2 https://git.example.com/team https://git.example.com:8443/team/shop
        https://git.example.com/Team/shop https://git.example.org/team/shop http://git.example.com/team/shop
        https://git.example.com.evil.org/team/shop https://git.example.com/team/shop-b.git
    https://git.example.com/team/
        https://git.example.com/team https://git.example.com/team/a https://git.example.com/team/a/b.git
        ! https://git.example.com/team-b/a https://git.example.com/teams https://git.example.com/a/team/a
    https://GIT.example.com:443/%74eam/../team/shop.git/
        https://git.example.com/team/shop https://git.example.com/team/shop.git
        ! https://git.example.com/team/shop/part https://git.example.com/team/shop.git/part
    https://git.example.com/team/*
        https://git.example.com/team/a https://git.example.com/team/a/b ! https://git.example.com/team
    https://git.example.com/team/sh*
        https://git.example.com/team/shop https://git.example.com/team/sh.git https://git.example.com/team/shop/part
        https://git.example.com/%74eam//sh%6fp/ ! https://git.example.com/team/s https://git.example.com/sh/shop
    https://exämple.com/a
        https://xn--exmple-cua.com/a ! https://example.com/a
    ssh://git@git.example.com/team
        ssh://git@GIT.example.com:22/team ssh://git@git.example.com/team/a.git ssh://gi%74@git.example.com/team/a
        ssh://root@git.example.com/team/a ! ssh://git@git.example.com:2222/team https://git.example.com/team/a
    https://[::1]:8443/a
        https://[0:0:0:0:0:0:0:1]:8443/a.git ! https://[::2]:8443/a
    https://127.0.0.1/a
        https://0x7f.1/a https://2130706433/a ! https://127.0.0.2/a";

/// Address as the rules make it, for any caller.
fn address(text: &str) -> RepoUrl {
    let everywhere = ["https", "http", "ssh"].map(|scheme| {
        let user = if scheme == "ssh" {
            ["git@", "root@"]
        } else {
            ["", ""]
        };
        user.map(|user| {
            let url = Url::parse(text).unwrap();
            let port = url.port().map_or(String::new(), |port| format!(":{port}"));
            format!("{scheme}://{user}{}{port}/*", url.host_str().unwrap())
        })
    });
    let guard = Guard::new(&[
        "loopback".to_owned(),
        "127.0.0.0/8".to_owned(),
        "[::2]".to_owned(),
    ]);
    let rules = UrlRules::new(&everywhere.concat(), &[], guard.unwrap()).unwrap();
    rules
        .check(text)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_key_covers_every_spelling_of_its_addresses_and_no_neighbour() {
    let (mut key, mut is_covered, mut seen) = (None, true, 0);
    for line in REMOTE.lines() {
        let is_key = line.starts_with("    ") && !line.starts_with("        ");
        for word in line.split_whitespace() {
            match word {
                "!" => is_covered = false,
                _ if is_key => {
                    key = Some((word, ByUrl::parse([(word.to_owned(), ())]).unwrap()));
                    is_covered = true;
                }
                _ => {
                    let (key, map) = key.as_ref().unwrap();
                    let found = map.get(&address(word)).is_some();
                    assert_eq!(found, is_covered, "{key}: {word}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 45, "{seen}");
}

#[test]
fn keys_of_this_machine_cover_paths_and_their_links() {
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    for name in ["team/shop.git", "team/other/.git", "team-b/shop.git"] {
        fs::create_dir_all(root.join(name).join("refs")).unwrap();
        fs::create_dir_all(root.join(name).join("objects")).unwrap();
    }
    std::os::unix::fs::symlink(root.join("team"), root.join("link")).unwrap();
    let rules = UrlRules::new(&[], std::slice::from_ref(&root), Guard::new(&[]).unwrap()).unwrap();
    let fill = |text: &str| text.replace("{in}", root.to_str().unwrap());
    for (key, covered, not) in [
        (
            "file://",
            "{in}/team/shop.git file://{in}/team/other file://localhost{in}/team-b/shop.git",
            "",
        ),
        (
            "file://{in}/team/",
            "{in}/team/shop.git {in}/link/shop.git file://{in}//team/./other {in}/team-b/../team/other
             file://{in}/te%61m/other",
            "{in}/team-b/shop.git",
        ),
        ("{in}/link/other", "{in}/team/other {in}/team/other/.git", "{in}/team/shop.git"),
        ("{in}/team/sh*", "{in}/team/shop.git", "{in}/team/other"),
    ] {
        let map = ByUrl::parse([(fill(key), ())]).unwrap();
        for (words, is_covered) in [(covered, true), (not, false)] {
            for word in words.split_whitespace().map(fill) {
                let url = rules.check(&word).unwrap();
                assert_eq!(map.get(&url).is_some(), is_covered, "{key}: {word}");
            }
        }
    }
}

#[test]
fn the_narrowest_key_counts_and_two_spellings_of_one_are_refused() {
    let keys = [
        "https://a/",
        "https://a/team/*",
        "https://a/team/sh*",
        "https://a/team/shop.git",
    ];
    let map = ByUrl::parse(keys.map(|key| (key.to_owned(), key))).unwrap();
    let get = |text: &str| map.get(&address(text)).copied();
    assert_eq!(get("https://a/x"), Some(keys[0]));
    assert_eq!(get("https://a/team/x"), Some(keys[1]));
    assert_eq!(get("https://a/team/ship"), Some(keys[2]));
    assert_eq!(get("https://A/team/shop"), Some(keys[3]));
    assert_eq!(get("https://b/x"), None);
    let twice = ["https://a/team", "HTTPS://A:443//team/"].map(|key| (key.to_owned(), ()));
    let error = ByUrl::parse(twice).unwrap_err().to_string();
    assert!(error.contains("https://a/team"), "{error}");
}
