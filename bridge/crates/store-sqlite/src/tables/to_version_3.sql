-- Makes a file of version 2 one of version 3: tables of signals.
CREATE TABLE signal_session (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL,
  key_id TEXT NOT NULL,
  source INTEGER NOT NULL,
  adapter TEXT NOT NULL,
  user_id TEXT,
  project_id TEXT,
  client_session_id TEXT,
  owner BLOB,
  started_at INTEGER NOT NULL,
  last_at INTEGER NOT NULL,
  paused_at INTEGER,
  ended_at INTEGER,
  signals INTEGER NOT NULL,
  errors INTEGER NOT NULL,
  tokens_in INTEGER NOT NULL,
  tokens_out INTEGER NOT NULL,
  cost_micros INTEGER NOT NULL,
  unpriced INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX signal_session_id ON signal_session (id);
CREATE INDEX signal_session_active ON signal_session (seq) WHERE ended_at IS NULL;

CREATE TABLE signal (
  seq INTEGER PRIMARY KEY,
  session INTEGER NOT NULL REFERENCES signal_session,
  at INTEGER NOT NULL,
  ts INTEGER NOT NULL,
  kind TEXT,
  model TEXT,
  tool TEXT,
  user_id TEXT,
  project_id TEXT,
  error_code TEXT,
  tokens_in INTEGER,
  tokens_out INTEGER,
  cost_micros INTEGER,
  cache_read_tokens INTEGER,
  cache_write_tokens INTEGER,
  latency_ms REAL,
  drift_score REAL,
  confidence REAL,
  details TEXT,
  blocked INTEGER NOT NULL,
  intervention TEXT,
  key_id TEXT,
  repeat_key BLOB
) STRICT;
CREATE INDEX signal_of_session ON signal (session, seq);
CREATE UNIQUE INDEX signal_repeat ON signal (key_id, repeat_key) WHERE repeat_key IS NOT NULL;
CREATE INDEX signal_at ON signal (at);
CREATE INDEX signal_user ON signal (user_id, at) WHERE user_id IS NOT NULL;
CREATE INDEX signal_project ON signal (project_id, at) WHERE project_id IS NOT NULL;

CREATE TABLE signal_intervention (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL,
  rule_id TEXT NOT NULL,
  blocks INTEGER NOT NULL,
  severity INTEGER NOT NULL,
  message TEXT NOT NULL,
  scope_value TEXT NOT NULL,
  period INTEGER NOT NULL,
  session_id TEXT NOT NULL,
  at INTEGER NOT NULL,
  is_open INTEGER NOT NULL,
  acknowledged_at INTEGER,
  ack_delay_ms INTEGER
) STRICT;
CREATE UNIQUE INDEX signal_intervention_id ON signal_intervention (id);
CREATE INDEX signal_intervention_open ON signal_intervention (seq) WHERE is_open;
CREATE INDEX signal_intervention_session ON signal_intervention (session_id, seq);
