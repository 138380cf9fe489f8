#!/usr/bin/env bash
# Runs the tests, after installing what they need on a Debian machine with Python.
#
#   tests/run.sh                     the tests that find most, in five minutes: no Java, no Maven, no Spark
#   tests/run.sh --all               what must pass before a change is merged: also a real Kafka, Spark, lint and types
#   tests/run.sh --nightly           everything, for hours: fresh seeds, every crash point, all versions; ends with a table
#   tests/run.sh PATH… [OPTION…]     these tests, with options of pytest: tests/run.sh tests/storage/log -k offset
#
# A test that lacks a tool is skipped, and the last lines say how many and why; with CI=true it fails.
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/setup.sh

cache=${KAFKAFS_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kafkafs}
export KAFKAFS_TEST_CACHE=$cache

# The tests that find most faults for their time: formats against what real brokers wrote, the engine, what reads and
# writes through the tree, commands, real mounts, the simulation. Left out are the files that take longest for what they
# add: crashes at each operation, both forms of the kernels, processes under strace, most mounts, large views.
QUICK=(
    tests/test_architecture.py
    tests/test_bounds.py
    tests/test_documents.py
    tests/storage
    tests/kafkafs
    tests/simulation
    --ignore=tests/kafkafs/arrow/test_shared_by_threads.py
    --ignore=tests/kafkafs/cli/test_hostile_dirs.py
    --ignore=tests/kafkafs/cli/test_opened_files.py
    --ignore=tests/kafkafs/cli/test_other_users.py
    --ignore=tests/kafkafs/cli/test_places.py
    --ignore=tests/kafkafs/cli/test_random_sql.py
    --ignore=tests/kafkafs/cli/test_standard_streams.py
    --ignore=tests/kafkafs/cli/test_tier.py
    --ignore=tests/kafkafs/decoding/test_proto_kernel.py
    --ignore=tests/kafkafs/mounting/test_allocator.py
    --ignore=tests/kafkafs/mounting/test_errors.py
    --ignore=tests/kafkafs/mounting/test_generations.py
    --ignore=tests/kafkafs/mounting/test_growing.py
    --ignore=tests/kafkafs/mounting/test_large_views.py
    --ignore=tests/kafkafs/mounting/test_libfuse_3.py
    --ignore=tests/kafkafs/mounting/test_lifecycle.py
    --ignore=tests/kafkafs/mounting/test_opened_files.py
    --ignore=tests/kafkafs/mounting/test_random_reads.py
    --ignore=tests/kafkafs/mounting/test_writing.py
    --ignore=tests/kafkafs/mounting/test_writing_ends.py
    --ignore=tests/kafkafs/reading/test_damage.py
    --ignore=tests/kafkafs/reading/test_ends.py
    --ignore=tests/kafkafs/reading/test_lineage.py
    --ignore=tests/kafkafs/reading/test_memory.py
    --ignore=tests/kafkafs/reading/test_truncation.py
    --ignore=tests/kafkafs/reading/test_uncompressed.py
    --ignore=tests/storage/backup/test_mirror.py
    --ignore=tests/storage/directory/test_many_partitions.py
    --ignore=tests/storage/format/test_both_forms.py
    --ignore=tests/storage/log/test_large_batches.py
    --ignore=tests/storage/recovery/test_crashes.py
    --ignore=tests/storage/recovery/test_wrong_offsets.py
    --ignore=tests/storage/revival
    --ignore=tests/storage/staged_writes/test_commit.py
    --ignore=tests/storage/verify/test_manifest_audit.py
)

