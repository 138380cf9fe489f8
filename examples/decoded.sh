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
