//! Tests of `url`.

use super::*;

/// Addresses that are refused, after the reason. `{in}` is a folder below the local roots, `{out}` another one.
const REFUSED: &str = "
    begins-with-a-dash -u --upload-pack=touch ssh://-oProxyCommand=id/a ssh://-oa@git.example.com/team/a
    transport-helper ext::sh ext::sh%20-c%20id fd::17/foo https::https://example.com/a
    https-was-expected,-or-http-or-ssh-where-runs.repositories ext://sh/a fd://17/a host:a git://example.com/a
        ftp://example.com/a javascript:a rsync://example.com/a
    not-in-runs.repositories http://example.com/a http://git.example.com/teams http://git.example.com/team/../a
        http://git.example.com:81/team/a http://git.example.com.evil/team/a ssh://git@example.com/a
        ssh://root@git.example.com/team/a
    was-expected example.com/a ../a a ~/a git@example.com:a https:///
    user-name-or-password;-the-operator-sets-credentials-in-runs.authorization ssh://git:x@git.example.com/team/a https://user@example.com/a
        https://user:pass@example.com/a https://:pass@example.com/a
    neither-a-query https://example.com https://example.com/a?b https://example.com/a#b file://server/share
    encoded https://example.com/a%2f..%2fb https://example.com/%252e%252e/b https://example.com/a%00
        http://git.example.com/team/..%2fa
    callback.allow https://localhost/a https://127.1/a https://0x7f000001/a https://[::1]/a https://10.0.0.1/a
        https://169.254.169.254/a
    runs.local_roots file:///etc /etc/passwd / {out} {in}/../out {in}/link file://{in}/link
        file://{in}/%2e%2e/out {in}/missing
    without-a-repository {in}/empty
    elsewhere {in}/worktree {in}/borrowing
    a-space https:\\\\example.com\\a https://exämple.com/a";

#[test]
fn addresses_that_could_mean_anything_else_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    let (inside, outside) = (root.join("in"), root.join("out"));
    let make = |path: &Path| fs::create_dir_all(path).unwrap();
    for name in ["in/plain", "in/borrowing/.git", "out"] {
        make(&root.join(name).join("refs"));
        make(&root.join(name).join("objects/info"));
    }
    let borrowed = inside.join("borrowing/.git/objects/info/alternates");
    fs::write(borrowed, "/x").unwrap();
    make(&inside.join("worktree"));
    fs::write(inside.join("worktree/.git"), "gitdir: /x").unwrap();
    make(&inside.join("empty"));
    std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
    let named = [
        "http://git.example.com/team",
        "ssh://git@git.example.com/team",
    ];
    let named = named.map(str::to_owned);
    let guard = Guard::new(&[]).unwrap();
    let rules = UrlRules::new(&named, std::slice::from_ref(&inside), guard.clone()).unwrap();
    let open = UrlRules::new(&[], std::slice::from_ref(&inside), guard).unwrap();
    let rules_of = |text: &str| match text.starts_with("https:") {
        true => &open,
        false => &rules,
    };
    let fill = |text: &str| {
        let text = text.replace("{in}", inside.to_str().unwrap());
        text.replace("{out}", outside.to_str().unwrap())
    };

    let (mut wanted, mut refused) = (String::new(), 0);
    for word in REFUSED.split_whitespace() {
        let is_address =
            word.contains(['/', ':', '~', '{']) || word.starts_with('-') || word == "a";
        if !is_address {
            wanted = word.replace('-', " ");
            continue;
        }
        let error = rules_of(word).check(&fill(word));
        let error = error.expect_err(word).to_string();
        assert!(
            error.contains(&wanted),
            "{word}: {wanted:?} not in {error:?}"
        );
        refused += 1;
    }
    assert!(refused > 50, "{refused}");
    // Without a list, only https is allowed.
    for (text, scheme) in [
        ("http://git.example.com/team/a", "http://"),
        ("ssh://git@git.example.com/team/a", "ssh://"),
    ] {
        let error = open.check(text).unwrap_err().to_string();
        let wanted = format!("{scheme}, which is allowed only where runs.repositories names it");
        assert!(error.contains(&wanted), "{error}");
    }
    let long = format!("https://example.com/{}", "a".repeat(2048));
    for text in [
        "",
        "https://example.com/a b",
        "https://example.com/a\n",
        "https://example.com/\u{1b}[2J",
        "https://example.com/\0",
        &long,
    ] {
        assert!(open.check(text).is_err(), "{text:?}");
    }
    for text in [
        "https://example.com/a.git",
        "https://example.com:8443/team/a/",
        "http://git.example.com/team/a",
        "ssh://git@git.example.com/team/a",
        "{in}/plain",
        "file://{in}/plain",
    ] {
        assert!(rules_of(text).check(&fill(text)).is_ok(), "{text}");
    }
}

#[test]
fn a_rule_without_a_host_or_with_a_password_is_refused() {
    for entry in [
        "",
        "git.example.com",
        "ftp://a/b",
        "https://u:hush@a/b",
        "file:///srv",
        "https://u@a/b",
        "https://git.example.*",
        "https://*/a",
        "https://a/*/b",
        "https://a/b?c",
        "https://a/%252e/b",
        "*",
    ] {
        let error = UrlPattern::remote(entry).unwrap_err().to_string();
        assert!(!error.contains("hush"), "{error}");
    }
}

/// Spellings of one address.
const SPELLINGS: [&str; 10] = [
    "https://git.example.com/team/shop",
    "https://git.example.com/team/shop/",
    "https://git.example.com/team/shop.git",
    "HTTPS://GIT.example.com/team/shop",
    "https://git.example.com:443/team/shop",
    "https://git.example.com./team/shop",
    "https://git.example.com//team//shop",
    "https://git.example.com/team/./shop",
    "https://git.example.com/x/../team/shop",
    "https://git.example.com/%74eam/shop",
];

#[test]
fn allow_list_checks_and_authorization_know_each_spelling_and_no_neighbour() {
    let key = "https://git.example.com/team".to_owned();
    let guard = || Guard::new(&[]).unwrap();
    let only = UrlRules::new(std::slice::from_ref(&key), &[], guard()).unwrap();
    let open = UrlRules::new(&[], &[], guard()).unwrap();
    // Checks and authorization are kept in the same map.
    let settings = ByUrl::parse([(key, ())]).unwrap();
    for text in SPELLINGS {
        assert!(only.check(text).is_ok(), "{text}");
        let url = open.check(text).unwrap();
        assert!(settings.get(&url).is_some(), "{text}");
    }
    for text in SPELLINGS {
        let neighbour = match text.contains("%74eam") {
            true => text.replace("%74eam", "%74eam-evil"),
            false => text.replace("team", "team-evil"),
        };
        let url = open.check(&neighbour).unwrap();
        assert!(settings.get(&url).is_none(), "{neighbour}");
        let refused = only.check(&neighbour).unwrap_err().to_string();
        assert!(refused.contains("runs.repositories"), "{refused}");
    }
}
