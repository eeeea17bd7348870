"""What srun does, without Slurm: start a program once for each node, copy our input to all, end all when one fails.

``launcher.py COUNT PROGRAM [WORD ...]``; the variable NODE holds each one's number.
"""

import os
import subprocess
import sys
import threading

if __name__ == "__main__":
    count, words = int(sys.argv[1]), sys.argv[2:]
    nodes = [
        subprocess.Popen(words, stdin=subprocess.PIPE, env={**os.environ, "NODE": str(number)})
        for number in range(count)
    ]
    codes: list[int] = []

    def look_after(node: subprocess.Popen[bytes]) -> None:
        codes.append(node.wait())
        if codes[-1]:
            for other in nodes:
                other.kill()

    watchers = [threading.Thread(target=look_after, args=(node,)) for node in nodes]
    for watcher in watchers:
        watcher.start()

    def copy() -> None:
        while piece := os.read(0, 4096):
            for node in nodes:
                if node.stdin is not None and node.poll() is None:
                    os.write(node.stdin.fileno(), piece)

    threading.Thread(target=copy, daemon=True).start()
    for watcher in watchers:
        watcher.join()
    sys.stdout.flush()
    os._exit(max(abs(code) for code in codes))
