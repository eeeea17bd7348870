#!/usr/bin/env bash
# Makes environments of their own for what can share none with ours, and whose tests run in the night: SkyPilot, the programs
# whose logs scorers read, SageMaker's SDK. Never fails: what is missing is named here and again in pytest's list of skips.
set -euo pipefail
cd "$(dirname "$0")/.."

for name in skypilot evaluators sagemaker; do
    place=.venv-night/$name
    cmp --silent "requirements/$name.txt" "$place/installed.txt" && continue
    "$(.ci/python.sh)" -m venv --clear "$place"
    # The lock files are whole: pip need not look for what they need, and cannot where an extra is needed.
    if "$place/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes -r "requirements/$name.txt"; then
        cp "requirements/$name.txt" "$place/installed.txt"
    else
        rm -rf "$place"
        echo "WARNING: requirements/$name.txt could not be installed: its tests will be SKIPPED." >&2
    fi
done
