#!/usr/bin/env bash
# Builds every kernel of pyproject.toml with address and undefined-behaviour sanitizers and runs the tests of kernels
# with them, with other random data each time:
#   tests/sanitizers/run.sh [SECONDS] [PYTEST ARGUMENTS]
# Repeats them until SECONDS (30) have passed, and runs them once at least. A path among the arguments (tests/…) takes
# the place of the modules below. KAFKAFS_FUZZ_SEED is the first seed, to repeat a run; PYTHON the interpreter;
# KAFKAFS_SANITIZE_ROOT a changed copy of the packages, to see whether a fault is found.
# The builds are kept in .cache/sanitizers by the content of their sources.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
seconds=30
case ${1:-} in [0-9]*) seconds=$1; shift ;; esac
modules=(
    tests/storage/format
    tests/storage/latest
    tests/storage/append/test_partitioner*.py
    tests/storage/compaction/test_compaction*.py
    tests/storage/log/test_scanning*.py
    tests/kafkafs/decoding
    tests/kafkafs/formats
    tests/kafkafs/reading/test_*key*.py
    tests/kafkafs/reading/test_*measure*.py
)
case " $*" in *" tests/"*) modules=() ;; esac

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
"$python" tests/sanitizers/build.py "${KAFKAFS_SANITIZE_ROOT:-.}" "$tree" --cache .cache/sanitizers

# The interpreter itself is not built with sanitizers, so their libraries must be there before it. Python's own
# allocator would hide over-reads, and its interpreter leaks on purpose. A fault aborts the process: its report and the
# Python stack of the test are printed.
libraries="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
first=${KAFKAFS_FUZZ_SEED:-$(date +%s)}
seed=$first
while :; do
    LD_PRELOAD=$libraries PYTHONMALLOC=malloc PYTHONPATH="$tree:$PWD" PYTHONDONTWRITEBYTECODE=1 \
        ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
        UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:abort_on_error=1 \
        KAFKAFS_FUZZ_SEED=$seed \
        "$python" -P -m pytest -q -n 0 -p no:cacheprovider -p tests.sanitizers.plugin -o pythonpath="$tree" \
        --capture=sys --hypothesis-seed="$seed" "${modules[@]}" "$@" || {
        status=$?
        echo "tests/sanitizers/run.sh: fault; repeat it with KAFKAFS_FUZZ_SEED=$seed tests/sanitizers/run.sh 0 $*" >&2
        exit "$status"
    }
    [ $SECONDS -lt "$seconds" ] || break
    seed=$((seed + 1))
done
echo "no fault with seeds $first to $seed"
