# What the scripts beside it have in common. They source it; it does nothing by itself.
#
# Processes are kept in $dir: NAME.pid and NAME.log for each, so that one call starts them and another one ends them.
# shellcheck shell=bash disable=SC2154

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# usage SCRIPT: prints the comment that the script opens with.
usage() {
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$1" >&2
    exit 2
}

# need COMMAND...
need() {
    local command
    for command in "$@"; do
        command -v "$command" >/dev/null || die "needs $command, which is not installed"
    done
}

# Where cargo puts what it builds.
target_dir() {
    printf '%s\n' "${CARGO_TARGET_DIR:-$ROOT/target}"
}

# Sets SYNOD_BIN, and builds it if it is not given.
find_synod() {
    if [[ -z ${SYNOD_BIN:-} ]]; then
        (cd "$ROOT" && cargo build --release --locked --bin synod) >&2 || die "synod does not build"
        SYNOD_BIN=$(target_dir)/release/synod
    fi
    [[ -x $SYNOD_BIN ]] || die "SYNOD_BIN is $SYNOD_BIN, which cannot be run"
    SYNOD_BIN=$(cd "$(dirname "$SYNOD_BIN")" && pwd)/$(basename "$SYNOD_BIN")
}

# assign NAME VALUE: as a shell reads it.
assign() {
    printf '%s=%q\n' "$1" "$2"
}

# free_ports COUNT: the first of so many free ports in a row, below those that the system gives to clients.
free_ports() {
    local first port
    for _ in $(seq 200); do
        first=$((11000 + RANDOM % 20000))
        for ((port = first; port < first + $1; port++)); do
            # Who can connect has found somebody who listens.
            if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue 2; fi
        done
        echo "$first"
        return
    done
    die "there are no free ports"
}

# start_process NAME COMMAND...: in a session of its own, so that an interrupt is not for it.
start_process() {
    local name=$1
    shift
    setsid "$@" >>"$dir/$name.log" 2>&1 </dev/null &
    echo $! >"$dir/$name.pid"
}

pids() {
    cat "$dir"/*.pid 2>/dev/null || true
}

# is_running PID: one that has ended but that nobody has waited for does not run.
is_running() {
    local state
    state=$(ps -o stat= -p "$1") && [[ $state != Z* ]]
}

all_ended() {
    local pid
    for pid in $(pids); do
        ! is_running "$pid" || return 1
    done
}

stop_processes() {
    local pid
    for pid in $(pids); do kill "$pid" 2>/dev/null || true; done
    until_true 20 "all processes of $dir have ended" all_ended || {
        for pid in $(pids); do kill -9 "$pid" 2>/dev/null || true; done
    }
    rm -f "$dir"/*.pid
}

# until_true SECONDS WHAT COMMAND...
until_true() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        if ((SECONDS > deadline)); then
            printf 'not in time: %s\n' "$what" >&2
            return 1
        fi
        sleep 0.1
    done
}

# make_bucket ENDPOINT ACCESS SECRET NAME
make_bucket() {
    local empty=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 status
    status=$(curl --silent --output /dev/null --write-out '%{http_code}' --request PUT --user "$2:$3" \
        --aws-sigv4 "aws:amz:us-east-1:s3" --header "x-amz-content-sha256: $empty" "$1/$4")
    [[ $status == 200 ]] || die "making the bucket $4 ended with $status"
}
