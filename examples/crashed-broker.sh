#!/usr/bin/env bash
# Reads the disk of a broker that crashed, without a broker and without changing anything on it.
#
#   examples/crashed-broker.sh                a copy of the sample log, crashed in the middle of a write
#   examples/crashed-broker.sh LOGDIR COPY    the disk you have rescued, and a directory to copy its topics to
set -euo pipefail
. "$(dirname "$0")/setup.sh"
use_kafkafs

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
logdir=${1:-} copy=${2:-$temporary/copy}
if [ -z "$logdir" ]; then
    logdir=$temporary/disk
    cp -r "$root/examples/sample-log" "$logdir"
    # As a crash leaves it: no clean shutdown, and half a batch at the end of a log
    rm "$logdir/.kafka_cleanshutdown"
    active=$(ls "$logdir"/orders-0/*.log | tail -n 1)
    head -c 150 "$active" >>"$active"
fi

say "what is there: whole batches with right checksums; a torn end is not part of a log"
run kafkafs topics list "$logdir"
run kafkafs count "$logdir"
topic=$(kafkafs topics list "$logdir" | awk 'NR > 1 && $1 !~ /^__/ { last = $1 } $1 == "orders" { exit } END { print last }')
run kafkafs cat "$logdir" "$topic" --offsets last-2 --format jsonl

say "what a broker's start would do; nothing is changed"
run kafkafs recover "$logdir" --dry-run

say "the committed offsets of consumers"
run kafkafs groups "$logdir"

say "everything copied, batch by batch, to a directory to continue with"
run kafkafs mirror "$logdir" "$copy" '[!_]*'
run kafkafs count "$copy"

[ $# -eq 0 ] || exit 0 # what follows damages files

say "a sector of the disk goes bad: the damage is named, and everything else is copied out"
broken=$temporary/broken
mkdir "$broken"
cp -r "$copy/$topic"-* "$broken"
sealed=$(ls "$broken/$topic"-*/*.log | head -n 1)
printf 'rust' | dd of="$sealed" bs=1 seek=$(($(stat -c %s "$sealed") / 2)) conv=notrunc status=none
run kafkafs verify "$broken" || echo "(exit code $?: damage found)"
run kafkafs salvage "$broken" "$topic" --to "$temporary/salvaged"
run kafkafs verify "$temporary/salvaged"
