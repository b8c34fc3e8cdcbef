#!/usr/bin/env bash
# Compiles the adapter and its example against the system's Jackson, and prints the class path that runs the example.
#
#   build.sh [TARGET]    default: target/java at the root of the repository
set -euo pipefail
cd "$(dirname "$0")"
target=$(realpath -m "${1:-../../target/java}")

jackson=
for name in core databind annotations; do
  jar=${JAVA_JARS:-/usr/share/java}/jackson-$name.jar
  [ -e "$jar" ] || { echo "build.sh: $jar is missing; .ci/setup installs it" >&2; exit 1; }
  jackson+=:$jar
done

# Compiles the sources of a folder into another one.
compile() {
  rm -rf "$2"
  javac -J-XX:TieredStopAtLevel=1 --release 17 -encoding UTF-8 -parameters -Xlint:all -Werror -cp "$3" -d "$2" $(find "$1" -name '*.java')
}

compile src "$target/classes" "$jackson"
jar --create --file "$target/forge-external.jar" -C "$target/classes" .
compile examples/billing "$target/billing" "$target/forge-external.jar$jackson"
echo "$target/forge-external.jar$jackson:$target/billing"
