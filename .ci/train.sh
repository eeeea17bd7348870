#!/usr/bin/env bash
# Makes .venv-train, in which fine-tuning is tested. torch's build for processors (200 MB) is no part of the common index: it is
# taken where the machine's own settings of pip lead to it (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL), else the one for CUDA (several GB).
set -euo pipefail
cd "$(dirname "$0")/.."

"$(.ci/python.sh)" -m venv --clear .venv-train
install() { .venv-train/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$@"; }
install requirements/train.txt
if ! install requirements/torch-cpu.txt; then
    echo "no build of torch for processors is known here: fetching the one for CUDA, several GB" >&2
    install requirements/torch-cuda.txt
fi
install requirements/deepspeed.txt --no-build-isolation
.venv-train/bin/python -c 'import torch; print("torch", torch.__version__)'
