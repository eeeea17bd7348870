#!/usr/bin/env bash
# Writes the hashed lock files. dev.txt is resolved first and constrains the others, so that one virtual environment can
# be upgraded from run.txt to dev.txt in place. No index is named: the machine that installs chooses its own.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
"$(.ci/python.sh)" -m venv "$tool"
"$tool/bin/pip" install --quiet --require-hashes -r requirements/uv.txt

compile() {
    local output=$1
    shift
    "$tool/bin/uv" pip compile pyproject.toml "$@" --output-file "$output" --quiet --upgrade \
        --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
        --universal --python-version 3.11 --custom-compile-command "make lock"
}

compile requirements/dev.txt --extra plan --extra train --extra postgres --extra web --extra notify --extra uv --extra dev \
    --group build
compile requirements/run.txt --extra plan --extra train --extra kaggle --extra aws --extra emulators --extra web --extra report \
    --group build --constraint requirements/dev.txt
compile requirements/core.txt --constraint requirements/dev.txt

# The resolver itself, for the next time.
echo uv | "$tool/bin/uv" pip compile - --output-file requirements/uv.txt --quiet --upgrade --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --universal --python-version 3.11 \
    --custom-compile-command "make lock"
