#!/usr/bin/env bash
# Installs the programs of the real services that tests start themselves. Never fails: what is missing is named here and
# again in pytest's list of skips. No server is started or left running by this script.
set -euo pipefail

have_postgres() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null; }

install_postgres() {
    # Debian would create a cluster and start it at boot; the tests make their own.
    if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    fi
    apt-get update -qq && apt-get install -y -qq -o Dpkg::Options::=--force-confold postgresql
}

have_postgres && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    log=$(mktemp)
    if DEBIAN_FRONTEND=noninteractive install_postgres >"$log" 2>&1 && have_postgres; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
fi
echo "WARNING: no PostgreSQL server programs, and this account cannot install them: the PostgreSQL tests will be SKIPPED." >&2
echo "         Install the package postgresql (Debian) and run again." >&2
