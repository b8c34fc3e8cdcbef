//! Bridges on a store that can be brought into trouble: real processes, on a PostgreSQL server of their own, each over a
//! relay of its own, or on a SQLite file above a disk that fails.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forge_test_postgres::Cluster;
use reqwest::{Method, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::task::block_in_place;

use super::relay::{Network, Relay};
use crate::harness::api::{JsonBody as _, quiet};
use crate::harness::process::{Home, Process};
use crate::harness::{Api, CallbackSink, until};
use crate::store_faults::disk::{Disk, FULL, HUNG, SLOW, WELL};

pub(super) const LEASE: Duration = Duration::from_secs(3);

/// A server without space for new rows, as its bridges see it.
const FILL: &str = "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
     RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
   END$$;
   CREATE TRIGGER fill BEFORE INSERT ON dispatch EXECUTE FUNCTION fill();
   CREATE TRIGGER fill BEFORE INSERT ON event EXECUTE FUNCTION fill();
   CREATE TRIGGER fill BEFORE INSERT ON result EXECUTE FUNCTION fill()";
/// State of what a bridge writes with each dispatch.
const WRITTEN: &str = "SELECT count(*), (SELECT last_value FROM position) FROM dispatch";
/// Of the database.
const DISK_SIZE: &str = "96m";
const FREE: &str = "DROP FUNCTION fill CASCADE";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Of the network between the first bridge and the server.
    Network(Network),
    /// Connections of the first bridge have lost the server.
    HalfOpen,
    /// The connection of one commit of the first bridge goes silent, and no other.
    SilentWriter,
    /// Connections of the first bridge are cut after the server has got their commit.
    CutInCommit,
    FrozenServer,
    /// As the bridges see it, by an error of its own.
    FullServer,
    /// The disk of the database is full.
    FullTablespace,
    Restart,
    Promotion,
    /// The address of the server leads back to a former primary, after another one was promoted. The last one of a stage.
    FormerPrimary,
    SlowSync,
    HungSync,
    FullDisk,
}

impl Trouble {
    /// True if the first bridge cannot work meanwhile, and must say so.
    pub(super) fn is_outage(self) -> bool {
        match self {
            Trouble::Network(_)
            | Trouble::FrozenServer
            | Trouble::FullServer
            | Trouble::FullTablespace
            | Trouble::FormerPrimary
            | Trouble::SlowSync
            | Trouble::HungSync
            | Trouble::FullDisk => true,
            Trouble::HalfOpen
            | Trouble::SilentWriter
            | Trouble::CutInCommit
            | Trouble::Restart
            | Trouble::Promotion => false,
        }
    }

    /// True if the other bridges have the same.
    pub(super) fn is_everywhere(self) -> bool {
        matches!(
            self,
            Trouble::FrozenServer
                | Trouble::FullServer
                | Trouble::FullTablespace
                | Trouble::Restart
                | Trouble::Promotion
                | Trouble::FormerPrimary
        )
    }
}

pub(super) struct Stage {
    processes: Vec<Process>,
    ground: Ground,
    pub(super) sink: Arc<CallbackSink>,
    _homes: Vec<Home>,
}

enum Ground {
    Database {
        relays: Vec<Relay>,
        server: Cluster,
        /// Promoted in its place, with what was written on the former primary until it came back.
        promoted: OnceLock<(Cluster, String)>,
    },
    File(Disk),
}

impl Stage {
    /// Bridges that share a database.
    pub(super) async fn on_database(count: usize) -> Self {
        let server = block_in_place(|| Cluster::start_on_small_disk(DISK_SIZE));
        let mut relays = Vec::new();
        let mut homes: Vec<Home> = Vec::new();
        for _ in 0..count {
            let relay = Relay::start(&server.folder).await;
            let lease = format!("{}s", LEASE.as_secs());
            let mut home = Home::new(&[
                ("BRIDGE_STORE", &relay.url()),
                ("BRIDGE_STORE_LEASE", &lease),
            ]);
            if let Some(first) = homes.first() {
                let key = &first.variables["BRIDGE_SECRET_KEY_FILE"];
                home.set("BRIDGE_SECRET_KEY_FILE", key);
            }
            relays.push(relay);
            homes.push(home);
        }
        let ground = Ground::Database {
            relays,
            server,
            promoted: OnceLock::new(),
        };
        Self::start(homes, ground).await
    }

    /// One bridge on SQLite.
    pub(super) async fn on_disk() -> Self {
        let mut home = Home::new(&[("BRIDGE_STORE", "sqlite:")]);
        let disk = Disk::below(&mut home);
        Self::start(vec![home], Ground::File(disk)).await
    }

    async fn start(homes: Vec<Home>, ground: Ground) -> Self {
        let processes = block_in_place(|| homes.iter().map(Home::start).collect());
        let stage = Self {
            processes,
            ground,
            sink: Arc::new(CallbackSink::start().await),
            _homes: homes,
        };
        stage.until_well().await;
        stage
    }

    async fn until_well(&self) {
        until("all bridges to work", async || {
            self.is_well().await.then_some(())
        })
        .await;
    }

    pub(super) fn bridges(&self) -> Vec<Api> {
        let processes = self.processes.iter();
        processes.map(|process| process.api.clone()).collect()
    }

    pub(super) fn log(&self) -> String {
        self._homes.iter().map(Home::log).collect()
    }

    /// True if each bridge says that it is well, and works.
    pub(super) async fn is_well(&self) -> bool {
        for bridge in self.bridges() {
            if !says_well(&bridge).await || works(&bridge, Duration::from_secs(2)).await.is_none() {
                return false;
            }
        }
        true
    }

