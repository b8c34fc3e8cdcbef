set -e
folder=$1 bin=$2
shift 2
port=5432
for option; do
  case $option in
    port=*) port=${option#port=} ;;
    hot_standby=on) standby=yes ;;
  esac
done
as=
if [ "$(id -u)" = 0 ]; then
  chown postgres "$folder"
  as="setpriv --reuid postgres --regid postgres --clear-groups"
fi
if [ -n "$SMALL_DISK" ]; then
  mkdir "$folder/small"
  mount -t tmpfs -o "size=$SMALL_DISK" small "$folder/small" 2>"$folder/log" && chown postgres "$folder/small" ||
    rmdir "$folder/small"
fi
end() {
  pid=$(head -n 1 "$folder/data/postmaster.pid" 2>/dev/null) || true
  if [ -n "$pid" ]; then
    kill -QUIT "$pid" 2>/dev/null || true
    # It can be frozen.
    kill -CONT "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
  fi
  [ ! -d "$folder/small" ] || umount "$folder/small"
  rm -rf "$folder"
}
trap end EXIT
$as "$bin/initdb" -D "$folder/data" -U forge -A trust -E UTF8 --locale=C --no-sync >"$folder/log" 2>&1
[ -z "$standby" ] || $as touch "$folder/data/standby.signal"
$as "$bin/postgres" -D "$folder/data" -k "$folder" -c listen_addresses= -c max_connections=500 \
  -c shared_buffers=64MB -c max_wal_size=256MB "$@" >>"$folder/log" 2>&1 &
pid=$!
until "$bin/pg_isready" -q -h "$folder" -p "$port"; do kill -0 "$pid"; sleep 0.05; done
echo ready
cat >/dev/null
