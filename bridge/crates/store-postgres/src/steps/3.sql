-- Usage of a dispatch that has ended, if something is known of it.
CREATE TABLE spending (
  id uuid PRIMARY KEY,
  at int8 NOT NULL,
  model bytea,
  tokens_in int8,
  tokens_out int8,
  cost_micros int8
);
CREATE INDEX spending_at ON spending (at)
