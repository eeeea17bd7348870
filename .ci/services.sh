#!/usr/bin/env bash
# Installs the programs of the real services that tests start themselves. Never fails: what is missing is named here and
# again in pytest's list of skips. No server is started or left running by this script. `services.sh nightly` installs
# what no push needs as well.
set -euo pipefail

have_postgres() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null; }
have_chromium() { command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; }
have_faketime() { compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null; }
have_sandbox() { command -v bwrap >/dev/null && command -v setpriv >/dev/null && command -v prlimit >/dev/null; }
have_sshd() { [ -x /usr/sbin/sshd ] && command -v rsync >/dev/null; }
have_slurm() { command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null && command -v munged >/dev/null; }
have_slurmdbd() { command -v slurmdbd >/dev/null && command -v mariadbd >/dev/null; }
have_elixir() { command -v mix >/dev/null; }
have_pipx() { command -v pipx >/dev/null; }
have_systemd() { command -v systemd-nspawn >/dev/null && [ -x /usr/lib/systemd/systemd ]; }

install_postgres() {
    # Debian would create a cluster and start it at boot; the tests make their own.
    if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    fi
    apt-get update -qq && apt-get install -y -qq -o Dpkg::Options::=--force-confold postgresql
}

# A font as well: without one a browser measures no text.
install_chromium() { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }

install_faketime() { apt-get update -qq && apt-get install -y -qq --no-install-recommends libfaketime; }

install_sandbox() { apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap util-linux; }

# No debootstrap: the tests boot this machine's own files under an overlay.
install_systemd() { apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd-container; }

install_pipx() { apt-get update -qq && apt-get install -y -qq --no-install-recommends pipx; }

install_elixir() { apt-get update -qq && apt-get install -y -qq --no-install-recommends elixir erlang-dev; }

# Debian would start what it installs: sshd on port 22, Slurm and munge. The tests start their own.
install_stopped() {
    local policy=/usr/sbin/policy-rc.d made=
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=yes
    fi
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"
    [ -z "$made" ] || rm -f "$policy"
}

install_sshd() { install_stopped openssh-server rsync; }

install_slurm() { install_stopped slurmctld slurmd slurm-client munge; }

install_slurmdbd() { install_stopped slurmdbd mariadb-server; }

# provide NAME WHAT PACKAGE: installs with install_NAME what have_NAME does not find, or says what will be skipped.
provide() {
    local log
    "have_$1" && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        log=$(mktemp)
        DEBIAN_FRONTEND=noninteractive "install_$1" >"$log" 2>&1 || true
        if "have_$1"; then
            rm -f "$log"
            return
        fi
        tail -n 5 "$log" >&2
        rm -f "$log"
    fi
    echo "WARNING: no $2, and this account cannot install them: their tests will be SKIPPED." >&2
    echo "         Install the package $3 (Debian) and run again." >&2
}

provide postgres "PostgreSQL server programs" postgresql
provide chromium "Chromium and fonts, for the status page in a real browser" "chromium, with fonts-dejavu-core"
provide faketime "library to set the clock of one process" libfaketime
provide sandbox "bubblewrap, in which code that a model wrote is run" bubblewrap
provide systemd "systemd-nspawn, for the service under a real systemd" systemd-container
provide elixir "Elixir, for its client in bridges/elixir" elixir
provide sshd "sshd and rsync, for deployments to another machine" "openssh-server, with rsync"
provide slurm "Slurm with munge, for sessions on a cluster" "slurmctld, slurmd, slurm-client, munge"
if [ "${1:-}" = nightly ]; then
    provide slurmdbd "slurmdbd with MariaDB, for the accounts of a cluster" "slurmdbd, mariadb-server"
    provide pipx "pipx, by which one person installs the program" pipx
fi
# The second user behind that sshd. No password opens the account, and it is not locked, which sshd would refuse.
if [ "$(id -u)" = 0 ] && ! id uff-target >/dev/null 2>&1; then
    { useradd -m -s /bin/bash uff-target && usermod -p '*' uff-target; } ||
        echo "WARNING: the user uff-target cannot be made: tests of deployments by ssh will be SKIPPED." >&2
fi
