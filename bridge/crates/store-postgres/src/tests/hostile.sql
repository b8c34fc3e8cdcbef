-- Functions with the names of those that the bridge calls, and operators, of all pairs of types. Each counts its calls,
-- which outlives a rollback, and fails.
CREATE ROLE other;
GRANT CREATE ON SCHEMA public TO PUBLIC;
CREATE SEQUENCE called;
GRANT USAGE ON SEQUENCE called TO PUBLIC;
SET ROLE other;
DO $$
DECLARE
  names text[] := '{clock_timestamp,now,count,max,min,sum,setval,set_config,current_setting,convert_to,convert_from,
    to_regclass,length,substr,unnest,nextval,has_table_privilege,has_sequence_privilege,has_schema_privilege,
    string_to_array,current_database,current_schema,coalesce,greatest,least,pg_is_in_recovery,pg_advisory_xact_lock,
    pg_try_advisory_xact_lock,pg_control_system,pg_walfile_name,pg_current_wal_lsn,pg_postmaster_start_time,
    pg_xact_status,pg_current_xact_id,pg_get_serial_sequence,pg_backend_pid,lock_log,assign_positions}';
  types text[] := '{text,int4,int8,numeric,bytea,name,oid,regclass}';
  sides text[] := types || '{bool,uuid,timestamptz,interval,float8,xid8,json,pg_lsn,text[],bytea[],uuid[],int8[],name[]}'::text[];
  one text;
  a text;
  b text;
  body text := $f$RETURNS bool LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_catalog.nextval(''public.called''); RAISE ''hostile code ran''; END'$f$;
BEGIN
  FOREACH one IN ARRAY names LOOP
    IF one <> 'lock_log' THEN
      EXECUTE format('CREATE FUNCTION public.%I() %s', one, body);
    END IF;
    FOREACH a IN ARRAY sides LOOP
      IF one <> 'assign_positions' OR a <> 'int8' THEN
        EXECUTE format('CREATE FUNCTION public.%I(%s) %s', one, a, body);
      END IF;
    END LOOP;
    FOREACH a IN ARRAY types LOOP
      FOREACH b IN ARRAY types LOOP
        EXECUTE format('CREATE FUNCTION public.%I(%s, %s) %s', one, a, b, body);
        CONTINUE WHEN one NOT IN ('set_config', 'substr');
        EXECUTE format('CREATE FUNCTION public.%I(%s, %s, bool) %s', one, a, b, body);
        EXECUTE format('CREATE FUNCTION public.%I(%s, %s, int4) %s', one, a, b, body);
        EXECUTE format('CREATE FUNCTION public.%I(%s, %s, int8) %s', one, a, b, body);
      END LOOP;
    END LOOP;
  END LOOP;
  FOREACH a IN ARRAY sides LOOP
    FOREACH b IN ARRAY sides LOOP
      EXECUTE format('CREATE FUNCTION public.hostile(%s, %s) %s', a, b, body);
      FOREACH one IN ARRAY '{=,<>,<,<=,>,>=,+,-,*,/,%,||,#>>,->,->>}'::text[] LOOP
        EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.hostile)', one, a, b);
      END LOOP;
    END LOOP;
  END LOOP;
END$$
