#!/usr/bin/env bash
# Puts the release of Kaggle's library that the lock file does not name beside the environment, for the wire contract's
# tests. Never fails: what is missing is named here and again in pytest's list of skips.
set -euo pipefail
cd "$(dirname "$0")/.."

release=${1:-0.1.38}
folder=.venv/kagglesdk-$release
[ -d "$folder/kagglesdk" ] && exit 0
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
# 0.1.38 asks for a certifi that does not exist, so its requirements are left out: 0.1.37 has brought the same ones.
echo "kagglesdk==0.1.38 --hash=sha256:ec9cb3cb2acaa92106f7c0334b7374e022bd6e6d1176a6780fec5606f6bc568d" >"$pins"
if ! .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target "$folder" -r "$pins"; then
    rm -rf "$folder"
    echo "WARNING: kagglesdk $release could not be installed: its contract tests will be SKIPPED." >&2
fi
