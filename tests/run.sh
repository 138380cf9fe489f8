#!/usr/bin/env bash
# Sets up all that the tests need on a Debian machine with Python, and runs them: lint, types, unit tests, sanitizers,
# mounts, a real Kafka. Arguments go to pytest:   tests/run.sh tests/storage -k offset
# Where something cannot be installed its tests are skipped and say why; with CI=true they fail.
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/setup.sh

find_python
need_packages fusermount=fuse3 lib:libfuse.so.2=libfuse2 kcat=kcat jq=jq rsync=rsync less=less \
    gcc=gcc /usr/include/stdlib.h=libc6-dev lsof=lsof java=default-jre-headless mvn=maven \
    || say "going on without them"
make_venv dev

# A real Kafka, fetched once into a cache: whole or not at all, so that a broken download is no trap.
pom=tests/interop/kafka-pom.xml
kafka=${KAFKAFS_KAFKA:-${XDG_CACHE_HOME:-$HOME/.cache}/kafkafs/kafka-4.3.0}
if [ ! -e "$kafka/kafka-clients-4.3.0.jar" ] && have mvn; then
    say "fetching Kafka 4.3.0 with Maven"
    mkdir -p "$(dirname "$kafka")"
    partial=$(mktemp -d "$kafka.XXXXXX")
    if mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$partial" >&2; then
        mv -T "$partial" "$kafka" 2>/dev/null || rm -rf "$partial" # somebody else was quicker
    else
        rm -rf "$partial"
        say "Maven could not fetch Kafka; going on without"
    fi
fi

say "running the tests"
exec "$venv/bin/python" -m pytest "$@"
