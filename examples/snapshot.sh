#!/usr/bin/env bash
# Reads a snapshot of a broker's disk: the log as it was at one moment, as files, while the broker continues.
#
#   examples/snapshot.sh                 a copy of the sample log is the snapshot
#   examples/snapshot.sh SNAPSHOT        yours: of LVM, btrfs, ZFS or a cloud's disk, mounted read-only
set -euo pipefail
. "$(dirname "$0")/setup.sh"
use_kafkafs

temporary=$(mktemp -d)
trap 'set +e; cd /; kafkafs umount "$temporary/mnt" >/dev/null 2>&1; rm -rf "$temporary"' EXIT
snapshot=${1:-}
if [ -z "$snapshot" ]; then
    snapshot=$temporary/snapshot
    cp -r "$root/examples/sample-log" "$snapshot"
    rm -f "$snapshot/.kafka_cleanshutdown" # a broker was running
    chmod -R a-w "$snapshot"
fi
before=$(cd "$snapshot" && find . -type f -exec cksum {} + | sort)

mkdir "$temporary/mnt"
run kafkafs mount --read-only "$snapshot" "$temporary/mnt"
cd "$temporary/mnt"
say "the number of messages per day, in all topics"
for day in [!_@]*/0/time/*.txt; do
    printf '%6d  %s\n' "$(wc -l <"$day")" "$day"
done
say "the committed offsets of consumer groups"
find @groups -type f -name '[0-9]*' | while read -r file; do
    echo "$file: $(cat "$file")"
done
cd /
run kafkafs umount "$temporary/mnt"

[ "$before" = "$(cd "$snapshot" && find . -type f -exec cksum {} + | sort)" ]
say "not a byte of the snapshot has changed"
