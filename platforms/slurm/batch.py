"""Batch: the script that Slurm runs for a session. Whatever Slurm does with it, one key runs once.

It begins by taking the claim, a folder that is put in its place whole, which on a shared file system only one can do:
a second job of the same key, a job requeued by an administrator, and one whose key was given up meanwhile find it taken
and leave. The kernel's own end of the agent comes at the deadline, Slurm's time limit after it.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

# Lanes count the devices of their session; here they get the numbers of those that the job was given.
DEVICES = """\
import json, os
given = [int(each) for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.isdigit()]
with open("launch.json") as stream:
    launch = json.load(stream)
for lane in launch.get("lanes", ()):
    if given and all(index < len(given) for index in lane.get("devices", ())):
        lane["devices"] = [given[index] for index in lane.get("devices", ())]
with open("launch.json.new", "w") as stream:
    json.dump(launch, stream)
os.replace("launch.json.new", "launch.json")
"""
_SCRIPT = """\
#!/bin/bash
umask 077
key={key} until={until} python={python} agent={agent}
[ "$(cat order 2>/dev/null)" = "$key" ] || {{ echo "$(hostname) does not see this folder: is it shared?"; exit 78; }}
started=$(date +%s)
mine=.claim-$SLURM_JOB_ID-$$
mkdir "$mine" && echo "job $SLURM_JOB_ID $started" >"$mine/who" || exit 78
mv -T "$mine" claim 2>/dev/null || {{ rm -rf "$mine"; exit 0; }}
leave() {{
    echo "$started $(date +%s) $1" >.ended && mv -T .ended ended
    exit "$1"
}}
left=$((until - started))
[ "$left" -gt 0 ] || {{ echo "the deadline passed before the job could start"; leave 75; }}
# What waited in the queue keeps its deadline: the time limit is drawn in, which everybody may do with an own job.
[ $((left + 60)) -gt {limit} ] || scontrol update JobId="$SLURM_JOB_ID" TimeLimit=$(((left + 59) / 60)) >/dev/null 2>&1
"$python" - <<'END' || leave 78
{devices}END
# In the foreground of its own group, so that a signal reaches the agent alone, which passes it on once.
timeout --foreground --signal=KILL "$left" "$python" "$agent" "$PWD/launch.json" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null' TERM
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
done
trap '' TERM
leave "$code"
"""


class Order(NamedTuple):
    """What a session's script must know; instants are real UTC seconds."""

    key: str
    until: int
    limit_seconds: int
    python: str
    agent: str


def script(order: Order) -> str:
    """Return the text of the script."""
    return _SCRIPT.format(
        key=shlex.quote(order.key),
        until=order.until,
        limit=order.limit_seconds,
        python=shlex.quote(order.python),
        agent=shlex.quote(order.agent),
        devices=DEVICES,
    )
