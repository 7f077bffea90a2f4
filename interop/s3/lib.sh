# What the scenarios of the command line clients have in common. They source it; it does nothing by itself.
#
# A scenario is given: S3_ENDPOINTS (URLs, separated by spaces), AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
# AWS_DEFAULT_REGION, S3_RUN_ID (a part of the names of its buckets), S3_WORK (an empty directory), and S3_FAILURES (a
# file that gets a line for each check that failed). It writes through FIRST and reads through LAST.
# shellcheck shell=bash

set -uo pipefail

read -ra ENDPOINTS <<<"$S3_ENDPOINTS"
FIRST=${ENDPOINTS[0]}
LAST=${ENDPOINTS[-1]}
SCENARIO=$(basename "$0" .sh)
FAILED=0
export AWS_EC2_METADATA_DISABLED=true AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
mkdir -p "$S3_WORK"
cd "$S3_WORK" || exit 1

# check NAME COMMAND...: runs a command, usually a function, and prints a line about it. A command in it that fails ends
# it, and what it wrote is printed.
check() {
    local name=$1 output code started=$EPOCHREALTIME seconds
    shift
    output=$(
        exec 2>&1
        set -eE
        trap 'echo "line $LINENO ended with $?: $BASH_COMMAND"' ERR
        "$@"
    )
    code=$?
    seconds=$(awk -v from="$started" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }')
    if ((code == 0)); then
        printf '  ✓ %s (%s s)\n' "$name" "$seconds"
    else
        printf '  ✗ %s (%s s)\n' "$name" "$seconds"
        tail -n 40 <<<"$output" | cut -c1-600 | sed 's/^/      /'
        printf '%s: %s\n' "$SCENARIO" "$name" >>"${S3_FAILURES:-/dev/null}"
        FAILED=$((FAILED + 1))
    fi
}

# The last words of a scenario.
finish() {
    exit $((FAILED > 0))
}

# same ACTUAL WANTED WHAT
same() {
    [[ $1 == "$2" ]] && return
    printf '%s\n  expected: %s\n  got:      %s\n' "$3" "$2" "$1"
    return 1
}

# same_files ACTUAL WANTED
same_files() {
    cmp -- "$1" "$2" && return
    printf 'expected %s to be like %s: %s\n' "$1" "$2" "$(wc -c "$1" "$2" 2>&1 | head -2 | tr '\n' ' ')"
    return 1
}

# same_trees ACTUAL WANTED: the same files with the same bytes.
same_trees() {
    diff -r -- "$1" "$2" && return
    printf 'expected %s to be like %s\n' "$1" "$2"
    return 1
}

# refused PATTERN COMMAND...: the command must fail and say so.
refused() {
    local pattern=$1 output
    shift
    if output=$("$@" 2>&1); then
        printf 'expected a failure that says %s, but it was done: %s\n%s\n' "$pattern" "$*" "$output"
        return 1
    fi
    [[ $output =~ $pattern ]] && return
    printf 'expected a failure that says %s: %s\n  got: %s\n' "$pattern" "$*" "$output"
    return 1
}

# random_file PATH BYTES
random_file() {
    mkdir -p "$(dirname "$1")"
    head -c "$2" /dev/urandom >"$1"
}

# A tree with names that are easy to get wrong, and with a file for which clients use several parts.
random_tree() {
    local dir=$1 number
    random_file "$dir/large.bin" 20000000
    random_file "$dir/sub/deeper/one.bin" 70000
    random_file "$dir/sub/with space.txt" 100
    random_file "$dir/sub/plus+percent%41.txt" 101
    random_file "$dir/sub/umlaut-ü.txt" 102
    : >"$dir/empty"
    for number in $(seq 1 40); do
        random_file "$dir/many/file-$number" "$((number * 10))"
    done
}
