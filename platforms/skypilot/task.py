"""Task: the SkyPilot task of a session. Its script makes sure that a run ID runs once on a cluster.

A second launch of a name queues the task again, so the script first creates a folder as a claim and exits if it exists.
It also exits if it starts after its launch was given up. ``timeout`` kills the runner at the deadline; the idle cluster
then deletes itself.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from platforms.base import Refused
from platforms.bundle import Bundle
from platforms.skypilot.settings import NAME

_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,78}[A-Za-z0-9])?", re.ASCII)
_LAUNCH = "UFF_LAUNCH"
_LAUNCH_BYTES = 96 << 10  # Linux limits an environment variable to 128 KiB
# Lanes number the devices of their session; this maps them to the devices that SkyPilot gave to the task.
_DEVICES = """\
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
umask 077
launch=${{{launch}:-}}
unset {launch}
key={key} until={until} start_by={start_by} python={python}
started=$(date +%s)
mkdir -p "$HOME/.uff" && mkdir "$HOME/.uff/$key" 2>/dev/null || {{ echo "uff: $key has run here already"; exit 0; }}
cd "$HOME/.uff/$key" || exit 78
[ "$started" -le "$start_by" ] || {{ echo "uff: $key was given up before it could start"; exit 75; }}
left=$((until - started))
[ "$left" -gt 0 ] || {{ echo "uff: the deadline of $key passed before it could start"; exit 75; }}
base64 -d <<'END' | tar -xzf - || exit 78
{payload}
END
echo "$launch" | base64 -d | gzip -d >launch.json || exit 78
unset launch
"$python" - <<'END' || exit 78
{devices}END
exec timeout --foreground --signal=KILL "$left" "$python" payload/agent.py "$PWD/launch.json"
"""


class SkyPilotOrder(NamedTuple):
    """The values of a session's script; instants are real UTC seconds."""

    key: str
    until: int
    start_by: int
    python: str


def is_key(key: str) -> bool:
    """Return whether a run ID can be part of a cluster's name."""
    return bool(_KEY.fullmatch(key))


def task(
    order: SkyPilotOrder, launch: Mapping[str, Any], payload: Bundle, resources: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a session's task in SkyPilot's format. Raises Refused if the launch document is too long, and OSError.

    The document is passed as a secret of the task, because SkyPilot's pages and lists do not show secrets.
    """
    packed = gzip.compress(json.dumps(launch).encode(), mtime=0)
    document = base64.b64encode(packed).decode()
    if len(document) > _LAUNCH_BYTES:
        why = f"the launch document has {len(document)} bytes when packed, of at most {_LAUNCH_BYTES}"
        raise Refused(NAME, "launch", why, "Give the job fewer inputs", permanent=True)
    script = _SCRIPT.format(
        launch=_LAUNCH,
        key=shlex.quote(order.key),
        until=order.until,
        start_by=order.start_by,
        python=shlex.quote(order.python),
        payload=base64.encodebytes(payload.path.read_bytes()).decode().strip(),
        devices=_DEVICES,
    )
    return {
        "name": order.key,
        "num_nodes": 1,
        "resources": dict(resources),
        "secrets": {_LAUNCH: document},
        "run": script,
    }
