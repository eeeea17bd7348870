"""The S3 store against plain boto3, on the same files and the same server: throughput, and peak memory.

The server is rclone's, on a disk of this machine, so the figures are a ratio of clients, not a speed of S3. Each client
runs in a process of its own; the best of several rounds counts. Bounds: not slower than 0.8 of boto3's upload_file and
download_file, and at most 64 MiB of memory above it. Seconds of processor are printed too: they hardly depend on what
else the machine does. Ours sends a sha256 of each part, where boto3 sends a CRC by default; over plain HTTP, as here,
botocore hashes each part once more to sign it, which is what an upload costs more. Ours flushes a download to the disk.

    python benchmarks/bench_s3.py [--megabytes 256] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RATIO_MIN = 0.8
EXTRA_MEGABYTES_MAX = 64
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}

CLIENT = """
import json, resource, sys, time
from pathlib import Path
from platforms.artifacts.s3.client import connect
from platforms.artifacts.s3.store import S3Store
kind, endpoint, bucket, source, number = sys.argv[1:]
source, key = Path(source), f"{kind}-{number}"
if kind == "ours":
    client = connect("s3", region="us-east-1", endpoint=endpoint)
else:
    import boto3
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint)
client.list_buckets()
store = S3Store(client, bucket, conditional=False)
copy = source.with_name(f"copy-{key}")
began, worked = time.perf_counter(), time.process_time()
store.create(key, source) if kind == "ours" else client.upload_file(str(source), bucket, key)
sent, work_up = time.perf_counter(), time.process_time() - worked
store.fetch(key, copy) if kind == "ours" else client.download_file(bucket, key, str(copy))
fetched, work_down = time.perf_counter(), time.process_time() - worked - work_up
megabytes = source.stat().st_size / 1e6
assert copy.stat().st_size == source.stat().st_size
copy.unlink()
client.delete_object(Bucket=bucket, Key=key)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
figures = {"up": megabytes / (sent - began), "down": megabytes / (fetched - sent), "peak": peak}
print(json.dumps({**figures, "work_up": work_up, "work_down": work_down}))
"""


def main() -> int:
    """Measure, print, and fail when a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    program = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    if program is None:
        print("SKIPPED: rclone is not installed")
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-s3-") as name:
        folder = Path(name)
        (folder / "served" / "bench").mkdir(parents=True)
        source = folder / "weights"
        with source.open("wb") as stream:  # in pieces: a child's peak counts what its parent held when it was forked
            for _ in range(options.megabytes):
                stream.write(os.urandom(1_000_000))
        command = [program, "serve", "s3", "--auth-key", "bench,bench-secret", "--addr", "127.0.0.1:0"]
        with subprocess.Popen([*command, str(folder / "served")], stderr=subprocess.PIPE, text=True) as server:
            try:
                rounds = measure(address_of(server), source, options.rounds)
            finally:
                server.kill()
    return report(rounds, options.megabytes)


def address_of(server: subprocess.Popen[str]) -> str:
    """Wait until the server says where it listens."""
    for line in server.stderr or ():
        if found := re.search(r"\[(http://127\.0\.0\.1:\d+)/?\]", line):
            return found[1]
    raise SystemExit("rclone did not start")


def measure(endpoint: str, source: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Run both clients in turn."""
    found: dict[str, list[dict[str, float]]] = {"boto3": [], "ours": []}
    for number in range(rounds):
        for kind, results in found.items():
            words = [sys.executable, "-c", CLIENT, kind, endpoint, "bench", str(source), str(number)]
            output = subprocess.run(
                words, env={**os.environ, **CREDENTIALS}, check=True, capture_output=True, text=True
            )
            results.append(json.loads(output.stdout))
    return found


def report(rounds: dict[str, list[dict[str, float]]], megabytes: int) -> int:
    """Print the best of each, and the ratios."""
    best = {
        kind: {
            "up": max(one["up"] for one in results),
            "down": max(one["down"] for one in results),
            **{name: min(one[name] for one in results) for name in ("peak", "work_up", "work_down")},
        }
        for kind, results in rounds.items()
    }
    print(f"{megabytes} MB     up MB/s  down MB/s  peak MiB  CPU s up  CPU s down")
    for kind, figures in best.items():
        work = f"{figures['work_up']:9.2f} {figures['work_down']:11.2f}"
        print(f"{kind:10} {figures['up']:9.0f} {figures['down']:10.0f} {figures['peak']:9.0f} {work}")
    ratios = {name: best["ours"][name] / best["boto3"][name] for name in ("up", "down")}
    extra = best["ours"]["peak"] - best["boto3"]["peak"]
    print(f"ours over boto3: up {ratios['up']:.2f}, down {ratios['down']:.2f}, memory {extra:+.0f} MiB")
    broken = [name for name, ratio in ratios.items() if ratio < RATIO_MIN]
    if extra > EXTRA_MEGABYTES_MAX:
        broken.append("memory")
    if broken:
        print(f"FAILED: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
