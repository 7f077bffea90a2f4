#!/usr/bin/env bash
# The command line of AWS: buckets, single files, files in parts, whole trees both ways, removal, presigned URLs.
# `interop/s3/run --only aws_cli` gives it what it needs; lib.sh says what that is.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bucket="awscli-$S3_RUN_ID"
# By itself this version signs URLs as AWS did before 2014.
printf '[default]\ns3 =\n    signature_version = s3v4\n' >config
export AWS_CONFIG_FILE=$S3_WORK/config
first() { aws --endpoint-url "$FIRST" "$@"; }
last() { aws --endpoint-url "$LAST" "$@"; }

make_bucket() {
    first s3 mb "s3://$bucket"
    last s3 ls | grep -F " $bucket"
    last s3api head-bucket --bucket "$bucket"
}

copy_file() {
    random_file small.bin 1000
    first s3 cp small.bin "s3://$bucket/dir/small.bin" --metadata color=blue --content-type text/css
    last s3 cp "s3://$bucket/dir/small.bin" small.back
    same_files small.back small.bin
    local about
    about=$(last s3api head-object --bucket "$bucket" --key dir/small.bin \
        --query '[ContentType,Metadata.color]' --output text)
    same "$about" "text/css"$'\t'"blue" "type and metadata"
    same "$(first s3 cp "s3://$bucket/dir/small.bin" - | md5sum)" "$(md5sum <small.bin)" "what goes to standard output"
    echo "from a pipe" | last s3 cp - "s3://$bucket/piped"
    same "$(first s3 cp "s3://$bucket/piped" -)" "from a pipe" "what came from a pipe"
}

copy_in_parts() {
    random_file parts.bin 30000000
    first s3 cp parts.bin "s3://$bucket/parts.bin"
    local tag
    tag=$(last s3api head-object --bucket "$bucket" --key parts.bin --query ETag --output text)
    [[ $tag == *-4\" ]] || same "$tag" '"...-4"' "the tag of 30 MB in parts of 8 MiB"
    last s3 cp "s3://$bucket/parts.bin" parts.back
    same_files parts.back parts.bin
    last s3 cp "s3://$bucket/parts.bin" "s3://$bucket/copied.bin"
    first s3 cp "s3://$bucket/copied.bin" copied.back
    same_files copied.back parts.bin
}

move() {
    first s3 mv "s3://$bucket/copied.bin" "s3://$bucket/moved.bin"
    refused '404|Not Found' last s3api head-object --bucket "$bucket" --key copied.bin
    last s3api head-object --bucket "$bucket" --key moved.bin
}

sync_both_ways() {
    random_tree tree
    first s3 sync tree "s3://$bucket/tree"
    last s3 sync "s3://$bucket/tree" back
    same_trees back tree
    same "$(last s3 sync tree "s3://$bucket/tree")" "" "what a second sync does"
    rm tree/many/file-7
    echo changed >tree/empty
    first s3 sync tree "s3://$bucket/tree" --delete
    last s3 sync "s3://$bucket/tree" back --delete
    same_trees back tree
}

list() {
    local names count
    names=$(last s3 ls "s3://$bucket/tree/" | awk '{print $NF}' | sort | tr '\n' ' ')
    same "$names" "empty large.bin many/ sub/ " "a folded list"
    same "$(last s3 ls --recursive "s3://$bucket/tree/" | wc -l)" "$(find tree -type f | wc -l)" "how many are listed"
    count=$(first s3api list-objects-v2 --bucket "$bucket" --prefix tree/many/ --page-size 7 --query 'length(Contents)')
    same "$count" 39 "objects in pages of 7"
}

presign() {
    local url
    url=$(first s3 presign "s3://$bucket/dir/small.bin" --expires-in 300)
    curl --fail --silent --show-error "$url" -o presigned.back
    same_files presigned.back small.bin
}

conditions() {
    echo one >one
    first s3api put-object --bucket "$bucket" --key once --body one --if-none-match '*'
    refused PreconditionFailed last s3api put-object --bucket "$bucket" --key once --body one --if-none-match '*'
}

remove() {
    first s3 rm "s3://$bucket/tree/" --recursive
    same "$(last s3 ls --recursive "s3://$bucket/tree/" || true)" "" "what is left"
    refused BucketNotEmpty last s3 rb "s3://$bucket"
    first s3 rb "s3://$bucket" --force
    refused 'NoSuchBucket' last s3 ls "s3://$bucket"
}

check "a bucket is made" make_bucket
check "a file goes up and down, with its metadata" copy_file
check "a large file goes up, across and down in parts" copy_in_parts
check "an object is moved" move
check "a tree is synchronized both ways" sync_both_ways
check "objects are listed" list
check "a presigned URL works with curl" presign
check "a put if there is none is done once" conditions
check "a tree and a bucket are removed" remove
finish
