-- Nothing that is looked up by a name, or by operators of two types, can be found in a schema of others.
CREATE OR REPLACE FUNCTION lock_log() RETURNS void LANGUAGE sql VOLATILE AS
  'SELECT pg_catalog.set_config(''lock_timeout'', ''0'', true); SELECT pg_catalog.pg_advisory_xact_lock(1181172307::int8)';
CREATE OR REPLACE FUNCTION assign_positions(number int8) RETURNS int8 LANGUAGE sql VOLATILE AS
  'SELECT lock_log(); SELECT pg_catalog.setval(''position'', last_value + number) - number FROM position';
CREATE OR REPLACE FUNCTION place_session() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN
     NEW.place := coalesce(NEW.place, greatest(NEW.started_at, 0)
       + pg_catalog.nextval(''signal_session_tie'') % 1000::int8);
     RETURN NEW;
   END'
