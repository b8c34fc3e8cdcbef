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

# Adds jars to the class path.
add() {
  local name jar
  for name; do
    jar=${JAVA_JARS:-/usr/share/java}/$name.jar
    [ -e "$jar" ] || { echo "build.sh: $jar is missing; .ci/setup installs it" >&2; exit 1; }
    classpath+=:$jar
  done
}

# Compiles the sources of a folder into another one. Without the lint "path": commons-logging.jar names jars that it
# can do without.
compile() {
  rm -rf "$2"
  javac -J-XX:TieredStopAtLevel=1 --release 17 -encoding UTF-8 -parameters -Xlint:all,-path -Werror \
    -cp "$classpath" -d "$2" $(find "$1" -name '*.java')
}

# The starter is compiled without servlets, as it runs on those of javax and jakarta.
add spring3-{core,beans,context,aop,expression,web,web.servlet} commons-logging aopalliance
compile src "$target/classes"
jar --create --file "$target/forge-spring-boot-starter.jar" -C "$target/classes" . -C resources .
classpath=$target/forge-spring-boot-starter.jar:$classpath
add tomcat9-{catalina,coyote,juli,util,util-scan,jni,api,annotations-api,jaspic-api,servlet-api}
compile examples/billing "$target/billing"
echo "$classpath:$target/billing"
