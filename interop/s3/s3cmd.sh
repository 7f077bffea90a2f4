#!/usr/bin/env bash
# s3cmd: buckets, files, files in parts, trees, metadata, copies, removal. It signs URLs only as AWS did before 2014,
# which nobody has to accept any more; so that is not checked.
# `interop/s3/run --only s3cmd` gives it what it needs; lib.sh says what that is.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bucket="s3cmd-$S3_RUN_ID"

# configuration FILE ENDPOINT
configuration() {
    local host=${2#*://} https=False
    [[ $2 == https:* ]] && https=True
    cat >"$1" <<END
[default]
access_key = $AWS_ACCESS_KEY_ID
secret_key = $AWS_SECRET_ACCESS_KEY
host_base = $host
host_bucket = $host
bucket_location = $AWS_DEFAULT_REGION
use_https = $https
signature_v2 = False
multipart_chunk_size_mb = 5
END
}
configuration first.cfg "$FIRST"
configuration last.cfg "$LAST"
first() { s3cmd --config "$S3_WORK/first.cfg" --no-progress "$@"; }
last() { s3cmd --config "$S3_WORK/last.cfg" --no-progress "$@"; }

make_bucket() {
    first mb "s3://$bucket"
    last ls | grep -F "s3://$bucket"
}

copy_file() {
    random_file small.bin 1000
    first put small.bin "s3://$bucket/dir/small.bin" --add-header=x-amz-meta-color:blue --mime-type text/css
    last get "s3://$bucket/dir/small.bin" small.back
    same_files small.back small.bin
    last info "s3://$bucket/dir/small.bin" >info
    grep -F "text/css" info
    grep -F "$(md5sum <small.bin | cut -d' ' -f1)" info
    grep -iE 'x-amz-meta-color: +blue' info
}

copy_in_parts() {
    random_file parts.bin 12000000
    first put parts.bin "s3://$bucket/parts.bin"
    last get "s3://$bucket/parts.bin" parts.back
    same_files parts.back parts.bin
    last cp "s3://$bucket/parts.bin" "s3://$bucket/copy.bin"
    first get "s3://$bucket/copy.bin" copy.back
    same_files copy.back parts.bin
    first mv "s3://$bucket/copy.bin" "s3://$bucket/moved.bin"
    same "$(last ls "s3://$bucket/copy.bin")" "" "what was moved away"
}

sync_both_ways() {
    random_tree tree
    first sync tree/ "s3://$bucket/tree/"
    last sync "s3://$bucket/tree/" back/
    same_trees back tree
    rm tree/many/file-7
    echo changed >tree/empty
    first sync --delete-removed tree/ "s3://$bucket/tree/"
    last sync --delete-removed "s3://$bucket/tree/" back/
    same_trees back tree
    same "$(last ls --recursive "s3://$bucket/tree/" | wc -l)" "$(find tree -type f | wc -l)" "how many are listed"
}

uploads() {
    # Above the list stands the bucket; the entries have their columns.
    same "$(last multipart "s3://$bucket" | grep -c $'\t'"s3://$bucket/" || true)" 0 "uploads that were not completed"
}

remove() {
    first del "s3://$bucket/dir/small.bin"
    refused '404|does not exist|NoSuchKey' last info "s3://$bucket/dir/small.bin"
    refused 'BucketNotEmpty|not empty' last rb "s3://$bucket"
    first del --recursive --force "s3://$bucket/"
    same "$(last ls --recursive "s3://$bucket/")" "" "what is left"
    last rb "s3://$bucket"
    refused 'NoSuchBucket|does not exist' first ls "s3://$bucket"
}

check "a bucket is made" make_bucket
check "a file goes up and down, with its metadata" copy_file
check "a large file goes up, across and down in parts" copy_in_parts
check "a tree is synchronized both ways" sync_both_ways
check "no upload is left behind" uploads
check "a tree and a bucket are removed" remove
finish
