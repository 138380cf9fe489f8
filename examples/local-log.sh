#!/usr/bin/env bash
# A durable local log for shell scripts: one appends lines, others process them and keep their offsets in files.
#
#   examples/local-log.sh                in a temporary directory
#   examples/local-log.sh DIR            in DIR/log, mounted at DIR/mnt, which stay, as do the offsets (DIR/NAME.offset)
set -euo pipefail
. "$(dirname "$0")/setup.sh"
use_kafkafs

directory=${1:-}
if [ -z "$directory" ]; then
    directory=$(mktemp -d)
    trap 'set +e; cd /; kafkafs umount "$directory/mnt"; rm -rf "$directory"' EXIT
fi
mkdir -p "$directory/mnt"
grep -qF " $directory/mnt fuse.kafkafs " /proc/mounts ||
    run kafkafs mount --write --create "$directory/log" "$directory/mnt" -o log="$directory/mount.log"
cd "$directory/mnt"

say "a topic is a directory; a line is a message, on disk before echo returns"
[ -d jobs ] || mkdir jobs
echo flush.messages=1 >>jobs/@config
for number in 1 2 3 4 5; do
    echo "job $number" >>jobs/0/@append
done

# work NAME COUNT: as the worker NAME, do the next COUNT jobs. Its file holds the offset of the next job, and advances
# when a job is done. Stopped at any point, a job is repeated rather than lost.
work() {
    local offset=0 job place=$directory/$1.offset
    [ ! -s "$place" ] || offset=$(cat "$place")
    while IFS= read -r job; do
        echo "$1 does $job"
        offset=$((offset + 1))
        echo "$offset" >"$place.new"
        mv "$place.new" "$place"
    done < <(head -n "$2" "jobs/0/offsets/$offset-.txt")
}

say "two workers, each at its own pace"
work fast 4
work slow 2
say "later they continue"
echo "job 6" >>jobs/0/@append
work fast 9
work slow 1
cd "$directory"
run grep . fast.offset slow.offset
