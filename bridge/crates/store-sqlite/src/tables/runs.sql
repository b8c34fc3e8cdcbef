-- Tables of runs, for a new store and for one of version 3. A version that changes them gives the migration of version 3
-- a copy of this file.

-- Runs. Written with every change of a run, so nothing large is in it. `seq` is the position of the first event.
CREATE TABLE run (
  seq INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  -- 0 planning, 1 plan review, 2 executing, 3 paused, 4 completed, 5 failed, 6 cancelled.
  status INTEGER NOT NULL,
  events INTEGER NOT NULL,
  last_position INTEGER NOT NULL,
  artifact_bytes INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  ended_at INTEGER,
  expires_at INTEGER,
  -- `RunKey::stored`, or the header alone in versions before 6.
  header_key TEXT,
  fingerprint BLOB NOT NULL,
  trace_id TEXT NOT NULL,
  taken_over TEXT
) STRICT;
CREATE UNIQUE INDEX run_id ON run (id);
CREATE UNIQUE INDEX run_header_key ON run (header_key) WHERE header_key IS NOT NULL;
CREATE INDEX run_status ON run (status, seq);
CREATE INDEX run_live ON run (id) WHERE ended_at IS NULL;
CREATE INDEX run_expires ON run (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE run_body (
  run INTEGER PRIMARY KEY REFERENCES run ON DELETE CASCADE,
  request TEXT NOT NULL,
  projection TEXT NOT NULL
) STRICT;
-- Outlives its run for a while, as the events do: see `run_removed`.
CREATE TABLE run_artifact (
  run INTEGER NOT NULL,
  path TEXT NOT NULL,
  kind TEXT NOT NULL,
  updated_at INTEGER NOT NULL,
  bytes BLOB NOT NULL,
  PRIMARY KEY (run, path)
) STRICT, WITHOUT ROWID;
-- Runs that are removed, and whose events and artifacts might not be.
CREATE TABLE run_removed (run INTEGER PRIMARY KEY) STRICT;

CREATE INDEX event_run ON event (run, first) WHERE run IS NOT NULL;