    /// True if this machine can play a trouble.
    pub(super) fn can_play(&self, trouble: Trouble) -> bool {
        match &self.ground {
            Ground::Database { server, .. } => {
                trouble != Trouble::FullTablespace || server.small_disk().is_some()
            }
            Ground::File(_) => true,
        }
    }

    pub(super) async fn strike(&self, trouble: Trouble) {
        match &self.ground {
            Ground::Database {
                relays,
                server,
                promoted,
            } => {
                let relay = &relays[0];
                match trouble {
                    Trouble::Network(network) => relay.is(network),
                    Trouble::HalfOpen => relay.lose_server(),
                    Trouble::SilentWriter => relay.silence_writer(),
                    Trouble::CutInCommit => relay.cut_commits(5),
                    Trouble::FrozenServer => signal(server, Signal::STOP),
                    Trouble::FullServer => {
                        block_in_place(|| server.run("postgres", FILL));
                    }
                    Trouble::FullTablespace => block_in_place(|| fill(&filler(server))),
                    Trouble::Restart => block_in_place(|| server.restart()),
                    Trouble::Promotion => block_in_place(|| server.fail_over()),
                    Trouble::FormerPrimary => {
                        let next = Cluster::start(&[]);
                        block_in_place(|| {
                            next.stop();
                            next.fail_over_from(server);
                        });
                        move_to(relays, &next);
                        self.until_well().await;
                        let written = block_in_place(|| {
                            server.restart();
                            server.run("postgres", WRITTEN)
                        });
                        move_to(relays, server);
                        promoted.set((next, written)).ok().unwrap();
                    }
                    Trouble::SlowSync | Trouble::HungSync | Trouble::FullDisk => {
                        panic!("{trouble:?} is of a disk")
                    }
                }
            }
            Ground::File(disk) => match trouble {
                Trouble::SlowSync => {
                    disk.set_sync_ms(3_000);
                    disk.is(SLOW);
                }
                Trouble::HungSync => disk.is(HUNG),
                Trouble::FullDisk => disk.is(FULL),
                _ => panic!("{trouble:?} is of a database"),
            },
        }
    }

    pub(super) fn heal(&self, trouble: Trouble) {
        match &self.ground {
            Ground::Database {
                relays,
                server,
                promoted,
            } => match trouble {
                Trouble::FrozenServer => signal(server, Signal::CONT),
                Trouble::FullServer => {
                    block_in_place(|| server.run("postgres", FREE));
                }
                Trouble::FullTablespace => std::fs::remove_file(filler(server)).unwrap(),
                Trouble::FormerPrimary => {
                    let (promoted, former) = promoted.get().unwrap();
                    move_to(relays, promoted);
                    let now = block_in_place(|| server.run("postgres", WRITTEN));
                    assert_eq!(*former, now, "the former primary was written");
                }
                _ => relays[0].heal(),
            },
            Ground::File(disk) => disk.is(WELL),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A server that is frozen does not end.
        if let Ground::Database { server, .. } = &self.ground {
            signal(server, Signal::CONT);
        }
    }
}

fn move_to(relays: &[Relay], server: &Cluster) {
    for relay in relays {
        relay.move_to(&server.folder);
    }
}

fn filler(server: &Cluster) -> PathBuf {
    server.small_disk().unwrap().join("filler")
}

/// Writes a file until the disk is full.
fn fill(file: &Path) {
    let mut file = File::create(file).unwrap();
    let bytes = [1; 4096];
    let error = loop {
        if let Err(error) = file.write_all(&bytes) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
}

/// Sends a signal to all processes of a server.
fn signal(server: &Cluster, signal: Signal) {
    let file = server.folder.join("data/postmaster.pid");
    let Ok(text) = std::fs::read_to_string(file) else {
        return;
    };
    let first = text.lines().next().unwrap_or_default().trim().to_owned();
    let children = Command::new("pgrep").args(["-P", &first]).output().unwrap();
    let children = String::from_utf8(children.stdout).unwrap();
    for pid in std::iter::once(first.as_str()).chain(children.lines()) {
        let pid = pid.parse().ok().and_then(Pid::from_raw);
        // One can have ended meanwhile.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }
}

/// True if readiness and health of a bridge say that all is well.
pub(super) async fn says_well(bridge: &Api) -> bool {
    let limit = Duration::from_secs(2);
    let get = |path| bridge.request(Method::GET, path).timeout(limit).send();
    let Ok(ready) = get("/api/health/ready").await else {
        return false;
    };
    let Ok(health) = get("/api/health").await else {
        return false;
    };
    let health: Value = health.json().await.unwrap_or_default();
    ready.status() == StatusCode::OK && health["store"]["status"] == "healthy"
}

/// Has a bridge run a dispatch; `None` if it does not end within the limit.
pub(super) async fn works(bridge: &Api, limit: Duration) -> Option<()> {
    let run = async {
        let task = uuid::Uuid::now_v7().to_string();
        let post = bridge.request(Method::POST, "/api/v2/dispatch");
        let answer = post.json_body(&quiet(&task, "ok")).send().await.ok()?;
        let answer: Value = answer.json().await.ok()?;
        let id = answer["dispatchId"].as_str()?;
        let path = format!("/api/v2/dispatch/{id}?wait=30");
        let record = bridge.request(Method::GET, &path).send().await.ok()?;
        let record: Value = record.json().await.ok()?;
        (record["status"] == "finished").then_some(())
    };
    tokio::time::timeout(limit, run).await.ok().flatten()
}
