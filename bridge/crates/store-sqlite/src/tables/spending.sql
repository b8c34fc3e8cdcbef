-- Usage of a dispatch that has ended, if something is known of it, with all that it is added up by; in the order in which it
-- is read.
CREATE TABLE spending (
  at INTEGER NOT NULL,
  dispatch INTEGER NOT NULL REFERENCES dispatch ON DELETE CASCADE,
  provider TEXT NOT NULL,
  agent_id TEXT NOT NULL,
  is_error INTEGER NOT NULL,
  model TEXT,
  tokens_in INTEGER,
  tokens_out INTEGER,
  cost_micros INTEGER,
  PRIMARY KEY (at, dispatch)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX spending_dispatch ON spending (dispatch);
