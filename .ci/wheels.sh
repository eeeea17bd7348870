#!/usr/bin/env bash
# Fetches what the program needs as wheels into out/wheels, the offline index of tests/e2e/test_pipx.py, and the pip that
# pipx asks for. Never fails: what is missing is named here and again in pytest's list of skips.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! .venv/bin/python -m pip download -q --require-hashes -r requirements/core.txt -d out/wheels ||
    ! .venv/bin/python -m pip download -q --no-deps -d out/wheels pip; then
    echo "The wheels of requirements/core.txt cannot be fetched: pipx is not tried"
fi
