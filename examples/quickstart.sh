#!/usr/bin/env bash
# Mounts a Kafka log directory and shows how to read it.
#
#   examples/quickstart.sh               a small sample that a real broker wrote; nothing stays mounted
#   examples/quickstart.sh LOGDIR MNT    your log directory at MNT, read-only: no byte of it changes; it stays mounted
#
# On a Debian machine with Python it first installs what is missing: FUSE, and kafkafs into .venv. It can be run
# repeatedly.
set -euo pipefail
case $# in
    0) logdir='' mnt='' ;;
    2) logdir=$(cd "$1" && pwd) # if it is not a directory, cd has printed the reason
       mnt=$(realpath -m "$2") ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
. "$(dirname "$0")/setup.sh"

find_python
need_packages fusermount=fuse3 lib:libfuse3.so=fuse3 gcc=gcc /usr/include/stdlib.h=libc6-dev || {
    have fusermount && { have lib:libfuse3.so || have lib:libfuse.so.2; } || exit 2
    say "it works without a C compiler too, but slower"
}
make_venv
kafkafs=$venv/bin/kafkafs

# show COMMAND: print it as typed in a shell, and the beginning of its output
show() {
    printf '\n\033[1m$ %s\033[0m\n' "$1"
    # a reader that ends early is not a failure
    bash -c "$1" | awk -v most="${2:-6}" 'NR <= most { print substr($0, 1, 240) } NR == most + 1 { print "…" }'
}

if [ -z "$logdir" ]; then
    temporary=$(mktemp -d)
    trap 'set +e; exec >/dev/null 2>&1; cd /; "$kafkafs" umount "$temporary/mnt" || fusermount -u -z "$temporary/mnt"
          rm -rf "$temporary"' EXIT
    say "copying examples/sample-log, which a Kafka 4.3 broker wrote, to $temporary"
    cp -r "$root/examples/sample-log" "$temporary/sample-log"
    logdir=$temporary/sample-log mnt=$temporary/mnt
fi

if grep -qF " $mnt fuse.kafkafs " /proc/mounts && stat "$mnt" >/dev/null 2>&1; then
    say "$mnt is mounted already"
else
    say "mounting $logdir at $mnt, read-only"
    mkdir -p "$mnt"
    "$kafkafs" mount "$logdir" "$mnt" --read-only
fi

# A partition to show: orders of the sample, or the first one with messages.
cd "$mnt"
partition=''
for candidate in orders/0 [!_@]*/[0-9]* [!@]*/[0-9]*; do
    [ -d "$candidate" ] || continue
    [ -n "$(head -c 1 "$candidate/messages.log" | tr '\0' x)" ] && partition=$candidate && break
done
say "topics are directories, partitions are directories in them"
show 'ls' 20
if [ -z "$partition" ]; then
    say "no partition here holds a message"
else
    show "ls $partition $partition/offsets $partition/time" 40
    say "every message, one per line; jsonl also has its offset, timestamp, key and headers"
    show "cat $partition/messages.txt"
    show "tail -n 3 $partition/messages.jsonl"
    say "messages by offset: any range can be opened, listed or not"
    start=$("$venv/bin/python" -c '
import json, sys
print(json.load(open(sys.argv[1]))["log_start_offset"])' "$partition/@info.json")
    show "cat $partition/offsets/$start-$((start + 2)).txt"
    show "cat $partition/offsets/last-2.jsonl"
    say "messages by time"
    day=$(ls "$partition/time" | tail -n 1)
    show "wc -l $partition/time/$day"
    show "head -n 3 $partition/time/$day"
fi

if [ $# -eq 2 ]; then
    say "$mnt stays mounted. Unmount it with:  $kafkafs umount $mnt"
else
    say "done; unmounting. Your own:  examples/quickstart.sh LOGDIR MNT"
fi
