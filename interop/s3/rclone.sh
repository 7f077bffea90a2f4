#!/usr/bin/env bash
# rclone: trees up, compared by their bytes, copied in the service, down again, and removed.
# `interop/s3/run --only rclone` gives it what it needs; lib.sh says what that is.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bucket="rclone-$S3_RUN_ID"
export RCLONE_CONFIG=/dev/null
for remote in FIRST LAST; do
    declare -x "RCLONE_CONFIG_${remote}_TYPE=s3" "RCLONE_CONFIG_${remote}_PROVIDER=Other" \
        "RCLONE_CONFIG_${remote}_ENV_AUTH=true" "RCLONE_CONFIG_${remote}_REGION=$AWS_DEFAULT_REGION" \
        "RCLONE_CONFIG_${remote}_ENDPOINT=${!remote}" "RCLONE_CONFIG_${remote}_FORCE_PATH_STYLE=true" \
        "RCLONE_CONFIG_${remote}_UPLOAD_CUTOFF=8Mi" "RCLONE_CONFIG_${remote}_CHUNK_SIZE=5Mi"
done

make_bucket() {
    rclone mkdir "first:$bucket"
    rclone lsd last: | grep -F " $bucket"
}

synchronize() {
    random_tree tree
    rclone sync tree "first:$bucket/tree"
    rclone check --download tree "last:$bucket/tree"
    # The times of the files are in the metadata of the objects.
    same "$(rclone sync -v tree "last:$bucket/tree" 2>&1 | grep -c Copied || true)" 0 "what a second sync copies"
    rm tree/many/file-7
    echo changed >tree/empty
    rclone sync tree "last:$bucket/tree"
    rclone check --download tree "first:$bucket/tree"
    rclone sync "first:$bucket/tree" back
    same_trees back tree
}

hashes() {
    rclone md5sum "last:$bucket/tree/many" | sort >remote.md5
    (cd tree/many && md5sum -- *) | sort >local.md5
    same_files remote.md5 local.md5
}

read_object() {
    echo "some words" | rclone rcat "first:$bucket/words"
    same "$(rclone cat "last:$bucket/words")" "some words" "what cat prints"
    same "$(rclone cat --offset 5 --count 3 "last:$bucket/words")" "wor" "a range"
    same "$(rclone lsf "last:$bucket/tree" | sort | tr '\n' ' ')" "empty large.bin many/ sub/ " "a list"
    same "$(rclone size --json "last:$bucket/tree" | jq -r '"\(.count) \(.bytes)"')" \
        "$(find tree -type f -printf '%s\n' | awk '{ all += $1 } END { print NR, all }')" "count and bytes"
}

copy_inside() {
    rclone copy "first:$bucket/tree" "first:$bucket/copy"
    rclone check --download tree "last:$bucket/copy"
    rclone moveto "first:$bucket/words" "first:$bucket/moved words"
    same "$(rclone cat "last:$bucket/moved words")" "some words" "what was moved"
    same "$(rclone lsf "last:$bucket" | sort | tr '\n' ' ')" "copy/ moved words tree/ " "what there is after the move"
}

remove() {
    rclone delete "first:$bucket/copy"
    same "$(rclone lsf -R "last:$bucket/copy")" "" "what is left of the copy"
    rclone deletefile "last:$bucket/moved words"
    refused 'BucketNotEmpty|not empty' rclone rmdir "first:$bucket"
    rclone purge "first:$bucket"
    same "$(rclone lsf last: | grep -cF "$bucket/" || true)" 0 "the bucket in the list"
}

check "a bucket is made" make_bucket
check "a tree is synchronized, and is the same byte by byte" synchronize
check "the tags of objects are their hashes" hashes
check "objects are read, and parts of them, and listed" read_object
check "a tree is copied, and an object moved, inside of the service" copy_inside
check "trees and a bucket are removed" remove
finish