# fetch NAME POM FILE: download the jars of a pom into the cache once, completely or not at all.
fetch() {
    local partial
    [ ! -e "$cache/$1/$3" ] && have mvn || return 0
    say "fetching $1 with Maven"
    mkdir -p "$cache"
    partial=$(mktemp -d "$cache/$1.XXXXXX")
    if mvn -q -B -f "tests/interop/$2" dependency:copy-dependencies -DoutputDirectory="$partial" >&2; then
        # There already: another process was quicker, or an older checkout fetched fewer jars.
        mv -T "$partial" "$cache/$1" 2>/dev/null || { mv -n "$partial"/*.jar "$cache/$1"/ && rm -rf "$partial"; }
    else
        rm -rf "$partial"
        say "Maven could not fetch $1; continuing without it"
    fi
}

# What groups of tests need beside Python. Each function installs it, or notes which packages are missing.
missing=()
need() {
    local wanted
    need_packages "$@" || for wanted in "$@"; do have "${wanted%%=*}" || missing+=("${wanted#*=}"); done
}
need_mounts() {
    # By itself, so that the others are installed where Debian has it no more.
    need lib:libfuse.so.2=libfuse2
    need fusermount=fuse3 lib:libfuse3.so=fuse3 gcc=gcc /usr/include/stdlib.h=libc6-dev
}
need_tools() { need kcat=kcat jq=jq ssh-keygen=openssh-client rsync=rsync less=less strace=strace lsof=lsof; }
need_java() { need java=default-jre-headless; }
need_kafka() {
    need java=default-jre-headless mvn=maven
    fetch kafka-4.3.0 kafka-pom.xml kafka-storage-4.3.0-test.jar
}
# The other releases of Kafka, and the programs whose answers are recorded in tests/fixtures.
need_referees() {
    need javac=default-jdk-headless
    fetch kafka-3.9.1 kafka-3.9-pom.xml kafka-clients-3.9.1.jar
    fetch kafka-4.4.0 kafka-4.4-pom.xml kafka-clients-4.4.0.jar
    fetch spark-kafka-4.0.0 spark-kafka-pom.xml spark-avro_2.13-4.0.0.jar
    fetch avro-1.12.1 avro-pom.xml avro-1.12.1.jar
    local older=$cache/pyspark-4.0.0
    "$older/bin/python" -c 'import pyspark' 2>/dev/null && return
    say "installing pyspark 4.0.0 into an environment of its own"
    rm -rf "$older"
    "$python" -m venv "$older" && "$older/bin/python" -m pip install --quiet pyspark==4.0.0 && return
    rm -rf "$older"
    say "pyspark 4.0.0 cannot be installed; continuing without it"
}
# What only root can install ends the run, with one line that says what.
stop_if_missing() {
    [ ${#missing[@]} -eq 0 ] || [ "$(id -u)" -eq 0 ] && return
    local packages
    packages=$(printf '%s\n' "${missing[@]}" | sort -u | paste -sd ' ')
    say "$1 needs what only root can install: apt-get install $packages; tests/run.sh alone needs less"
    exit 2
}

# Without compiled kernels the tests would take hours.
stop_if_uncompiled() {
    ! stale_kernels && return
    say "the tests need a C compiler and Python's headers: apt-get install gcc libc6-dev python3-dev"
    exit 2
}

# Both processors; what shares a broker or Spark, and a file's tests, stay on one of them (tests/conftest.py).
run_pytest() { "$venv/bin/python" -m pytest -q -n 2 --dist loadgroup --no-loadscope-reorder "$@"; }

extras=dev,schemas,sql,store
everything=dev,replay,schemas,spark,plot,store

find_python
case ${1:-} in
    --all)
        shift
        need_mounts; need_tools; need_kafka
        stop_if_missing --all
        make_venv $everything
        say "lint and types"
        "$venv/bin/python" -m ruff check
        "$venv/bin/python" -m mypy
        say "running all tests but the nightly ones"
        run_pytest tests "$@"
        ;;
    --nightly)
        shift
        need_mounts; need_tools; need_kafka; need_referees
        stop_if_missing --nightly
        make_venv $everything
        exec "$venv/bin/python" -m tests.nightly "$@"
        ;;
    tests/*)
        need_mounts
        for argument in "$@"; do
            case $argument in
                tests/interop*|tests/test_examples*) need_tools; need_kafka; extras=$everything ;;
                tests/spark*|tests/bench*|tests/soak*) need_java; extras=$everything ;;
                tests/kafkafs*|tests/hostile*) need_tools ;;
                --nightly) need_kafka; need_referees; extras=$everything ;;
            esac
        done
        make_venv $extras
        exec "$venv/bin/python" -m pytest "$@"
        ;;
    *)
        need_mounts
        make_venv $extras
        stop_if_uncompiled
        say "running the tests that find most"
        KAFKAFS_SIMULATION_SEEDS=${KAFKAFS_SIMULATION_SEEDS:-100} run_pytest "${QUICK[@]}" "$@"
        say "that was tests/run.sh. More: tests/run.sh --all, 15 minutes, with Java, a Kafka and Spark, which it installs"
        ;;
esac
