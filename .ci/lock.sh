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
    "$tool/bin/uv" pip compile "$@" --output-file "$output" --quiet --upgrade \
        --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
        --universal --python-version 3.11 --custom-compile-command "make lock"
}

compile requirements/dev.txt pyproject.toml --extra plan --extra train --extra postgres --extra web --extra notify --extra uv --extra gates --extra mcp --extra dev \
    --group build
compile requirements/run.txt pyproject.toml --extra plan --extra train --extra kaggle --extra aws --extra emulators --extra web --extra report --extra gates \
    --group build --constraint requirements/dev.txt
compile requirements/container.txt pyproject.toml --extra plan --extra train --extra kaggle --extra aws --extra web --extra report --extra notify --extra gates \
    --extra postgres --group build --constraint requirements/dev.txt
compile requirements/core.txt pyproject.toml --constraint requirements/dev.txt
# The clients that versions are given away with, whose tests run in the night.
compile requirements/nightly.txt pyproject.toml --extra hub --extra mlflow --constraint requirements/dev.txt
# What can share no environment with ours; .ci/apart.sh installs it for the night.
compile requirements/skypilot.txt - <<<'skypilot[slurm]==0.14.1
uv'
compile requirements/evaluators.txt - <<<'lm-eval[api]
inspect-ai
openai'
compile requirements/sagemaker.txt pyproject.toml - --extra aws --extra dev --extra emulators --group build <<<'sagemaker-core>=2.27,<3'

# What fine-tuning is tested with, in an environment of its own, which is installed without dependencies: torch's build for
# processors is the same version with a local part, and needs no CUDA. torch-cpu.txt is written by hand, since what no
# index of this machine has cannot be resolved here: `pip hash` of each wheel, when torch moves. DeepSpeed has no wheel, and
# is built by the setuptools of train.txt.
compile requirements/train.txt --group tuning --constraint requirements/dev.txt
python3 - requirements/train.txt requirements/torch-cuda.txt requirements/deepspeed.txt <<'PYTHON'
import re, sys
from pathlib import Path

train, cuda, deepspeed = map(Path, sys.argv[1:])
head, *blocks = re.split(r"^(?=[a-z0-9])", train.read_text(), flags=re.MULTILINE)
heavy = [block for block in blocks if re.match(r"nvidia-|cuda-|triton==|torch==", block)]
built = [block for block in blocks if block.startswith("deepspeed==")]
train.write_text(head + "".join(block for block in blocks if block not in heavy + built))
cuda.write_text(head + "".join(heavy))
deepspeed.write_text(head + "".join(built))
PYTHON

# The resolver itself, and a pip that knows where newer metadata name licences, for the next time.
printf 'uv\npip\n' | "$tool/bin/uv" pip compile - --output-file requirements/uv.txt --quiet --upgrade --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --universal --python-version 3.11 \
    --custom-compile-command "make lock"

# The licences of what is new among the pins.
PYTHONPATH=$PWD "$tool/bin/python" benchmarks/packages.py licences
