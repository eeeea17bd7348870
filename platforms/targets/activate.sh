#!/usr/bin/env bash
# What a target does with a release that was copied to it. It is piped to bash, there or here, and never installed.
#
#   read|check  ROOT MODEL
#   deploy|back|place|point  ROOT MODEL VERSION DIGEST RESTART HEALTH RETURN RESTART_SECONDS HEALTH_SECONDS KEEP
#
# ROOT/MODEL/releases/.in-7-DIGEST   what is being copied
#            releases/7              whole, checked and read-only
#            current -> releases/7   what the server reads
#            proven                  versions that answered, newest first: where `current` is not its first, a deployment was
#                                    cut off before anybody saw it answer; 0 comes first where nothing answers
#            .lock .said             held while anything changes; what the newest command said
# Exits: 0 done, 65 bad files, 66 no version before, 69 cannot be used, 70 went back, 71 nothing answers, 74 a write failed,
# 75 locked.
#
# All is functions until the last line, so that a script that arrives in part does nothing. There is no `set -e`: it does not
# stop at a failure inside `a && b`; every step says what its failure means.
set -u
export LC_ALL=C

quit() {
    printf '%s\n' "$2" >&2
    exit "$1"
}

# Waits of its own for nobody: whoever finds the lock taken is told so.
begin() {
    local tool
    for tool in flock timeout sha256sum readlink; do
        command -v "$tool" >/dev/null || quit 69 "$tool is missing"
    done
    mkdir -p "$root/$model/releases" && cd "$root/$model" || quit 69 "cannot use $root/$model"
    exec 9>.lock || quit 69 "cannot write to $root/$model"
    flock -n 9 || quit 75 "another deployment of $model goes on"
    if [ -e current ] && [ ! -L current ]; then
        quit 69 "$root/$model/current is no link of ours"
    fi
}

pointed() {
    local to
    to=$(readlink current) || return 0
    to=${to#releases/}
    case $to in '' | *[!0-9]*) ;; *) printf '%s' "$to" ;; esac
}

# The numbers in `proven`, nothing else.
answered() {
    local one
    for one in $(cat proven 2>/dev/null); do
        case $one in *[!0-9]*) ;; *) printf '%s ' "$one" ;; esac
    done
}

first_of() { printf '%s' "${1:-0}"; }

# before VERSION: the newest other one that answered and is still there.
before() {
    local one
    for one in $(answered); do
        if [ "$one" != "$1" ] && [ -d "releases/$one" ]; then
            printf '%s' "$one"
            return
        fi
    done
}

# prove VERSION [WITHOUT]: it leads the list, cut to what is kept; WITHOUT leaves it.
prove() {
    local one list=$1 count=1
    for one in $(answered); do
        if [ "$one" != "$1" ] && [ "$one" != "${2:-}" ] && [ "$one" != 0 ] && [ "$count" -lt "$keep" ]; then
            list="$list $one"
            count=$((count + 1))
        fi
    done
    printf '%s\n' "$list" >.proven.new && sync .proven.new && mv -T .proven.new proven && sync -f . ||
        quit 74 "cannot write $root/$model/proven"
}

point_at() {
    rm -f .current.new && ln -s "releases/$1" .current.new && mv -T .current.new current && sync -f . ||
        quit 74 "cannot change $root/$model/current"
}

# whole FOLDER: every file as its digest says, no other file, nothing but plain files; else `problem` says why not.
whole() {
    local found listed
    problem="there is no folder $1"
    [ -d "$1" ] && [ ! -L "$1" ] || return 1
    problem="SHA256SUMS is missing or not the one that was sent"
    found=$(sha256sum 2>/dev/null <"$1/SHA256SUMS") || return 1
    [ "${found%% *}" = "$digest" ] || return 1
    problem="there is a link or a device in $1"
    [ -z "$(find "$1" ! -type f ! -type d -print -quit)" ] || return 1
    problem="the files in $1 are not those that SHA256SUMS lists"
    found=$(find "$1" -type f ! -path "$1/SHA256SUMS" -printf '%P\n' | sort) || return 1
    listed=$(cut -c 67- "$1/SHA256SUMS" | sort) || return 1
    [ "$found" = "$listed" ] || return 1
    problem=$(cd "$1" && sha256sum --quiet --strict -c SHA256SUMS 2>&1) || return 1
}

remove() { chmod -R u+w "$1" && rm -rf "$1"; }

# Turns what was copied into releases/VERSION. A folder of that name that serves is never touched.
place() {
    local new="releases/.in-$version-${digest:0:12}"
    if [ -d "releases/$version" ]; then
        if whole "releases/$version"; then
            rm -rf "$new"
            return
        fi
        if [ "$(pointed)" = "$version" ]; then
            quit 65 "releases/$version serves and was changed there: $problem"
        fi
        remove "releases/$version" || quit 74 "cannot replace releases/$version"
    fi
    if [ -d "$new" ]; then
        find "$new" -depth -type d -name .part -exec rm -rf {} +
    fi
    whole "$new" || quit 65 "${problem:0:500}"
    chmod -R a-w,a+rX "$new" && sync -f "$new" && mv -T "$new" "releases/$version" && sync -f releases ||
        quit 74 "cannot make releases/$version"
}

