"""Uploads in parts: made, listed, completed, aborted, and refused where they are wrong."""

import io
from typing import Any

from boto3.s3.transfer import TransferConfig

from .checksum import etag, etag_of_parts
from .harness import Service, body_of, check, expect, expect_in, outcome, payload, refused, refused_as, uploads

PART_BYTES_MIN = 5 * 1024 * 1024
Parts = list[dict[str, Any]]


def upload(service: Service, bucket: str, key: str, parts: list[bytes], **about: Any) -> tuple[str, Parts]:
    """Uploads parts, each through another endpoint. They are numbered from 1."""
    upload_id = service.writer.create_multipart_upload(Bucket=bucket, Key=key, **about)["UploadId"]
    return upload_id, [put_part(service, bucket, key, upload_id, n, part) for n, part in enumerate(parts, start=1)]


def put_part(service: Service, bucket: str, key: str, upload_id: str, number: int, data: bytes) -> dict[str, Any]:
    place: dict[str, Any] = {"Bucket": bucket, "Key": key, "UploadId": upload_id, "PartNumber": number}
    told = service.any(number).upload_part(**place, Body=data)
    expect(told["ETag"], etag(data), f"the tag of part {number}")
    return {"PartNumber": number, "ETag": told["ETag"]}


def complete(service: Service, bucket: str, key: str, upload_id: str, parts: Parts, **more: Any) -> dict[str, Any]:
    told = {"Bucket": bucket, "Key": key, "UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
    return service.reader.complete_multipart_upload(**told, **more)


@check("parts through different endpoints become one object, with its metadata")
def whole(service: Service) -> None:
    bucket, key, data = service.bucket("parts"), "a b/+key", [payload(PART_BYTES_MIN, 1), payload(1000, 2)]
    about: dict[str, Any] = {"ContentType": "text/css", "CacheControl": "no-cache", "Metadata": {"a": "b"}}
    upload_id, parts = upload(service, bucket, key, data, **about)
    refused("NoSuchKey", 404, "the object before its completion", service.reader.get_object, Bucket=bucket, Key=key)
    expect(service.reader.list_objects_v2(Bucket=bucket)["KeyCount"], 0, "keys before the completion")
    told = complete(service, bucket, key, upload_id, parts)
    expect((told["Bucket"], told["Key"], told["ETag"]), (bucket, key, etag_of_parts(data)), "the completion")
    for client in service.clients:
        got = client.get_object(Bucket=bucket, Key=key)
        expect(got["Body"].read() == b"".join(data), True, "the bytes")
        expect({name: got.get(name) for name in about}, about, "what is said of it")
        expect((got["ETag"], got["ContentLength"]), (etag_of_parts(data), PART_BYTES_MIN + 1000), "tag and length")
    expect(uploads(service.reader, bucket), [], "uploads after the completion")
    span = f"bytes={PART_BYTES_MIN - 3}-{PART_BYTES_MIN + 2}"
    over = body_of(service.reader, bucket, key, Range=span)
    expect(over, data[0][-3:] + data[1][:3], "a range over the border of two parts")


@check("parts are got by their number")
def part_numbers(service: Service) -> None:
    bucket, data = service.bucket("part-numbers"), [payload(PART_BYTES_MIN, 1), payload(1000, 2)]
    upload_id, parts = upload(service, bucket, "key", data)
    complete(service, bucket, "key", upload_id, parts)
    service.writer.put_object(Bucket=bucket, Key="whole", Body=b"data")
    for number, part in enumerate(data, start=1):
        got = service.reader.get_object(Bucket=bucket, Key="key", PartNumber=number)
        told = (got["ResponseMetadata"]["HTTPStatusCode"], got.get("PartsCount"), got["ContentLength"])
        expect(told, (206, 2, len(part)), f"the answer for part {number}")
        expect(got["Body"].read() == part, True, f"the bytes of part {number}")
        head = service.writer.head_object(Bucket=bucket, Key="key", PartNumber=number)
        expect((head.get("PartsCount"), head["ContentLength"]), (2, len(part)), f"head of part {number}")
    get = service.reader.get_object
    refused(("InvalidPartNumber", "InvalidPart"), 416, "part 3 of 2", get, Bucket=bucket, Key="key", PartNumber=3)
    expect(get(Bucket=bucket, Key="whole", PartNumber=1)["Body"].read(), b"data", "part 1 of an object without parts")


@check("parts and uploads are listed, in pages")
def lists(service: Service) -> None:
    bucket = service.bucket("part-lists")
    data = [b"one", b"two!", b"three"]
    upload_id, parts = upload(service, bucket, "dir/key", data)
    place: dict[str, str] = {"Bucket": bucket, "Key": "dir/key", "UploadId": upload_id}
    listed = service.reader.list_parts(**place)
    told = [(part["PartNumber"], part["ETag"], part["Size"]) for part in listed["Parts"]]
    expect(told, [(n, etag(part), len(part)) for n, part in enumerate(data, start=1)], "the parts")
    page = service.reader.list_parts(**place, MaxParts=2)
    told_page = ([part["PartNumber"] for part in page["Parts"]], page["IsTruncated"], page["NextPartNumberMarker"])
    expect(told_page, ([1, 2], True, 2), "the first page of parts")
    rest = service.writer.list_parts(**place, PartNumberMarker=2)
    expect(([part["PartNumber"] for part in rest["Parts"]], rest["IsTruncated"]), ([3], False), "the last page")
    others = {service.writer.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"] for key in ("b", "b", "dir/z")}
    found = uploads(service.reader, bucket)
    expect([entry["Key"] for entry in found], ["b", "b", "dir/key", "dir/z"], "keys of all uploads")
    expect({entry["UploadId"] for entry in found}, {upload_id, *others}, "ids of all uploads")
    paged = uploads(service.reader, bucket, PaginationConfig={"PageSize": 1})
    key_of = lambda entry: (entry["Key"], entry["UploadId"])
    expect(sorted(map(key_of, paged)), sorted(map(key_of, found)), "uploads in pages of one")
    some = uploads(service.reader, bucket, Prefix="dir/k")
    expect([entry["UploadId"] for entry in some], [upload_id], "uploads by prefix")
    folded = service.reader.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    expect([entry["Prefix"] for entry in folded.get("CommonPrefixes", [])], ["dir/"], "folded uploads")
    expect([entry["Key"] for entry in folded["Uploads"]], ["b", "b"], "uploads beside the folded ones")


@check("a part that is put again replaces the first, and numbers may have gaps")
def gaps(service: Service) -> None:
    bucket, large = service.bucket("part-gaps"), payload(PART_BYTES_MIN)
    upload_id, _ = upload(service, bucket, "key", [b"replaced"])
    numbers = {1: large, 3: large[::-1], 10_000: b"end"}
    parts = [put_part(service, bucket, "key", upload_id, n, data) for n, data in numbers.items()]
    put_part(service, bucket, "key", upload_id, 7, b"left out")
    complete(service, bucket, "key", upload_id, parts)
    expect(body_of(service.writer, bucket, "key") == b"".join(numbers.values()), True, "the bytes")


@check("a completion that is wrong is refused, and the upload stays")
def wrong_completion(service: Service) -> None:
    bucket, data = service.bucket("part-wrong"), [payload(PART_BYTES_MIN, 1), payload(10, 2), payload(10, 3)]
    upload_id, parts = upload(service, bucket, "key", data)
    cases: list[tuple[str, str, Parts]] = [
        ("out of order", "InvalidPartOrder", [parts[1], parts[0]]),
        ("twice the same", "InvalidPartOrder", [parts[0], parts[0]]),
        ("a tag of another part", "InvalidPart", [{"PartNumber": 1, "ETag": parts[1]["ETag"]}]),
        ("a part that was not put", "InvalidPart", [parts[0], {"PartNumber": 4, "ETag": parts[1]["ETag"]}]),
        ("a small part before the last", "EntityTooSmall", parts),
        ("no part", "MalformedXML", []),
    ]
    for what, code, chosen in cases:
        told: dict[str, Any] = {"Bucket": bucket, "Key": "key", "UploadId": upload_id}
        told["MultipartUpload"] = {"Parts": chosen}
        refused(code, 400, what, service.reader.complete_multipart_upload, **told)
    complete(service, bucket, "key", upload_id, parts[:2])
    expect(body_of(service.writer, bucket, "key") == data[0] + data[1], True, "the bytes of the right completion")


@check("a completion that is repeated changes nothing")
def repeated(service: Service) -> None:
    bucket = service.bucket("part-repeated")
    upload_id, parts = upload(service, bucket, "key", [b"data"])
    told: dict[str, Any] = {"Bucket": bucket, "Key": "key", "UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
    service.writer.complete_multipart_upload(**told)
    # Who lost the answer to the first may be told the same again, or that there is no such upload any more.
    code = outcome(service.reader.complete_multipart_upload, **told)
    expect_in(code, ("", "NoSuchUpload"), "the repeated completion")
    expect(body_of(service.reader, bucket, "key"), b"data", "the bytes")


@check("an aborted upload is gone, and so is one that never was")
def abort(service: Service) -> None:
    bucket = service.bucket("part-abort")
    upload_id, parts = upload(service, bucket, "key", [b"data"])
    place: dict[str, Any] = {"Bucket": bucket, "Key": "key"}
    service.reader.abort_multipart_upload(**place, UploadId=upload_id)
    expect(uploads(service.writer, bucket), [], "uploads after the abort")
    client, done = service.writer, {"MultipartUpload": {"Parts": parts}}
    for gone in (upload_id, "never-was"):
        for what, call, more in (
            ("upload", client.upload_part, {"PartNumber": 2, "Body": b"x"}),
            ("list", client.list_parts, {}),
            ("complete", client.complete_multipart_upload, done),
        ):
            refused("NoSuchUpload", 404, f"{what} of {gone[:9]}", call, **place, UploadId=gone, **more)
    refused("NoSuchUpload", 404, "abort", client.abort_multipart_upload, **place, UploadId="never-was")
    refused("NoSuchKey", 404, "the object", client.get_object, **place)


@check("an upload belongs to its key, and its parts have numbers from 1 to 10000")
def bounds(service: Service) -> None:
    bucket = service.bucket("part-bounds")
    upload_id, _ = upload(service, bucket, "key", [])
    place: dict[str, Any] = {"Bucket": bucket, "UploadId": upload_id, "Body": b"x"}
    put = service.reader.upload_part
    refused("NoSuchUpload", 404, "another key", put, **place, Key="other", PartNumber=1)
    for number in (0, 10_001, -1):
        refused("InvalidArgument", 400, f"part {number}", put, **place, Key="key", PartNumber=number)


@check("parts are copied, whole and in ranges")
def copied(service: Service) -> None:
    bucket, source = service.bucket("part-copy"), payload(PART_BYTES_MIN + 5000)
    service.writer.put_object(Bucket=bucket, Key="so urce", Body=source)
    upload_id = service.writer.create_multipart_upload(Bucket=bucket, Key="key")["UploadId"]
    place: dict[str, Any] = {"Bucket": bucket, "Key": "key", "UploadId": upload_id}
    origin: dict[str, Any] = {"CopySource": {"Bucket": bucket, "Key": "so urce"}}
    copy = service.reader.upload_part_copy
    one = copy(**place, **origin, PartNumber=1)["CopyPartResult"]["ETag"]
    span = source[100:200]
    two = copy(**place, **origin, PartNumber=2, CopySourceRange="bytes=100-199")["CopyPartResult"]["ETag"]
    expect((one, two), (etag(source), etag(span)), "the tags of the copied parts")
    beyond = f"bytes=0-{len(source)}"
    codes = {"InvalidArgument": 400, "InvalidRequest": 400, "InvalidRange": 416}
    refused_as(codes, "a range beyond the end", copy, **place, **origin, PartNumber=3, CopySourceRange=beyond)
    nothing = {"Bucket": bucket, "Key": "missing"}
    refused("NoSuchKey", 404, "a copy of nothing", copy, **place, CopySource=nothing, PartNumber=3)
    parts = [{"PartNumber": 1, "ETag": one}, {"PartNumber": 2, "ETag": two}]
    complete(service, bucket, "key", upload_id, parts)
    expect(body_of(service.writer, bucket, "key") == source + span, True, "the bytes")


@check("the transfer manager of boto3 takes 40 MB up and down")
def transfer(service: Service) -> None:
    bucket, data = service.bucket("transfer"), payload(40_000_000)
    config = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=6)
    service.writer.upload_fileobj(io.BytesIO(data), bucket, "key", Config=config)
    expect(service.reader.head_object(Bucket=bucket, Key="key")["ETag"].endswith('-5"'), True, "it went in 5 parts")
    back = io.BytesIO()
    service.reader.download_fileobj(bucket, "key", back, Config=config)
    expect(back.getvalue() == data, True, "the bytes")
    service.reader.copy({"Bucket": bucket, "Key": "key"}, bucket, "copy", Config=config)
    expect(body_of(service.writer, bucket, "copy") == data, True, "the bytes of a copy in parts")
