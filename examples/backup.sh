#!/usr/bin/env bash
# A backup that is itself a log directory: it is readable, each run adds what is new, and a manifest proves what it has.
#
#   examples/backup.sh                   a copy of the sample log, backed up, written to, backed up again
#   examples/backup.sh LOGDIR BACKUP     yours; LOGDIR may be a running broker's; for cron
#   examples/backup.sh --brokers         the whole circle: a running broker backed up, the backup restored into another
#                                        (needs Java, and Kafka's jars in KAFKA_HOME/libs or where tests/run.sh puts them)
set -euo pipefail
. "$(dirname "$0")/setup.sh"
use_kafkafs

if [ $# -eq 2 ]; then
    kafkafs mirror "$1" "$2" --manifest "${2%/}.manifest.json"
    exit
fi
temporary=$(mktemp -d)
brokers=()
clean_up() {
    local pid
    for pid in "${brokers[@]}"; do
        kill -9 "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
    done
    rm -rf "$temporary"
}
trap clean_up EXIT

# Brokers: each has a directory with server.properties, its log directory `log`, and what it says.

find_kafka() {
    jars=${KAFKAFS_KAFKA:-${XDG_CACHE_HOME:-$HOME/.cache}/kafkafs/kafka-4.3.0}
    [ -z "${KAFKA_HOME:-}" ] || jars=$KAFKA_HOME/libs
    have java && ls "$jars"/kafka-clients-*.jar >/dev/null 2>&1 ||
        { say "Java is needed, and Kafka: set KAFKA_HOME, or run tests/run.sh"; exit 2; }
}

# kafka CLASS ARGUMENT…: one of Kafka's programs; what it logs goes to a file
kafka() { java -Xmx512m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "$jars/*" "$@" 2>>"$temporary/kafka.log"; }

# make_broker DIRECTORY: a new broker that is also its own controller, on free ports
make_broker() {
    local port controller
    read -r port controller < <(python3 - <<'PY'
import socket
held = [socket.socket() for _ in range(2)]
for one in held:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in held))
PY
)
    mkdir "$1"
    printf '127.0.0.1:%s' "$port" >"$1/address"
    cat >"$1/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:$controller
log.dirs=$1/log
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
PROPERTIES
    kafka kafka.tools.StorageTool format -t a2Fma2Fmcy1iYWNrdXAtMQ -c "$1/server.properties" >/dev/null
}

# start_broker DIRECTORY: sets `broker` to its process
start_broker() {
    : >"$1/out"
    java -Xmx512m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "$jars/*" kafka.Kafka "$1/server.properties" \
        >"$1/out" 2>&1 &
    broker=$!
    brokers+=("$broker")
    local address
    address=$(cat "$1/address")
    # Kafka's tools wait until it answers.
    until (exec 3<>"/dev/tcp/${address%:*}/${address#*:}") 2>/dev/null; do
        kill -0 "$broker" 2>/dev/null || { tail -n 20 "$1/out"; exit 1; }
        sleep 0.2
    done
}

stop_broker() { kill "$broker" && wait "$broker" || true; }

# kafka_tool DIRECTORY TOOL ARGUMENT…
kafka_tool() { kafka "org.apache.kafka.tools.$2" --bootstrap-server "$(cat "$1/address")" "${@:3}"; }

whole_circle() {
    find_kafka
    local source=$temporary/source other=$temporary/other backup=$temporary/backup manifest=$temporary/backup.json
    say "a broker, and a topic that is written to"
    make_broker "$source"
    start_broker "$source"
    kafka_tool "$source" TopicCommand --create --topic orders --partitions 2 >/dev/null
    seq -f 'order %g' 1000 | kafka_tool "$source" ConsoleProducer --topic orders >/dev/null

    say "it runs while it is backed up"
    run kafkafs mirror "$source/log" "$backup" orders --manifest "$manifest"
    seq -f 'order %g' 1001 1500 | kafka_tool "$source" ConsoleProducer --topic orders >/dev/null

    say "the next run copies what was added since, and adds it to the manifest"
    run kafkafs mirror "$source/log" "$backup" orders --manifest "$manifest"
    run kafkafs verify "$backup" --manifest "$manifest"
    stop_broker

    say "restored: another broker creates the topic and is stopped, then the batches are put into its directory"
    make_broker "$other"
    start_broker "$other"
    kafka_tool "$other" TopicCommand --create --topic orders --partitions 2 >/dev/null
    stop_broker
    run kafkafs mirror "$backup" "$other/log" orders
    run kafkafs verify "$other/log" orders --manifest "$manifest"
    run kafkafs diff "$source/log" "$other/log" orders

    say "it serves every message, and goes on"
    start_broker "$other"
    echo 'order 1501' | kafka_tool "$other" ConsoleProducer --topic orders >/dev/null
    kafka_tool "$other" consumer.ConsoleConsumer --topic orders --from-beginning --max-messages 1501 >"$temporary/consumed"
    cmp <(sort "$temporary/consumed") <(seq -f 'order %g' 1501 | sort)
    stop_broker
    echo "$(wc -l <"$temporary/consumed") messages consumed, each of them once"
}

if [ "${1:-}" = --brokers ]; then
    whole_circle
    exit
fi
cp -r "$root/examples/sample-log" "$temporary/broker"
rm -r "$temporary/broker/__cluster_metadata-0" "$temporary/broker/meta.properties" # so that it is ours to write to
manifest=$temporary/backup.json

say "the first backup copies everything, byte for byte, and lists it"
run kafkafs mirror "$temporary/broker" "$temporary/backup" --manifest "$manifest"

say "the next one copies what was added since"
echo 'one more' | run kafkafs append "$temporary/broker" payments/0
run kafkafs mirror "$temporary/broker" "$temporary/backup" payments --manifest "$manifest"
run kafkafs cat "$temporary/backup" payments/0 --offsets last-1 --format jsonl

say "nothing is missing, nothing has changed"
run kafkafs verify "$temporary/backup" --manifest "$manifest"

say "the same messages here and there"
run kafkafs diff "$temporary/broker" "$temporary/backup" '[!_]*'

say "as it was at one moment, under another name"
run kafkafs mirror "$temporary/backup" "$temporary/cut" orders --until 2026-11-20 --rename orders=orders-of-the-19th 2>&1
run kafkafs count "$temporary/cut"
