#!/usr/bin/env bash
# s5cmd, which does everything with many workers at once: trees up and down, batches, removal.
# `interop/s3/run --only s5cmd` gives it what it needs; lib.sh says what that is.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bucket="s5cmd-$S3_RUN_ID"
first() { s5cmd --endpoint-url "$FIRST" "$@"; }
last() { s5cmd --endpoint-url "$LAST" "$@"; }

make_bucket() {
    first mb "s3://$bucket"
    last ls | grep -F "s3://$bucket"
}

copy_files() {
    random_tree tree
    first cp --part-size 5 tree/large.bin "s3://$bucket/large.bin"
    last cp --part-size 5 "s3://$bucket/large.bin" large.back
    same_files large.back tree/large.bin
    same "$(last cat "s3://$bucket/large.bin" | md5sum)" "$(md5sum <tree/large.bin)" "what cat prints"
    echo "from a pipe" | first pipe "s3://$bucket/piped"
    same "$(last cat "s3://$bucket/piped")" "from a pipe" "what came from a pipe"
}

copy_trees() {
    first cp tree/ "s3://$bucket/tree/"
    last cp "s3://$bucket/tree/*" back/
    same_trees back tree
    same "$(last ls "s3://$bucket/tree/*" | wc -l)" "$(find tree -type f | wc -l)" "how many are listed"
    rm tree/many/file-7
    echo changed >tree/empty
    last sync --delete tree/ "s3://$bucket/tree/"
    first sync --delete "s3://$bucket/tree/*" back/
    same_trees back tree
    first du "s3://$bucket/tree/*" | grep -F "$(find tree -type f | wc -l) objects"
}

batch() {
    local number
    for number in $(seq 1 200); do
        echo "cp tree/many/file-1 s3://$bucket/batch/$number"
    done >commands
    first --numworkers 64 run commands
    same "$(last ls "s3://$bucket/batch/*" | wc -l)" 200 "objects of the batch"
    last mv "s3://$bucket/batch/200" "s3://$bucket/batch/moved"
    first cp "s3://$bucket/batch/moved" moved.back
    same_files moved.back tree/many/file-1
    first head "s3://$bucket/batch/moved" | grep -F '"size":10'
}

remove() {
    refused 'BucketNotEmpty' last rb "s3://$bucket"
    first rm "s3://$bucket/*"
    refused 'no object found' last ls "s3://$bucket/*"
    last rb "s3://$bucket"
    refused 'NoSuchBucket|no object found' first ls "s3://$bucket/*"
}

check "a bucket is made" make_bucket
check "files go up and down, in parts and through pipes" copy_files
check "trees go up and down and are synchronized" copy_trees
check "200 objects are written by 64 workers" batch
check "objects and a bucket are removed" remove
finish
