#!/usr/bin/env bash
# Builds every kernel of pyproject.toml with address and undefined-behaviour sanitizers and fuzzes them:
#   tests/sanitizers/run.sh [SECONDS]            default 30; further arguments go to the driver (see fuzz.py --help)
# PYTHON names the interpreter; KAFKAFS_SANITIZE_ROOT a changed copy of the project, to see whether a fault is found.
# The builds are kept in .cache/sanitizers by the content of their sources.
set -euo pipefail
project=$(cd "$(dirname "$0")/../.." && pwd)
root=${KAFKAFS_SANITIZE_ROOT:-$project}
python=${PYTHON:-$project/.venv/bin/python}
seconds=30
case ${1:-} in [0-9]*) seconds=$1; shift ;; esac

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
"$python" "$project/tests/sanitizers/build.py" "$root" "$tree" --cache "$project/.cache/sanitizers"

# The interpreter itself is not built with sanitizers, so their libraries must be there before it. Python's own
# allocator would hide over-reads, and its interpreter leaks on purpose.
libraries="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
cd "$tree"
LD_PRELOAD=$libraries PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 PYTHONPATH="$tree:$project" PYTHONDONTWRITEBYTECODE=1 \
    "$python" -m tests.sanitizers.fuzz --tree "$tree" --seconds "$seconds" "$@" || {
    status=$?
    echo "tests/sanitizers/run.sh: fault; replay it with: --replay $(sed "s/ *$//" case 2>/dev/null)" >&2
    exit "$status"
}
