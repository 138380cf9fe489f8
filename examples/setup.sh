# Sourced by the examples and by tests/run.sh: what they install and share. Not a command.
#
#   need_packages COMMAND=PACKAGE…   install the Debian packages whose command (or file, or `lib:`rary) is missing
#   make_venv [EXTRA]                .venv with kafkafs in it, kernels compiled; quick when nothing changed
#   use_kafkafs                      kafkafs is in PATH from here on

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

have() {
    case $1 in
        lib:*) ldconfig=$(command -v ldconfig || echo /sbin/ldconfig)
               "$ldconfig" -p 2>/dev/null | grep -qF "${1#lib:}" ;;
        /*) [ -e "$1" ] ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

# Debian's Python comes without venv and without its C headers; one built from source has both.
python_lacks() {
    "$python" -c 'import ensurepip' 2>/dev/null || echo python3-venv
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
        echo python3-dev
}

find_python() {
    for python in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
        python=$(command -v "$python") || continue
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    done
    say "Python 3.11 or later is needed (PYTHON=/path/to/python names one)"
    exit 2
}

need_packages() {
    local missing=() wanted
    for wanted in "$@"; do
        have "${wanted%%=*}" || missing+=("${wanted#*=}")
    done
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sed '/^$/d' | sort -u; python_lacks)
    [ ${#missing[@]} -gt 0 ] || return 0
    local as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    if ! have apt-get || { [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null && ! [ -t 0 ]; }; then
        say "these packages are missing and cannot be installed from here: ${missing[*]}"
        return 1
    fi
    say "installing ${missing[*]}"
    local said # the output of apt is shown only if it fails
    if ! said=$({ "${as_root[@]}" apt-get -qq update &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq -y --no-install-recommends install "${missing[@]}"; } 2>&1); then
        printf '%s\n' "$said" | tail -n 20
        return 1
    fi
}

# True if a compiled kernel is missing or older than its source
stale_kernels() {
    "$venv/bin/python" - "$root" <<'PY'
import sys, tomllib
from pathlib import Path
root = Path(sys.argv[1])
modules = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
sources = [root / source for module in modules for source in module["sources"]]
# Cython makes one of the sources while building.
changed = {source: source.stat().st_mtime if source.exists() else 0 for source in sources}
fresh = all(
    any(built.stat().st_mtime >= changed[source] for built in source.parent.glob(source.stem + ".*.so"))
    for source in sources
)
sys.exit(fresh)
PY
}

make_venv() {
    local extra=${1:-} target=. stamp=$venv/.kafkafs-installed wanted
    [ -z "$extra" ] || target=".[$extra]"
    # One installation at a time: two scripts may have been started at once.
    mkdir -p "$root/.cache"
    exec 9>"$root/.cache/setup.lock"
    if have flock; then flock 9; fi
    # A .venv that was moved, or whose Python is missing, is useless
    "$venv/bin/python" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null || rm -rf "$venv"
    [ -e "$venv" ] || "$python" -m venv "$venv"
    wanted=$("$venv/bin/python" - "$root/pyproject.toml" <<'PY'
import hashlib, sys
from pathlib import Path
print(hashlib.sha256(Path(sys.argv[1]).read_bytes() + sys.version.encode() + sys.argv[1].encode()).hexdigest())
PY
)
    # The stamp has what was installed, and a line for each extra
    if ! grep -qxF "$wanted $extra" "$stamp" 2>/dev/null; then
        say "installing kafkafs into .venv"
        local requirements
        mapfile -t requirements < <("$venv/bin/python" -c '
import sys, tomllib
print(*tomllib.load(open(sys.argv[1], "rb"))["build-system"]["requires"], sep="\n")' "$root/pyproject.toml")
        (cd "$root" && export PYTHONWARNINGS=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 &&
            "$venv/bin/python" -m pip install --quiet "${requirements[@]}" &&
            "$venv/bin/python" -m pip install --quiet --no-build-isolation --editable "$target")
        grep -sF "$wanted " "$stamp" >"$stamp.new" || echo "$wanted " >"$stamp.new"
        [ -z "$extra" ] || echo "$wanted $extra" >>"$stamp.new"
        mv "$stamp.new" "$stamp"
    fi
    if stale_kernels && have cc; then
        say "compiling the kernels"
        (cd "$root" && "$venv/bin/python" -W ignore -c 'from setuptools import setup; setup()' \
            --quiet build_ext --inplace --force >/dev/null)
    fi
    # Where PYTHONDONTWRITEBYTECODE is set, each command would compile its source again: half of the time that it takes to start
    "$venv/bin/python" -m compileall -q "$root/kafkafs" "$root/storage" || true
    exec 9>&-
}

# For the other examples: kafkafs from PATH, or from .venv.
use_kafkafs() {
    have kafkafs || PATH=$PATH:$venv/bin
    have kafkafs || { say "kafkafs is not installed; examples/quickstart.sh does that"; exit 2; }
}

# run COMMAND…: print it, then run it
run() { printf '\n$ %s\n' "$*"; "$@"; }
