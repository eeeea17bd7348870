#!/bin/bash
# The batch script of a session. Before it, lines set key, until, limit, python, agent, nodes and share; see adapter.py.
#
# Whatever Slurm does with it, each key runs at most once: the script first creates the folder `claim` by an atomic rename, which
# on a shared file system succeeds only once. A second job of the same key, a job requeued by an administrator and a job whose key
# was voided find the claim and exit. The deadline is read from the file `until`, which is extended while the job waits; the
# session never runs longer than it was launched for. `timeout` kills the runner at that deadline, Slurm's time limit comes after
# it. The runner runs on the job's first node. A lane with devices on other nodes is a step of the job, see the payload's nodes.py.
umask 077
[ "$(cat order 2>/dev/null)" = "$key" ] || { echo "$(hostname) does not see this folder: is it shared?"; exit 78; }
started=$(date +%s)
mine=.claim-$SLURM_JOB_ID-$$
mkdir "$mine" && echo "job $SLURM_JOB_ID $started" >"$mine/who" || exit 78
mv -T "$mine" claim 2>/dev/null || { rm -rf "$mine"; exit 0; }
leave() {
    echo "$started $(date +%s) $1" >.ended && mv -T .ended ended
    exit "$1"
}
left=$(($(cat until 2>/dev/null || echo "$until") - started))
[ "$left" -gt 0 ] || { echo "the deadline passed before the job could start"; leave 75; }
[ "$left" -le "$limit" ] || left=$limit
# The time limit is drawn in, which everybody may do with an own job.
[ $((left + 60)) -gt "$limit" ] || scontrol update JobId="$SLURM_JOB_ID" TimeLimit=$(((left + 59) / 60)) >/dev/null 2>&1
told=
[ "$nodes" = 1 ] || told=$(scontrol --oneliner show node "$SLURM_JOB_NODELIST")
"$python" - "$nodes" "$share" "$told" $((started + left - until)) <<'END' || leave 78
import json, os, re, sys
given = [int(each) for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.isdigit()]
nodes, share, addresses = int(sys.argv[1]), int(sys.argv[2]), re.findall(r"\bNodeAddr=(\S+)", sys.argv[3])
with open("launch.json") as stream:
    launch = json.load(stream)
if "deadline" in launch:
    launch["deadline"] += int(sys.argv[4]) * launch.get("clock", {}).get("scale", 1)
if nodes > 1 and launch.get("expected_devices"):
    launch["expected_devices"]["count"] //= nodes  # the agent looks at its own node
for lane in launch.get("lanes", ()):
    wanted = lane.get("devices", ())
    first, last = (index // share if nodes > 1 else 0 for index in (min(wanted, default=0), max(wanted, default=0)))
    if last:
        # Not all on the agent's node: its command is a step of the job. What knows nothing of ranks runs once.
        last = first if lane.get("whole") else last
        count, cpus = last - first + 1, os.environ.get("SLURM_CPUS_PER_TASK", "1")
        step = ["srun", "--overlap", "--kill-on-bad-exit=1", "--input=all", "--ntasks-per-node=1"]
        on = ["--nodes=%d" % count, "--ntasks=%d" % count, "--relative=%d" % first, "--cpus-per-task=" + cpus]
        there = [[index % share for index in wanted if index // share == node] for node in range(first, last + 1)]
        lane["nodes"] = {
            "launcher": step + on, "variable": "SLURM_NODEID", "near": first == 0, "address": addresses[first],
            "devices": there,
            "port": 10000 + (int(os.environ["SLURM_JOB_ID"]) * 8 + lane.get("index", 0)) % 20000,
        }
    elif given and all(index < len(given) for index in wanted):
        lane["devices"] = [given[index] for index in wanted]
with open("launch.json.new", "w") as stream:
    json.dump(launch, stream)
os.replace("launch.json.new", "launch.json")
END
# In the foreground of its own group, so that a signal reaches the agent alone, which passes it on once.
timeout --foreground --signal=KILL "$left" "$python" "$agent" "$PWD/launch.json" &
child=$!
trap 'asked=1; kill -TERM "$child" 2>/dev/null' TERM
# What interrupts a wait is not how the agent ended, though it may have ended meanwhile.
while
    asked=
    wait "$child"
    code=$?
    [ "$asked" ]
do :; done
trap '' TERM
leave "$code"
