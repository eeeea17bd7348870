#!/usr/bin/env bash
# A shell script that keeps to the training contract (docs/your-own-training.md) with nothing but bash:
#
#     schedctl submit train.sh --target-step 5000
#
# It works at a desk too: checkpoints go to ./checkpoints, nothing is reported.
set -euo pipefail

checkpoints=${SCHED_CHECKPOINT_DIR:-checkpoints}
target=${SCHED_TARGET_STEP:-1000}
mkdir -p "$checkpoints"

step=0 state=${SCHED_SEED:-0}
if [[ -n ${SCHED_RESUME_DIR:-} ]]; then # go on from where the last session stopped
    read -r step state <"$SCHED_RESUME_DIR/state"
fi

save=0 stop=0
trap 'save=1' USR1 # save soon, and go on
trap 'stop=1' TERM # save, and end
exec 3>>"${SCHED_PROGRESS:-/dev/null}"

checkpoint() {
    local final
    save=0
    final=$checkpoints/step-$(printf '%08d' "$step")
    if [[ -d $final ]]; then return; fi
    echo "{\"saving\": $step}" >&3
    rm -rf "$checkpoints/.partial"
    mkdir "$checkpoints/.partial"
    echo "$step $state" >"$checkpoints/.partial/state"
    echo "{\"step\": $step, \"metrics\": {}}" >"$checkpoints/.partial/meta.json"
    mv "$checkpoints/.partial" "$final" # the name comes last: it makes it a checkpoint
    echo "{\"saved\": $step}" >&3
}

echo "{\"step\": $step}" >&3
while ((step < target && !stop)); do
    if ((save)); then checkpoint; fi
    state=$(((state * 1103515245 + 12345) % 2147483648)) # here a step of your own program
    step=$((step + 1))
    echo "{\"step\": $step}" >&3
done
checkpoint
