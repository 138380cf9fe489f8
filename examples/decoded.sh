#!/usr/bin/env bash
# Reads Avro without a schema registry: the schemas are in the log directory too.
#
#   examples/decoded.sh                  a small sample with Avro values
#   examples/decoded.sh LOGDIR [TP]      yours, read-only: every topic, or those that TP names
set -euo pipefail
. "$(dirname "$0")/setup.sh"
use_kafkafs

log=${1:-$root/examples/avro-log}
topic=${2:-*}
temporary=$(mktemp -d)
trap 'set +e; rm -rf "$temporary"' EXIT

say "the schemas"
run kafkafs schemas "$log"
say "values that are binary, and the same values decoded"
kafkafs cat "$log" "$topic" --offsets last-1 --format jsonl | tail -n 1
kafkafs cat "$log" "$topic" --offsets last-1 --format decoded | tail -n 1
say "schemas that are lost with their registry can be kept as files, in the form that a registry imports"
run kafkafs schemas "$log" --to "$temporary/schemas"
find "$temporary/schemas" -type f | sort | sed "s|$temporary/||"

if [ $# -eq 0 ]; then
    say "a decoded line can be edited and appended: it is encoded by its schema again"
    cp -r "$log" "$temporary/copy"
    kafkafs cat "$log" shipments/0 --offsets last-1 --format decoded | sed 's/"weight":[0-9.]*/"weight":99.5/' |
        kafkafs append "$temporary/copy" shipments/0 --format jsonl
    kafkafs cat "$temporary/copy" shipments/0 --offsets last-2 --format decoded | grep -o '"weight":[0-9.]*'
    say "and what does not fit is refused"
    echo '{"value":{"shipment":7},"valueSchema":2}' |
        kafkafs append "$temporary/copy" shipments/0 --format jsonl 2>&1 || echo "exit code $?"
fi
