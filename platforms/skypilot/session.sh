#!/usr/bin/env bash
# The script of a session's task. Before it, lines set key, until and start_by (real UTC seconds), python, and payload, a tar.gz
# in base64. The secret UFF_LAUNCH has the launch document.
#
# A run ID runs once on a cluster: a second launch of a name queues the task again, so the script first creates a folder as a
# claim and exits if it exists. It also exits if it starts after its launch was given up. `timeout` kills the runner at the
# deadline; the idle cluster then deletes itself.
umask 077
launch=${UFF_LAUNCH:-}
unset UFF_LAUNCH
started=$(date +%s)
mkdir -p "$HOME/.uff" && mkdir "$HOME/.uff/$key" 2>/dev/null || { echo "uff: $key has run here already"; exit 0; }
cd "$HOME/.uff/$key" || exit 78
[ "$started" -le "$start_by" ] || { echo "uff: $key was given up before it could start"; exit 75; }
left=$((until - started))
[ "$left" -gt 0 ] || { echo "uff: the deadline of $key passed before it could start"; exit 75; }
echo "$payload" | base64 -d | tar -xzf - || exit 78
echo "$launch" | base64 -d | gzip -d >launch.json || exit 78
unset launch payload
# Lanes number the devices of their session; this maps them to the devices that SkyPilot gave to the task.
"$python" - <<'END' || exit 78
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
END
exec timeout --foreground --signal=KILL "$left" "$python" payload/agent.py "$PWD/launch.json"
