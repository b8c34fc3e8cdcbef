//! Tests of the loader with a small configuration, and of the real configuration against its documentation.

use proptest::prelude::*;
use secrecy::ExposeSecret as _;

use super::*;

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Small {
    listen: SocketAddr,
    strict: bool,
    plugin: Plugin,
    auth: Auth,
    retention: Retention,
    adapters: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
}

impl Default for Small {
    fn default() -> Self {
        let Config { listen, strict, .. } = Config::default();
        Self {
            listen,
            strict,
            plugin: Plugin::default(),
            auth: Auth::default(),
            retention: Retention::default(),
            adapters: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Plugin {
    adapters: Vec<String>,
    path: Vec<String>,
    default_provider: Option<String>,
    max_concurrent: Option<u32>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Auth {
    #[serde(with = "forge_base::secret::list")]
    tokens: Vec<SecretString>,
}

fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn small(text: &str, pairs: &[(&str, &str)]) -> Result<(Small, Vec<String>), Error<Small>> {
    let known = Known::of::<Small>("");
    read(
        &known,
        Some((Path::new("a.toml"), text)),
        &environment(pairs),
    )
}

fn problems(text: &str, pairs: &[(&str, &str)]) -> Vec<String> {
    let error = small(text, pairs).unwrap_err();
    error.problems.iter().map(Problem::to_string).collect()
}

#[test]
fn the_environment_goes_before_the_file_and_the_file_before_the_defaults() {
    let (config, warnings) = small(
        "strict = true\n[retention]\nrecords = \"1d\"\nstep = 7",
        &[("BRIDGE_RETENTION_RECORDS", "2h")],
    )
    .unwrap();
    assert!(config.strict);
    assert_eq!(config.retention.records, Duration::from_secs(7200));
    assert_eq!(config.retention.step, 7);
    assert_eq!(config.retention.every, Retention::default().every);
    assert!(warnings.is_empty());
}

#[test]
fn a_variable_is_read_as_what_its_key_wants() {
    let (config, _) = small(
        "",
        &[
            ("BRIDGE_LISTEN", "[::1]:80"),
            ("BRIDGE_STRICT", "true"),
            ("BRIDGE_RETENTION_STEP", "12"),
            ("BRIDGE_PLUGIN_PATH", "a, b"),
            ("BRIDGE_PLUGIN_MAX_CONCURRENT", "3"),
            ("BRIDGE_TOKENS", "12345"),
            ("BRIDGE_PLUGIN_DEFAULT_PROVIDER", "7"),
        ],
    )
    .unwrap();
    assert_eq!(config.listen.to_string(), "[::1]:80");
    assert!(config.strict);
    assert_eq!(config.retention.step, 12);
    assert_eq!(config.plugin.path, ["a", "b"]);
    assert_eq!(config.plugin.max_concurrent, Some(3));
    assert_eq!(config.plugin.default_provider.as_deref(), Some("7"));
    assert_eq!(config.auth.tokens.len(), 1);
}

#[test]
fn a_client_on_the_same_machine_finds_the_listener() {
    for (listen, cert, expected) in [
        ("127.0.0.1:7420", None, "http://127.0.0.1:7420"),
        ("0.0.0.0:80", None, "http://127.0.0.1:80"),
        ("[::]:443", Some("cert.pem"), "https://[::1]:443"),
        ("192.0.2.7:7420", None, "http://192.0.2.7:7420"),
    ] {
        let mut config = Config {
            listen: listen.parse().unwrap(),
            ..Config::default()
        };
        config.tls.cert = cert.map(PathBuf::from);
        assert_eq!(config.local_url(), expected);
    }
}

#[test]
fn the_gateway_provider_alone_is_the_only_adapter() {
    let alone = [("GATEWAY_PROVIDER", "acme-ai")];
    let (config, _) = small("", &alone).unwrap();
    assert_eq!(config.plugin.adapters, ["acme-ai"]);
    assert_eq!(config.plugin.default_provider.as_deref(), Some("acme-ai"));

    let listed = [("GATEWAY_PROVIDER", "echo"), ("BRIDGE_ADAPTERS", "echo,b")];
    assert_eq!(small("", &listed).unwrap().0.plugin.adapters, ["echo", "b"]);

    let (config, _) = small("[plugin]\nadapters = [\"c\"]", &alone).unwrap();
    assert_eq!(config.plugin.adapters, ["c"]);
}

#[test]
fn an_adapters_own_key_is_found_by_the_adapters_name() {
    let (config, warnings) = small(
        "[adapters.acme]\nx = 1",
        &[
            ("BRIDGE_ADAPTERS", "acme,acme-ai"),
            ("BRIDGE_ADAPTERS_ACME_AI_BASE_URL", "http://a"),
            ("BRIDGE_ADAPTERS_OTHER_KEY", "1"),
        ],
    )
    .unwrap();
    assert_eq!(config.adapters["acme-ai"]["base_url"], "http://a");
    assert_eq!(config.adapters["acme"].len(), 1);
    assert_eq!(warnings.len(), 1, "{warnings:?}");

    // Adapter loaded by default.
    let own = [("BRIDGE_ADAPTERS_ECHO_KEY", "1")];
    let (config, warnings) = small("", &own).unwrap();
    assert_eq!(config.adapters["echo"]["key"], "1");
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn an_unknown_variable_is_a_warning_with_the_nearest_name() {
    let (_, warnings) = small(
        "",
        &[
            ("BRIDGE_LISTNE", "x"),
            ("BRIDGE_QUITE_SOMETHING_ELSE", "x"),
            ("BRIDGE_TOKEN", "x"),
            ("BRIDGE_STRICT", ""),
            ("PATH", "/bin"),
        ],
    )
    .unwrap();
    assert_eq!(
        warnings,
        [
            "BRIDGE_LISTNE is not a setting; did you mean BRIDGE_LISTEN?",
            "BRIDGE_QUITE_SOMETHING_ELSE is not a setting and has no effect",
        ]
    );
}

#[test]
fn everything_wrong_is_said_at_once() {
    let text = "
        listen = \"here\"
        strict = \"perhaps\"
        surprise = 1
        [retention]
        records = \"soon\"
        recrods = 1
        [plugin]
        adapters = [1]
    ";
    let mut found = problems(text, &[("BRIDGE_RETENTION_STEP", "many")]);
    found.sort();
    assert_eq!(
        found,
        [
            "listen (file a.toml): invalid socket address syntax; for example \"127.0.0.1:7420\"",
            "plugin.adapters (file a.toml): wanted a string, found signed int `1`",
            "retention.records (file a.toml): wanted a duration such as \"250ms\", \"30s\", \"5m\", \"24h\" or \"7d\", found \"soon\"; for example \"7d\"",
            "retention.recrods (file a.toml): no such key; did you mean records?",
            "retention.step (environment BRIDGE_RETENTION_STEP): wanted usize, found string \"many\"; for example 100",
            "strict (file a.toml): wanted a boolean, found string \"perhaps\"; for example false",
            "surprise (file a.toml): no such key",
        ]
    );
}

#[test]
fn a_secret_is_never_repeated() {
    for text in [
        "[auth]\ntokens = \"hunter2\"",
        "[auth]\ntokens = [\"hunter2\", 1]",
        "[auth]\ntokens = [\"hunter2\"",
        "[auth]\ntoken = \"hunter2\"",
        "adapters.acme = \"hunter2\"",
    ] {
        let found = problems(text, &[]).join("\n");
        assert!(!found.contains("hunter2"), "{found}");
        assert!(!found.is_empty());
    }
    let (config, _) = small("[auth]\ntokens = [\"hunter2\"]", &[]).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(!serde_json::to_string(&config).unwrap().contains("hunter2"));
}

#[test]
fn broken_toml_names_its_line() {
    let found = problems("strict = true\nlisten = \n", &[]);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("file a.toml: TOML parse error at line 2, column 10"),
        "{found:?}"
    );
}

fn load(pairs: &[(&str, &str)]) -> Result<Loaded, Error> {
    let sources = Sources {
        file: File::Nowhere,
        environment: environment(pairs),
    };
    sources.load()
}

#[test]
fn folders_follow_home_and_the_desktop_standard() {
    let home = ("HOME", "/home/a");
    let config = load(&[home]).unwrap().config;
    assert_eq!(
        config.data_dir,
        Path::new("/home/a/.local/share/forge-bridge")
    );
    let config = load(&[home, ("XDG_DATA_HOME", "/d"), ("XDG_CONFIG_HOME", "/c")]);
    let config = config.unwrap().config;
    assert_eq!(config.data_dir, Path::new("/d/forge-bridge"));
    assert_eq!(
        config.secret.key_file,
        Path::new("/c/forge-bridge/secret.key")
    );
    let config = load(&[home, ("XDG_DATA_HOME", "/d"), ("BRIDGE_DATA_DIR", "/e")]);
    assert_eq!(config.unwrap().config.data_dir, Path::new("/e"));
    assert_eq!(load(&[]).unwrap_err().problems.len(), 2);
}

#[test]
fn the_password_of_the_database_comes_from_its_own_variable_too() {
    let set = [
        ("HOME", "/home/a"),
        ("BRIDGE_STORE", "postgres://a@b/c"),
        ("BRIDGE_STORE_PASSWORD_FILE", "~/password"),
        ("PGPASSWORD", "hush"),
    ];
    let loaded = load(&set).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let store = loaded.config.store;
    let text = |secret: Option<SecretString>| secret.unwrap().expose_secret().to_owned();
    assert_eq!(text(store.url), "postgres://a@b/c");
    assert_eq!(text(store.password), "hush");
    let file = store.password_file.unwrap();
    assert_eq!(file, Path::new("/home/a/password"));
    let unset = [("HOME", "/home/a"), ("PGPASSWORD", "")];
    let store = load(&unset).unwrap().config.store;
    assert!(store.password.is_none() && store.url.is_none());
}

#[test]
fn a_named_file_has_to_exist() {
    let sources = Sources {
        file: File::Search,
        environment: environment(&[("BRIDGE_CONFIG", "/nonexistent/a.toml")]),
    };
    let error = sources.load().unwrap_err().to_string();
    assert!(
        error.contains("file /nonexistent/a.toml: cannot be read"),
        "{error}"
    );
}

#[test]
fn a_list_is_no_table() {
    let text = "retention = [\"7d\"]\nadapters = 5\n[plugin]\nadapters = [\"a\"]";
    assert_eq!(
        problems(text, &[]),
        [
            "adapters (file a.toml): wanted a table, found something else",
            "retention (file a.toml): wanted a table, found sequence",
        ]
    );
}

#[test]
fn the_documented_file_is_the_defaults() {
    let defaults = serde_json::to_value(Config::default()).unwrap();
    let known = Known::of::<Config>("");
    for text in [DOCUMENTED.to_owned(), layers::uncommented(DOCUMENTED)] {
        let (config, _): (Config, _) =
            read(&known, Some((Path::new("config"), &text)), &BTreeMap::new()).unwrap();
        let read = serde_json::to_value(config).unwrap();
        for key in layers::keys(&defaults) {
            let pointer = format!("/{}", key.replace('.', "/"));
            let default = defaults.pointer(&pointer).unwrap();
            if !default.is_null() {
                assert_eq!(read.pointer(&pointer), Some(default), "{key}");
            }
        }
    }
}

#[test]
fn every_key_is_documented() {
    let written = layers::file("config", &layers::uncommented(DOCUMENTED)).unwrap();
    let written = Figment::new().merge(written);
    let defaults = serde_json::to_value(Config::default()).unwrap();
    let mut keys = layers::keys(&defaults);
    keys.retain(|key| !written.contains(key));
    assert!(keys.is_empty(), "not in config/forge-bridge.toml: {keys:?}");
}

#[test]
fn the_variables_of_opentelemetry_count_below_our_own() {
    let standard = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=1,b=2"),
    ];
    let known = Known::of::<Config>(DOCUMENTED);
    let read = |more: &[(&str, &str)], file: &str| -> Config {
        let variables = [&standard[..], more].concat();
        let file = Some((Path::new("a.toml"), file));
        read(&known, file, &environment(&variables)).unwrap().0
    };
    let endpoint = |config: Config| config.otlp.endpoint;
    let plain = read(&[], "");
    assert_eq!(plain.otlp.resource, ["a=1", "b=2"]);
    assert_eq!(endpoint(plain).as_deref(), Some("http://traces:4318"));
    let file = read(&[], "[otlp]\nendpoint = \"http://file:4318\"");
    assert_eq!(endpoint(file).as_deref(), Some("http://file:4318"));
    let ours = read(&[("BRIDGE_OTLP_ENDPOINT", "http://ours:4318")], "");
    assert_eq!(endpoint(ours).as_deref(), Some("http://ours:4318"));
    for off in [
        ("OTEL_SDK_DISABLED", "TRUE"),
        ("OTEL_TRACES_EXPORTER", "none"),
    ] {
        assert_eq!(endpoint(read(&[off], "")), None);
    }
    for (sampler, expected) in [
        ("parentbased_traceidratio", 0.25),
        ("traceidratio", 0.25),
        ("parentbased_always_off", 0.0),
        ("always_on", 1.0),
        ("jaeger_remote", 1.0),
    ] {
        let variables = [
            ("OTEL_TRACES_SAMPLER", sampler),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ];
        let ratio = |more: &[(&str, &str)]| read(more, "").otlp.sample_ratio;
        assert_eq!(ratio(&variables), expected, "{sampler}");
        let ours = [&variables[..], &[("BRIDGE_OTLP_SAMPLE_RATIO", "0.5")]].concat();
        assert_eq!(ratio(&ours), 0.5);
    }
}

proptest! {
    #[test]
    fn no_secret_is_told_whether_it_fits_or_not(
        secret in "[a-z]{16}",
        place in prop::sample::select(vec![
            "[auth]\ntokens = [\"#\"]",
            "[auth]\ntokens = { a = \"#\" }",
            "[auth]\ntokens = [[\"#\"]]",
            "[secret]\nkey = \"#\"",
            "[secret]\nkey = [\"#\"]",
            "[store]\nurl = \"#\"",
            "[store]\nurl = [\"#\"]",
            "[store]\npassword = \"#\"",
            "[callback]\nsecrets = [\"#\"]",
            "[callback]\nsecrets = { a = \"#\" }",
            "[callback.origins.\"https://a.example\"]\nbearer = \"#\"",
            "[callback.origins.\"https://a.example\"]\nbearer = [\"#\"]",
            "[mcp.servers.x]\ncommand = \"y\"\nenv = { KEY = \"#\" }",
            "[mcp.servers.x]\ncommand = \"y\"\nenv = { TOKEN = [\"#\"] }",
            "[adapters.echo]\napi_key = \"#\"",
            "[adapters.echo]\nmax_concurrent = \"#\"",
            "[otlp]\nheaders = [\"authorization=Bearer #\"]",
            "[otlp]\nheaders = { a = \"#\" }",
            "[auth]\ntokens = [\"#\"",
        ]),
        variable in prop::sample::select(vec![
            "BRIDGE_TOKENS", "BRIDGE_SECRET_KEY", "BRIDGE_CALLBACK_SECRETS", "BRIDGE_ADAPTERS_ECHO_API_KEY",
            "BRIDGE_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS", "BRIDGE_STORE", "BRIDGE_STORE_URL", "PGPASSWORD",
        ]),
    ) {
        let text = place.replace('#', &secret);
        let file = Some((Path::new("a.toml"), text.as_str()));
        let known = Known::of::<Config>(DOCUMENTED);
        let told = match read::<Config>(&known, file, &environment(&[(variable, &secret)])) {
            Ok((mut config, warnings)) => {
                let shown = format!("{config:?}");
                // The adapter itself gets these values unredacted.
                config.adapters.clear();
                let shown = shown + &serde_json::to_string(&config).unwrap();
                format!("{warnings:?} {shown}")
            }
            Err(error) => format!("{error} {error:?}"),
        };
        prop_assert!(!told.contains(&secret), "{}", told);
    }
}
