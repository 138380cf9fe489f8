#!/usr/bin/env bash
# Shows how to read a Kafka log directory: mounted as files or, where nothing can be mounted, with commands.
#
#   examples/quickstart.sh               a small sample that a real broker wrote; nothing stays mounted
#   examples/quickstart.sh LOGDIR MNT    your log directory at MNT, read-only: no byte of it changes; it stays mounted
#
# On a Debian machine with Python the script first installs what is missing: FUSE, and kafkafs into .venv. You can run
# it repeatedly.
set -euo pipefail
case $# in
    0) logdir='' mnt='' ;;
    2) logdir=$(cd "$1" && pwd) # if it is not a directory, cd has printed the reason
       mnt=$(realpath -m "$2") ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
. "$(dirname "$0")/setup.sh"

find_python
need_packages fusermount=fuse3 lib:libfuse3.so=fuse3 gcc=gcc /usr/include/stdlib.h=libc6-dev ||
    say "continuing without them"
make_venv
kafkafs=$venv/bin/kafkafs
PATH=$PATH:$venv/bin # the commands below are shown as you would type them

# show COMMAND: print it as typed in a shell, and the beginning of its output
show() {
    printf '\n\033[1m$ %s\033[0m\n' "$1"
    # a reader that ends early is not a failure
    bash -c "$1" | awk -v most="${2:-6}" 'NR <= most { print substr($0, 1, 240) } NR == most + 1 { print "…" }'
}

# Why nothing can be mounted here; nothing if something can.
cannot_mount() {
    # doctor's exit code 1 means that it reports a problem
    { "$kafkafs" doctor --self --json || true; } | "$venv/bin/python" -c '
import json, sys
problems = [text.removeprefix("nothing can be mounted: ") for text in json.load(sys.stdin)["problems"]
            if text.startswith("nothing can be mounted: ")]
print(problems[0].removesuffix(". The other commands work") if problems else "")'
}

# The first partition with messages, orders/0 if that has some: its name, its first offset here, its last day or -.
first_partition() {
    "$kafkafs" topics describe . --json | "$venv/bin/python" -c '
import json, sys
holding = [
    (topic["topic"] != "orders", topic["topic"].startswith("_"), topic["topic"], partition["partition"], partition)
    for topic in json.load(sys.stdin)["topics"]
    for partition in topic["partitions"]
    if partition["messages"]
]
for *_, topic, number, partition in sorted(holding, key=lambda row: row[:4])[:1]:
    print(f"{topic}/{number}", partition["local_log_start_offset"], (partition["last_time"] or "-")[:10])'
}

# The same messages as show_files shows, for machines that cannot mount.
show_commands() {
    local partition='' start day
    cd "$logdir"
    show 'kafkafs topics list .' 20
    read -r partition start day < <(first_partition) || { say "no partition here holds a message"; return; }
    say "every message, one per line; jsonl also has its offset, timestamp, key and headers"
    show "kafkafs cat . $partition"
    show "kafkafs cat . $partition --offsets last-3 --format jsonl"
    say "messages by offset"
    show "kafkafs cat . $partition --offsets $start-$((start + 2))"
    show "kafkafs cat . $partition --offsets last-2 --format jsonl"
    [ "$day" != - ] || return 0
    say "messages by time"
    show "kafkafs cat . $partition --time $day | wc -l"
    show "kafkafs cat . $partition --time $day | head -n 3"
}

show_files() {
    # A partition to show: orders of the sample, or the first one with messages.
    cd "$mnt"
    local partition='' candidate start day
    for candidate in orders/0 [!_@]*/[0-9]* [!@]*/[0-9]*; do
        [ -d "$candidate" ] || continue
        [ -n "$(head -c 1 "$candidate/messages.log" | tr '\0' x)" ] && partition=$candidate && break
    done
    say "topics are directories, partitions are directories in them"
    show 'ls' 20
    [ -n "$partition" ] || { say "no partition here holds a message"; return; }
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
}

if [ -z "$logdir" ]; then
    temporary=$(mktemp -d)
    trap 'set +e; exec >/dev/null 2>&1; cd /; "$kafkafs" umount "$temporary/mnt" || fusermount -u -z "$temporary/mnt"
          rm -rf "$temporary"' EXIT
    say "copying examples/sample-log, which a Kafka 4.3 broker wrote, to $temporary"
    cp -r "$root/examples/sample-log" "$temporary/sample-log"
    logdir=$temporary/sample-log mnt=$temporary/mnt
fi

reason=$(cannot_mount)
if [ -n "$reason" ]; then
    say "commands show the messages, because nothing can be mounted: $reason"
    show_commands
    say "done. Your own:  $kafkafs topics list LOGDIR"
    exit
fi

if grep -qF " $mnt fuse.kafkafs " /proc/mounts && stat "$mnt" >/dev/null 2>&1; then
    say "$mnt is mounted already"
else
    say "mounting $logdir at $mnt, read-only"
    mkdir -p "$mnt"
    "$kafkafs" mount --read-only "$logdir" "$mnt"
fi
show_files

if [ $# -eq 2 ]; then
    say "$mnt stays mounted. Unmount it with:  $kafkafs umount $mnt"
else
    say "done; unmounting. Your own:  examples/quickstart.sh LOGDIR MNT"
fi
