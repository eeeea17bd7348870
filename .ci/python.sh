#!/usr/bin/env bash
# Prints the interpreter to build the virtual environment with: $PYTHON, or the first supported one that can make one.
# On Debian, where venv is a package of its own, it is installed when we may.
set -euo pipefail

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
makes_venvs() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

candidates=(python3.11 python3.12 python3.13 python3)
[ -z "${PYTHON:-}" ] || candidates=("$PYTHON")

without_venv=
for candidate in "${candidates[@]}"; do
    supported "$candidate" || continue
    if makes_venvs "$candidate"; then
        command -v "$candidate"
        exit
    fi
    without_venv=${without_venv:-$candidate}
done

if [ -z "$without_venv" ]; then
    echo "no Python 3.11, 3.12 or 3.13 found (tried: ${candidates[*]}); install one or set PYTHON=/path/to/python" >&2
    exit 1
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    package="python$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"; } >&2 || true
fi
if ! makes_venvs "$without_venv"; then
    echo "$without_venv cannot make virtual environments; install its venv package (Debian: python3-venv) and try again" >&2
    exit 1
fi
command -v "$without_venv"
