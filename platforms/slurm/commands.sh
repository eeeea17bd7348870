#!/usr/bin/env bash
# What a pool does with Slurm's own programs and with its shared folder. It is piped to bash, there or here, and never installed:
#
#   bash -s -- ROOT SLURM_CONF WORDS...    ROOT is the shared folder, SLURM_CONF a file of Slurm or empty
#
# All is functions until the last line, which calls one of them with WORDS, so that a script that arrives in part does nothing.
# Large texts are variables in base64, which lines before these set. No program of Slurm may read the script from standard input, hence
# </dev/null. Exits: 0 done, 66 no such file, 71 no folder, 73 the session has a job or a claim, 75 Slurm gave no answer.
export LC_ALL=C SLURM_TIME_FORMAT=%s
umask 077
root=$1 slurm_conf=$2
shift 2
case $root in "~/"*) root=$HOME/${root#"~/"} ;; esac
[ -z "$slurm_conf" ] || export SLURM_CONF=$slurm_conf

# Go to the shared folder. Where it is missing, its disk is not mounted: nothing may be concluded from empty folders.
enter() {
    cd -- "$root" && [ -d .payload ] || exit 71
    root=$PWD
}

make_folder() {
    mkdir -p -- "$root/.payload"
}

# Unpack $payload, a tar.gz, as .payload/DIGEST, unless it is there.
place() {
    mkdir -p -- "$root" && cd -- "$root" || exit 71
    [ ! -e ".payload/$1/payload/agent.py" ] || exit 0
    local new=.payload/.new-$1-$$
    mkdir -p "$new" && base64 -d <<<"$payload" | tar -xzf - -C "$new" || exit 1
    mv -T "$new" ".payload/$1" 2>/dev/null || { rm -rf "$new"; [ -e ".payload/$1/payload/agent.py" ]; }
}

# poll KEY...: our jobs in Slurm's queue, then `== code time places`, then the folders of the keys, then `== end`.
# The controller's time is read from its configuration: squeue -v prints it too, but not with --user.
poll() {
    enter
    local own code now= places= key claim ended until
    own=$(squeue --noheader --states=all --user="$(id -un)" --format='%i|%T|%r|%S|%V|%e|%N|%j|%k' </dev/null)
    code=$?
    printf '%s\n' "$own"
    [ "$code" != 0 ] || now=$(scontrol show config </dev/null 2>/dev/null | head -n 1)
    case $own in *"|PENDING|"*)
        # Whose queue is hidden shows its own jobs alone: a place among them says nothing.
        places=$(squeue --noheader --states=PENDING --sort=-p,i --format='%P %i %u' </dev/null 2>/dev/null |
            awk -v me="$(id -un)" '{ n[$1]++ } $3 == me { printf "%s:%s,", $2, n[$1] }') ;;
    esac
    echo "== $code ${now##* } $places"
    for key; do
        claim= ended= until=
        [ -f "$key/claim/who" ] && [ ! -L "$key/claim/who" ] && IFS= read -r -n 200 claim <"$key/claim/who"
        [ -f "$key/ended" ] && [ ! -L "$key/ended" ] && IFS= read -r -n 200 ended <"$key/ended"
        [ -f "$key/until" ] && [ ! -L "$key/until" ] && IFS= read -r -n 200 until <"$key/until"
        echo "$key|$claim|$ended|$until"
    done
    echo "== end"
}

# submit KEY OWNER OPTIONS...: submit the batch script $job with the document $launch; the last line is `== code` of sbatch.
submit() {
    enter
    local key=$1 owner=$2 known
    shift 2
    known=$(squeue --noheader --states=all --user="$(id -un)" --name="$key" --format='%k' </dev/null) || exit 75
    case $known in *"\"of\":\"$owner\""*) exit 73 ;; esac
    [ ! -e "$key/claim" ] || exit 73
    mkdir -p "$key/work" && echo "$key" >"$key/order" || exit 1
    base64 -d <<<"$launch" >"$key/launch.json" && base64 -d <<<"$job" >"$key/job.sh" || exit 1
    # The session gets what programs need to run, and nothing else of whoever submits it.
    env -i HOME="$HOME" PATH="$PATH" USER="$(id -un)" LANG=C.UTF-8 ${SLURM_CONF:+SLURM_CONF="$SLURM_CONF"} \
        sbatch --parsable --job-name="$key" --chdir="$root/$key" --output="$root/$key/output.log" --open-mode=append \
        "$@" "$key/job.sh" </dev/null
    echo "== $?"
}

