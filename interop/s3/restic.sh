#!/usr/bin/env bash
# restic: a repository with two backups, verified to the last byte, restored, and pruned.
# `interop/s3/run --only restic` gives it what it needs; lib.sh says what that is.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bucket="restic-$S3_RUN_ID"
export RESTIC_PASSWORD=secret RESTIC_CACHE_DIR="$S3_WORK/cache"
export RESTIC_PROGRESS_FPS=0.1
options=(-o s3.bucket-lookup=path -o "s3.region=$AWS_DEFAULT_REGION")
first() { restic -r "s3:$FIRST/$bucket/repository" "${options[@]}" "$@"; }
last() { restic -r "s3:$LAST/$bucket/repository" "${options[@]}" --no-cache "$@"; }

initialize() {
    first init
    refused 'already (initialized|exists)' last init
    same "$(last snapshots --json)" "[]" "snapshots of a new repository"
}

first_backup() {
    random_tree tree
    cp -r tree before
    first backup tree
    last check --read-data
    same "$(last snapshots --json | jq length)" 1 "snapshots"
}

second_backup() {
    rm tree/many/file-7
    echo changed >tree/empty
    random_file tree/new.bin 3000000
    last backup tree
    first check --read-data
    same "$(first snapshots --json | jq length)" 2 "snapshots"
}

restore() {
    last restore latest --target latest
    same_trees latest/tree tree
    first restore "$(first snapshots --json | jq -r '.[0].id')" --target oldest
    same_trees oldest/tree before
    same "$(last dump latest /tree/empty)" changed "a file that is dumped"
}

prune() {
    first forget --keep-last 1 --prune
    same "$(last snapshots --json | jq length)" 1 "snapshots"
    last check --read-data
    last restore latest --target pruned
    same_trees pruned/tree tree
    refused 'no matching ID|snapshot' first restore 00000000 --target nothing
}

locks() {
    same "$(last list locks)" "" "locks that were left"
}

remove() {
    aws --endpoint-url "$FIRST" s3 rb "s3://$bucket" --force
}

check "a repository is made, once" initialize
check "a first backup is there to the last byte" first_backup
check "a second backup through another endpoint" second_backup
check "both backups are restored as they were" restore
check "the first is forgotten, and the second is whole" prune
check "no lock is left behind" locks
check "the bucket is removed" remove
finish
