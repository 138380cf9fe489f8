#!/usr/bin/env bash
# Installs everything that the tests need on a Debian machine with Python, and runs them: lint, types, unit tests,
# sanitizers, mounts, a real Kafka. Arguments are passed to pytest:   tests/run.sh tests/storage -k offset
# If something cannot be installed, its tests are skipped with the reason; with CI=true they fail.
# tests/run.sh --quick runs the tests that say most, without Kafka, Java and Spark: for every day.
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/setup.sh

# Lint and types, the architecture, formats against golden files, the engine's append, recovery and compaction, the
# simulation, commands, and a real mount.
QUICK=(
    tests/test_lint.py
    tests/test_architecture.py
    tests/storage/append/test_partition_log.py
    tests/storage/compaction/test_compaction.py
    tests/storage/format/test_decoder.py
    tests/storage/recovery/test_recovery.py
    tests/simulation/test_simulation.py::test_nothing_is_found
    tests/kafkafs/formats
    tests/kafkafs/reading/test_decoded_golden.py
    tests/kafkafs/reading/test_golden.py::test_whole_partition
    tests/kafkafs/reading/test_truncation.py
    tests/kafkafs/writing/test_refused_writes.py
    tests/kafkafs/cli/test_main.py
    tests/kafkafs/cli/test_habits.py
    tests/kafkafs/mounting/test_keys.py
    tests/kafkafs/mounting/test_system_calls.py
)

find_python
# By itself, so that the others are installed where Debian has it no more.
need_packages lib:libfuse.so.2=libfuse2 || say "continuing without libfuse 2"

if [ "${1:-}" = --quick ]; then
    shift
    need_packages fusermount=fuse3 lib:libfuse3.so=fuse3 gcc=gcc /usr/include/stdlib.h=libc6-dev \
        || say "continuing without them"
    make_venv dev,schemas
    say "running the tests that say most"
    KAFKAFS_SIMULATION_SEEDS=${KAFKAFS_SIMULATION_SEEDS:-300} \
        exec "$venv/bin/python" -m pytest -q -n 2 --dist worksteal "${QUICK[@]}" "$@"
fi

need_packages fusermount=fuse3 lib:libfuse3.so=fuse3 kcat=kcat jq=jq rsync=rsync less=less strace=strace \
    gcc=gcc /usr/include/stdlib.h=libc6-dev lsof=lsof java=default-jre-headless javac=default-jdk-headless mvn=maven \
    || say "continuing without them"
make_venv dev,spark,plot,schemas,tier

# fetch DIR POM FILE: download the jars of a pom into a cache directory once, completely or not at all.
fetch() {
    local partial
    [ ! -e "$1/$3" ] && have mvn || return 0
    say "fetching $(basename "$1") with Maven"
    mkdir -p "$(dirname "$1")"
    partial=$(mktemp -d "$1.XXXXXX")
    if mvn -q -B -f "$2" dependency:copy-dependencies -DoutputDirectory="$partial" >&2; then
        # There already: another process was quicker, or an older checkout fetched fewer jars.
        mv -T "$partial" "$1" 2>/dev/null || { mv -n "$partial"/*.jar "$1"/ && rm -rf "$partial"; }
    else
        rm -rf "$partial"
        say "Maven could not fetch it; continuing without it"
    fi
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/kafkafs
# A real Kafka, an older and a later one; and Spark's own Kafka source, with the older pyspark that it needs in a separate
# environment.
fetch "${KAFKAFS_KAFKA:-$cache/kafka-4.3.0}" tests/interop/kafka-pom.xml kafka-storage-4.3.0-test.jar
fetch "$cache/kafka-3.9.1" tests/interop/kafka-3.9-pom.xml kafka-clients-3.9.1.jar
fetch "$cache/kafka-4.4.0" tests/interop/kafka-4.4-pom.xml kafka-clients-4.4.0.jar
fetch "$cache/spark-kafka-4.0.0" tests/interop/spark-kafka-pom.xml spark-avro_2.13-4.0.0.jar
# Avro in Java, which says what a schema reads of what another one wrote.
fetch "$cache/avro-1.12.1" tests/interop/avro-pom.xml avro-1.12.1.jar
older=$cache/pyspark-4.0.0
if ! "$older/bin/python" -c 'import pyspark' 2>/dev/null; then
    say "installing pyspark 4.0.0 into an environment of its own"
    rm -rf "$older"
    "$python" -m venv "$older" && "$older/bin/python" -m pip install --quiet pyspark==4.0.0 || {
        rm -rf "$older"
        say "pyspark 4.0.0 cannot be installed; continuing without it"
    }
fi

# All of them take more than half an hour one after the other.
[ $# -gt 0 ] || set -- -n 2 --dist loadfile

say "running the tests"
exec "$venv/bin/python" -m pytest "$@"
