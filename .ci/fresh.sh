#!/usr/bin/env bash
# Runs commands of the README (default: make run, make test) on a bare Debian 12: Python, make, git, and nothing else. The
# services are tried there by `.ci/fresh.sh 'make test-services'`, which installs them.
# Each gets the last commit in a clean clone. Needs root and mmdebstrap; everything of it goes when it ends.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
    echo "this needs root, and mmdebstrap (Debian: mmdebstrap)" >&2
    exit 1
fi
[ $# -gt 0 ] || set -- "make run" "make test"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,make,git,ca-certificates bookworm "$work/bare"
git clone --quiet --no-local . "$work/bare/srv/clone"

# Mounts and processes are in namespaces of their own, which end with the command. What is shown of this machine is where
# its pip finds packages: its settings, and the folders that they name.
mapfile -t shown < <(
    printf '%s\n' /etc/resolv.conf /etc/pip.conf /etc/xdg/pip /etc/ssl/certs
    { python3 -m pip config list; env | grep ^PIP_; } | grep -oE "(file://|')?/[^', ]+" | sed "s#^file://##; s#^'##" || true
)
inside() {
    unshare --mount --pid --fork --kill-child -- bash -euc '
        root=$1 words=$2
        shift 2
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        for path in "$@"; do
            [ -e "$path" ] || continue
            if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}" && touch "$root$path"; fi
            mount --bind "$path" "$root$path"
        done
        mapfile -t pip < <(env | grep ^PIP_ || true)
        exec chroot "$root" env -i HOME=/srv LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "${pip[@]}" \
            bash -euc "cd /srv/clone && git clean -dfqx && $words"
    ' inside "$work/bare" "$1" "${shown[@]}"
}
for words in "$@"; do
    echo "== $words"
    inside "$words"
done
