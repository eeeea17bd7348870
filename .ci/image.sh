#!/usr/bin/env bash
# Builds the image of examples/container without a container registry and tries what is in it: root, buildah, mmdebstrap.
# The base is Debian's own Python under the name that the Containerfile asks for. Leaves nothing but its words.
set -euo pipefail
cd "$(dirname "$0")/.."
for need in buildah mmdebstrap; do
    command -v "$need" >/dev/null || { echo "$need is not installed (Debian: $need)"; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/secrets"
build() { buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }

mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,python-is-python3,ca-certificates bookworm "$work/base.tar"
base=$(build from scratch)
build add --quiet "$base" "$work/base.tar" /
build config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$base"
build commit --quiet --rm "$base" docker.io/library/python:3.12-slim

# Where this machine's pip finds its index.
index=()
for path in /etc/pip.conf /etc/ssl/certs; do
    if [ -e "$path" ]; then index+=(--volume "$path:$path:ro"); fi
done
build bud --isolation chroot --pull-never "${index[@]}" --file examples/container/Containerfile --tag uff-scheduler .

openssl rand -hex 32 >"$work/secrets/web"
chmod 600 "$work/secrets/web"
chown -R 10001 "$work/secrets"
made=$(build from uff-scheduler)
inside() {
    build run --isolation chroot --volume "$PWD/examples/container/config.toml:/etc/uff-scheduler/config.toml:ro" \
        --volume "$work/secrets:/run/secrets:ro" --env CREDENTIALS_DIRECTORY=/run/secrets "$made" -- "$@"
}
test "$(inside id -u)" = 10001
inside schedctl version
inside schedctl config check
inside schedctl db upgrade
inside sh -c 'timeout --signal TERM 10 schedctl daemon || test $? = 124'
inside schedctl doctor
inside schedctl status
echo "The image works"