# attempt SECONDS COMMAND VERSION: its words go to .said, since a service that it starts keeps what it writes to open.
# `timeout` keeps the lock until it is over, the command itself does not: a service would hold it for ever.
attempt() {
    [ -z "$2" ] && return
    MODEL=$model VERSION=$3 FOLDER=$PWD/releases/$3 timeout -k 2 "$1" \
        bash -c 'exec 9>&-; eval "$1"' bash "$2" >.said 2>&1 </dev/null
}

# serve VERSION CHECK: the server takes up what `current` points at, and answers; else `problem` says what did not.
serve() {
    local code
    attempt "$restart_seconds" "$restart" "$1"
    code=$?
    problem="the restart of version $1"
    if [ $code = 0 ]; then
        attempt "$health_seconds" "$2" "$1"
        code=$?
        problem="the health check of version $1"
    fi
    hung=''
    case $code in
    0) return ;;
    124 | 137) hung=yes problem="$problem took too long" ;;
    *) problem="$problem failed with $code" ;;
    esac
    problem="$problem: $(tail -c 400 .said 2>/dev/null | tr -cd '[:print:]')"
    return 1
}

# return_to VERSION LEAVING: what waited in vain for the new version does not wait for the old one in the same way again.
return_to() {
    local check=${return_check:-$health} why=$problem
    if [ -z "$1" ]; then
        rm -f current && sync -f .
        attempt "$restart_seconds" "$restart" 0
        prove 0 "$2"
        quit 71 "$why; there is no version before it"
    fi
    if [ -n "$hung" ] && [ -z "$return_check" ]; then
        check=
    fi
    point_at "$1"
    if ! serve "$1" "$check"; then
        prove 0 "$2"
        quit 71 "$why; then $problem"
    fi
    prove "$1" "$2"
}

prune() {
    local folder number
    for folder in releases/*; do
        number=${folder#releases/}
        case " $(answered) $(pointed) " in *" $number "*) ;; *) [ -d "$folder" ] && remove "$folder" ;; esac
    done
    find releases -maxdepth 1 -name '.in-*' -mtime +1 -exec rm -rf {} +
}

tell() {
    local now
    now=$(pointed)
    printf 'current %s\nproven %s\nkept %s\n' "$now" "$(answered)" "$(cd releases 2>/dev/null && printf '%s ' [0-9]*)"
    if [ -n "$now" ] && found=$(sha256sum 2>/dev/null <"current/SHA256SUMS"); then
        printf 'digest %s\n' "${found%% *}"
    fi
}

deploy() {
    local old
    if [ "$(pointed)" = "$version" ] && [ "$(first_of $(answered))" = "$version" ] &&
        found=$(sha256sum 2>/dev/null <"current/SHA256SUMS") && [ "${found%% *}" = "$digest" ]; then
        return
    fi
    place
    old=$(before "$version")
    point_at "$version"
    if serve "$version" "$health"; then
        prove "$version"
        prune
        return
    fi
    failed=$problem
    return_to "$old" "$version"
    prune
    tell
    quit 70 "$failed"
}

back() {
    local old now
    now=$(pointed)
    if [ "$now" = "$version" ]; then
        old=$(before "$version")
        [ -n "$old" ] || quit 66 "no version before $version is kept"
    elif [ "$(first_of $(answered))" = "$version" ] && [ -n "$now" ]; then
        old=$now # going back was cut off after `current` had changed
    else
        return
    fi
    problem="version $version was left"
    return_to "$old" "$version"
}

check() {
    digest=$(sha256sum 2>/dev/null <current/SHA256SUMS) || digest=none
    digest=${digest%% *}
    whole "$(readlink current)" || printf 'damaged %s\n' "${problem//$'\n'/; }"
}

main() {
    local action=$1 found failed
    root=$2 model=$3 version=${4:-} digest=${5:-} restart=${6:-} health=${7:-} return_check=${8:-}
    restart_seconds=${9:-60} health_seconds=${10:-60} keep=${11:-3}
    problem='' hung=''
    case $action in
    read | check)
        cd "$root/$model" 2>/dev/null || return 0
        tell
        if [ "$action" = check ] && [ -L current ]; then check; fi
        ;;
    deploy | back | place)
        begin
        "$action"
        tell
        ;;
    point)
        begin
        whole "releases/$version" || quit 65 "${problem:0:500}"
        point_at "$version"
        prove "$version"
        prune
        tell
        ;;
    esac
}

main "$@"
