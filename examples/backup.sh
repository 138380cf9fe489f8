#!/usr/bin/env bash
# A backup that is itself a log directory: it is readable, and each run adds what is new.
#
#   examples/backup.sh                   a copy of the sample log, backed up, written to, backed up again
#   examples/backup.sh LOGDIR BACKUP     yours; LOGDIR may be a running broker's; for cron
set -euo pipefail
. "$(dirname "$0")/setup.sh"
use_kafkafs

if [ $# -eq 2 ]; then
    kafkafs mirror "$1" "$2"
    exit
fi
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cp -r "$root/examples/sample-log" "$temporary/broker"
rm -r "$temporary/broker/__cluster_metadata-0" "$temporary/broker/meta.properties" # so that it is ours to write to

say "the first backup copies everything, byte for byte"
run kafkafs mirror "$temporary/broker" "$temporary/backup"

say "the next one copies what was added since"
echo 'one more' | run kafkafs append "$temporary/broker" payments/0
run kafkafs mirror "$temporary/broker" "$temporary/backup" payments
run kafkafs cat "$temporary/backup" payments/0 --offsets last-1 --format jsonl

say "the same messages here and there"
for topic in orders payments accounts clicks; do
    cmp <(kafkafs cat "$temporary/broker" "$topic" --format jsonl) <(kafkafs cat "$temporary/backup" "$topic" --format jsonl)
    echo "$topic: equal"
done
