-- Tables of a store, version 6; `runs.sql` has those of runs, `spending.sql` the usage of dispatches. Times and durations are nanoseconds. Partial indexes cover
-- unfinished work, so that their cost does not grow with history.

CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE sealed (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;

-- One accepted dispatch, with its delivery: it has at most one. Read by the scheduler and the deliverer, so nothing
-- large is in it.
CREATE TABLE dispatch (
  -- The position of its first event in the log; the first `first_events` events are in `body`.
  seq INTEGER PRIMARY KEY,
  first_events INTEGER NOT NULL,
  id BLOB NOT NULL,
  -- -1 held until it is approved, 0 ready, 1 waits for its time, 2 waits for its session, 3 cancelled in the queue, 4 running, 5 finished.
  phase INTEGER NOT NULL,
  provider TEXT NOT NULL,
  pinned INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  epoch INTEGER NOT NULL DEFAULT 0,
  events INTEGER NOT NULL,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  session TEXT,
  turn INTEGER,
  recorded_session TEXT,
  spent TEXT,
  accepted_at INTEGER NOT NULL,
  not_before INTEGER,
  start_by INTEGER NOT NULL,
  first_started_at INTEGER,
  started_at INTEGER,
  finished_at INTEGER,
  expires_at INTEGER,
  retention INTEGER,
  error_code TEXT,
  header_key TEXT,
  fingerprint BLOB NOT NULL,
  task_id TEXT NOT NULL,
  agent_id TEXT NOT NULL,
  run_id TEXT,
  trace_id TEXT NOT NULL,
  retry_of BLOB,
  callback_url TEXT,
  callback_origin TEXT,
  -- The delivery, from the finish on: 0 pending, 1 delivered, 2 dead, 3 superseded.
  delivery INTEGER,
  delivery_attempts INTEGER NOT NULL DEFAULT 0,
  since INTEGER,
  due_at INTEGER,
  settled_at INTEGER,
  give_up_after INTEGER,
  -- Its last attempt; the earlier ones are in `attempt`. The answer is the last column, so that it is read only where it
  -- is asked for.
  last_at INTEGER,
  last_duration_ms INTEGER,
  last_status INTEGER,
  last_error TEXT,
  last_answer TEXT,
  -- Owner of the key. Keys of versions before 6 have none. Read from an index, although it is behind the answer.
  key_owner TEXT
) STRICT;
CREATE UNIQUE INDEX dispatch_id ON dispatch (id);
CREATE UNIQUE INDEX dispatch_header_key ON dispatch (header_key, key_owner) WHERE header_key IS NOT NULL;
CREATE INDEX dispatch_task ON dispatch (task_id, key_owner);
CREATE INDEX dispatch_run ON dispatch (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX dispatch_ready ON dispatch (provider, priority DESC, seq) WHERE phase = 0;
CREATE INDEX dispatch_delayed ON dispatch (not_before) WHERE phase = 1;
CREATE INDEX dispatch_delayed_by_provider ON dispatch (provider) WHERE phase = 1;
CREATE INDEX dispatch_held ON dispatch (seq) WHERE phase = -1;
CREATE INDEX dispatch_start_by ON dispatch (start_by) WHERE phase < 3;
CREATE INDEX dispatch_cancelled ON dispatch (seq) WHERE phase = 3;
CREATE INDEX dispatch_running ON dispatch (epoch) WHERE phase = 4;
CREATE UNIQUE INDEX dispatch_turn ON dispatch (provider, session, turn) WHERE turn IS NOT NULL;
CREATE INDEX dispatch_expires ON dispatch (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX delivery_due ON dispatch (callback_origin, due_at) WHERE delivery = 0;
CREATE INDEX delivery_dead ON dispatch (seq) WHERE delivery = 2;

-- Accepted data of a dispatch, except for the searched columns. `events` are its first events as in `event.body`;
-- `provider` is set if the dispatch has been rerouted: the adapter at the time of these events.
CREATE TABLE body (
  dispatch INTEGER PRIMARY KEY REFERENCES dispatch ON DELETE CASCADE,
  events TEXT NOT NULL,
  provider TEXT,
  routing TEXT NOT NULL,
  secrets BLOB,
  request TEXT NOT NULL
) STRICT;
CREATE TABLE result (
  dispatch INTEGER PRIMARY KEY REFERENCES dispatch ON DELETE CASCADE,
  body TEXT NOT NULL
) STRICT;
-- Output, output files and attachments. `number` is 0 for the output, 1, 2, … for the files of the result, and −1, −2, …
-- for the attachments of the request.
CREATE TABLE content (
  dispatch INTEGER NOT NULL REFERENCES dispatch ON DELETE CASCADE,
  number INTEGER NOT NULL,
  part INTEGER NOT NULL,
  bytes BLOB NOT NULL,
  PRIMARY KEY (dispatch, number, part)
) STRICT, WITHOUT ROWID;

-- Decisions about dispatches that were held.
CREATE TABLE decision (
  dispatch INTEGER PRIMARY KEY REFERENCES dispatch ON DELETE CASCADE,
  approved INTEGER NOT NULL,
  at INTEGER NOT NULL,
  author TEXT NOT NULL,
  reason TEXT
) STRICT;
CREATE INDEX decision_approved ON decision (approved, dispatch);

-- Delivery attempts, except for the last one.
CREATE TABLE attempt (
  dispatch INTEGER NOT NULL REFERENCES dispatch ON DELETE CASCADE,
  number INTEGER NOT NULL,
  at INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL,
  status INTEGER,
  error TEXT,
  answer TEXT,
  PRIMARY KEY (dispatch, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE breaker (
  origin TEXT PRIMARY KEY,
  opened_at INTEGER NOT NULL,
  until INTEGER NOT NULL,
  times INTEGER NOT NULL,
  reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Sessions of tools that send signals. `seq` is the start in nanoseconds, or the next number that was free.
CREATE TABLE signal_session (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL,
  key_id TEXT NOT NULL,
  -- 0 local agent, 1 engine.
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

-- Signals in the order of their arrival. `key_id` is that of the session, where there is a `repeat_key`.
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

-- Consequences of rules that held; open while their rule does.
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

-- The event log: the events of one write are one row with the positions `first..=last`, except for those that a
-- dispatch was accepted with. `seq` is the number of the first one within its dispatch or run. `provider` is empty for
-- events of no adapter. `run` is the run that owns the events; those of a dispatch have none.
CREATE TABLE event (
  first INTEGER PRIMARY KEY,
  last INTEGER NOT NULL,
  dispatch INTEGER,
  seq INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  provider TEXT NOT NULL,
  unbound_at INTEGER,
  body TEXT NOT NULL,
  run INTEGER
) STRICT;
CREATE INDEX event_dispatch ON event (dispatch, first) WHERE dispatch IS NOT NULL;
CREATE INDEX event_unbound ON event (unbound_at) WHERE unbound_at IS NOT NULL;