cancel() {
    scancel "$@" </dev/null
}

# The claim is created by an atomic rename. An existing claim is never empty, so no other folder can replace it.
void() {
    enter
    local key=$1
    [ -d "$key" ] || mkdir "$key" || exit 1
    local new=$key/.void-$$
    [ ! -e "$key/claim/who" ] || exit 73
    mkdir "$new" && echo "void $(date +%s)" >"$new/who" || exit 1
    mv -T "$new" "$key/claim" 2>/dev/null || { rm -rf "$new"; exit 73; }
}

extend() {
    enter
    [ -d "$1" ] && [ ! -e "$1/claim" ] || exit 0
    echo "$2" >"$1/.until" && mv -T "$1/.until" "$1/until"
}

# logs KEY FIRST COUNT: COUNT bytes of the output from byte FIRST on, counted from 1, in base64.
logs() {
    enter
    local file=$1/output.log
    [ -f "$file" ] && [ ! -L "$file" ] || exit 66
    tail -c "+$2" "$file" | head -c "$3" | base64 -w 0
}

remove() {
    enter
    local key
    for key; do
        rm -rf -- "./$key" || exit 1
    done
}

# Accounting is in a database, in a file, or off. Each output line has a job's name, start and end.
accounting() {
    local conf file
    conf=$(scontrol show config </dev/null) || exit 1
    file=$(sed -n 's/^JobCompLoc *= *//p' <<<"$conf")
    if grep -q '^AccountingStorageType *= *accounting_storage/slurmdbd' <<<"$conf"; then
        sacct --noheader --parsable2 --allocations --duplicates --user="$(id -un)" --starttime=now-30days \
            --format=WorkDir,JobName,Start,End </dev/null |
            awk -F '|' -v root="$root/" 'index($1, root) == 1 { print "|" $2 "|" $3 "|" $4 }'
    elif grep -q '^JobCompType *= *jobcomp/filetxt' <<<"$conf" && [ -r "$file" ]; then
        grep -F " WorkDir=$root/" "$file" | sed -E 's/.* Name=([^ ]+) .* StartTime=([^ ]+) EndTime=([^ ]+) .*/|\1|\2|\3/'
    else
        echo none
    fi
}

# accounted KEY: start and end of each run. A requeued job has one record per run; that of a running job has no end.
accounted() {
    sacct --noheader --parsable2 --allocations --duplicates --name="$1" --user="$(id -un)" --starttime=now-30days \
        --format=Start,End </dev/null 2>/dev/null
    true
}

# books ACCOUNT QOS: the limits of an account and of a QOS, by default the user's. Without accounting the output is empty.
# The default account is queried only if there is a table.
books() {
    command -v sshare >/dev/null || exit 0
    local table user account=$1 qos=$2
    table=$(sshare --noheader --parsable2 --format=Account,User,GrpTRESMins,GrpTRESRaw,TRESRunMins </dev/null) || exit 75
    [ -n "$table" ] || exit 0
    user=$(id -un)
    [ -n "$account" ] || account=$(sacctmgr --noheader --parsable2 show user "$user" format=DefaultAccount </dev/null)
    echo "$user|$account"
    echo "$table"
    [ -n "$qos" ] || qos=$(
        sacctmgr --noheader --parsable2 show assoc user="$user" account="$account" format=DefaultQOS </dev/null | head -n 1
    )
    qos=${qos:-normal}
    echo "== $(id -u)|$qos|$(sacctmgr --noheader --parsable2 show qos "$qos" format=MaxTRESPU,MaxJobsPU </dev/null)"
    scontrol --oneliner show assoc_mgr flags=qos qos="$qos" </dev/null | grep "^ *QOS=$qos("
    true
}
