#!/usr/bin/env bash
# Compiles the adapter, the starter and its example against the system's Spring and Tomcat, and prints the class path
# that runs the example.
#
#   build.sh [TARGET]    default: target/java-spring-boot-starter at the root of the repository
set -euo pipefail
cd "$(dirname "$0")"
target=$(realpath -m "${1:-../../target/java-spring-boot-starter}")

classpath=$(../java/build.sh "$target/java")
classpath=${classpath%:*} # without the example of the adapter
for name in spring3-{core,beans,context,aop,expression,web,web.servlet} commons-logging aopalliance \
  tomcat9-{catalina,coyote,juli,util,util-scan,jni,api,annotations-api,jaspic-api,servlet-api}; do
  jar=${JAVA_JARS:-/usr/share/java}/$name.jar
  [ -e "$jar" ] || { echo "build.sh: $jar is missing; .ci/setup installs it" >&2; exit 1; }
  classpath+=:$jar
done

# Compiles the sources of a folder into another one. Without the lint "path": commons-logging.jar names jars that it
# can do without.
compile() {
  rm -rf "$2"
  javac -J-XX:TieredStopAtLevel=1 --release 17 -encoding UTF-8 -parameters -Xlint:all,-path -Werror \
    -cp "$3" -d "$2" $(find "$1" -name '*.java')
}

jar=$target/forge-spring-boot-starter.jar
compile src "$target/classes" "$classpath"
jar --create --file "$jar" -C "$target/classes" . -C resources .
compile examples/billing "$target/billing" "$jar:$classpath"
echo "$jar:$classpath:$target/billing"
