"""Checksums of every algorithm, on objects and on parts, in headers and behind bodies in chunks."""

from typing import Any

from .checksum import ALGORITHMS, COMPOSITE, FULL_OBJECT, encoded, etag
from .harness import Service, body_of, check, expect, expect_in, payload, refused
from .multipart import PART_BYTES_MIN
from .sigv4 import Answer, Chunked

DATA = b"The quick brown fox jumps over the lazy dog"


def field(algorithm: str) -> str:
    return f"Checksum{algorithm}"


@check("a put with a checksum keeps it, of every algorithm")
def put(service: Service) -> None:
    bucket = service.bucket("checksums")
    for algorithm, compute in ALGORITHMS.items():
        value = encoded(compute(DATA))
        given = {field(algorithm): value}
        told = service.writer.put_object(Bucket=bucket, Key=algorithm, Body=DATA, **given)
        expect(told.get(field(algorithm)), value, f"{algorithm} in the answer to put")
        for call in (service.reader.head_object, service.reader.get_object):
            answer = call(Bucket=bucket, Key=algorithm, ChecksumMode="ENABLED")
            told = (answer.get(field(algorithm)), answer.get("ChecksumType"))
            expect(told, (value, "FULL_OBJECT"), f"{algorithm} in the answer to {call.__name__}")


@check("a put with a wrong checksum is refused and changes nothing")
def wrong(service: Service) -> None:
    bucket, call = service.bucket("wrong-checksums"), service.writer.put_object
    for algorithm, compute in ALGORITHMS.items():
        service.writer.put_object(Bucket=bucket, Key=algorithm, Body=b"before")
        bad = {field(algorithm): encoded(compute(b"other"))}
        refused("BadDigest", 400, f"a wrong {algorithm}", call, Bucket=bucket, Key=algorithm, Body=DATA, **bad)
        short = {field(algorithm): encoded(b"xy")}
        refused("InvalidRequest", 400, f"no {algorithm}", call, Bucket=bucket, Key=algorithm, Body=DATA, **short)
        expect(body_of(service.reader, bucket, algorithm), b"before", f"what is there after a wrong {algorithm}")


@check("the client computes and verifies what it can by itself")
def by_client(service: Service) -> None:
    bucket = service.bucket("client-checksums")
    for algorithm in ("CRC32", "SHA1", "SHA256"):
        service.writer.put_object(Bucket=bucket, Key=algorithm, Body=DATA, ChecksumAlgorithm=algorithm)
        got = service.reader.get_object(Bucket=bucket, Key=algorithm, ChecksumMode="ENABLED")
        expect(got["Body"].read(), DATA, f"the body, verified by {algorithm}")
        expect(got.get(field(algorithm)), encoded(ALGORITHMS[algorithm](DATA)), algorithm)


@check("a copy keeps the checksum of its source, or gets one that is asked for")
def copied(service: Service) -> None:
    bucket = service.bucket("copy-checksums")
    value = encoded(ALGORITHMS["SHA256"](DATA))
    service.writer.put_object(Bucket=bucket, Key="source", Body=DATA, ChecksumSHA256=value)
    source = {"Bucket": bucket, "Key": "source"}
    service.reader.copy_object(Bucket=bucket, Key="same", CopySource=source)
    same = service.writer.head_object(Bucket=bucket, Key="same", ChecksumMode="ENABLED")
    expect(same.get("ChecksumSHA256"), value, "the checksum of the copy")
    told = service.reader.copy_object(Bucket=bucket, Key="new", CopySource=source, ChecksumAlgorithm="CRC32C")
    expect(told["CopyObjectResult"].get("ChecksumCRC32C"), encoded(ALGORITHMS["CRC32C"](DATA)), "the new checksum")


def parts_with(service: Service, bucket: str, algorithm: str, data: list[bytes], **kind: str) -> dict[str, Any]:
    """Uploads parts with their checksums. What is returned is all that completes them."""
    key = f"{algorithm}-{kind.get('ChecksumType', 'default')}"
    create = service.writer.create_multipart_upload
    upload_id = create(Bucket=bucket, Key=key, ChecksumAlgorithm=algorithm, **kind)["UploadId"]
    place: dict[str, Any] = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
    parts = []
    for number, part in enumerate(data, start=1):
        given = {field(algorithm): encoded(ALGORITHMS[algorithm](part))}
        told = service.any(number).upload_part(**place, PartNumber=number, Body=part, **given)
        expect(told.get(field(algorithm)), given[field(algorithm)], f"{algorithm} of part {number}")
        parts.append({"PartNumber": number, "ETag": told["ETag"], **given})
    listed = service.reader.list_parts(**place)["Parts"]
    told_parts = [part.get(field(algorithm)) for part in listed]
    expect(told_parts, [part[field(algorithm)] for part in parts], f"{algorithm} of the listed parts")
    return place | {"MultipartUpload": {"Parts": parts}}


# Large enough for a part, and quick to sum up in Python.
PARTS = [payload(PART_BYTES_MIN, 5), b"and the rest"]


@check("an object in parts has the checksum of its checksums")
def composite(service: Service) -> None:
    bucket = service.bucket("composite")
    for algorithm in COMPOSITE:
        compute = ALGORITHMS[algorithm]
        told = parts_with(service, bucket, algorithm, PARTS)
        done = service.reader.complete_multipart_upload(**told)
        value = f"{encoded(compute(b''.join(map(compute, PARTS))))}-2"
        expect(done.get(field(algorithm)), value, f"{algorithm} in the completion")
        head = service.writer.head_object(Bucket=bucket, Key=told["Key"], ChecksumMode="ENABLED")
        expect((head.get(field(algorithm)), head.get("ChecksumType")), (value, "COMPOSITE"), f"{algorithm} in head")


@check("an object in parts has the checksum of the whole where that is asked for")
def full_object(service: Service) -> None:
    bucket, whole = service.bucket("full-object"), b"".join(PARTS)
    for algorithm in FULL_OBJECT:
        told = parts_with(service, bucket, algorithm, PARTS, ChecksumType="FULL_OBJECT")
        value = encoded(ALGORITHMS[algorithm](whole))
        done = service.reader.complete_multipart_upload(**told, ChecksumType="FULL_OBJECT", **{field(algorithm): value})
        expect(done.get(field(algorithm)), value, f"{algorithm} in the completion")
        head = service.writer.head_object(Bucket=bucket, Key=told["Key"], ChecksumMode="ENABLED")
        expect((head.get(field(algorithm)), head.get("ChecksumType")), (value, "FULL_OBJECT"), f"{algorithm} in head")


@check("a part or a completion with a wrong checksum is refused")
def wrong_parts(service: Service) -> None:
    bucket = service.bucket("wrong-parts")
    for algorithm, compute in ALGORITHMS.items():
        told = parts_with(service, bucket, algorithm, [DATA])
        place = {name: told[name] for name in ("Bucket", "Key", "UploadId")}
        bad = {field(algorithm): encoded(compute(b"other"))}
        put_part = service.reader.upload_part
        refused("BadDigest", 400, f"a part with a wrong {algorithm}", put_part, **place, PartNumber=2, Body=b"x", **bad)
        lying = {"Parts": [told["MultipartUpload"]["Parts"][0] | bad]}
        end = service.reader.complete_multipart_upload
        refused(("InvalidPart", "BadDigest"), 400, f"a wrong {algorithm}", end, **place, MultipartUpload=lying)
        end(**told)
        expect(body_of(service.writer, bucket, told["Key"]), DATA, "the bytes of the right completion")


def sent(service: Service, bucket: str, key: str, body: Chunked, **more: Any) -> Answer:
    return body.put(service.endpoints[0], f"/{bucket}/{key}", service.credentials, **more).send()


# What can be said of a chunk without the signature that it was to have.
UNSIGNED_CHUNK = {
    (403, "SignatureDoesNotMatch"),
    (403, "AccessDenied"),
    (400, "InvalidRequest"),
    (400, "IncompleteBody"),
}
CHUNKS = [payload(65_536, 7), payload(65_536, 8), payload(1000, 9)]


@check("bodies in chunks are taken: signed, unsigned, with a checksum behind them")
def chunked(service: Service) -> None:
    bucket, whole = service.bucket("chunked"), b"".join(CHUNKS)
    bodies = {"signed": Chunked(CHUNKS), "empty": Chunked([])}
    for algorithm in ("CRC32", "CRC32C", "SHA256", "CRC64NVME"):
        trailer = (f"x-amz-checksum-{algorithm.lower()}", encoded(ALGORITHMS[algorithm](whole)))
        bodies[f"signed-{algorithm}"] = Chunked(CHUNKS, True, trailer)
        bodies[f"unsigned-{algorithm}"] = Chunked(CHUNKS, False, trailer)
    for key, body in bodies.items():
        data = b"".join(body.chunks)
        answer = sent(service, bucket, key, body)
        expect((answer.status, answer.headers.get("etag")), (200, etag(data)), f"a {key} body: {answer}")
        got = service.reader.get_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        expect(got["Body"].read() == data, True, f"the bytes of the {key} body")
        expect_in(got.get("ContentEncoding"), (None, ""), f"the encoding that is kept of the {key} body")
        if body.trailer:
            name = field(key.rsplit("-", 1)[-1])
            expect(got.get(name), body.trailer[1], f"the checksum behind the {key} body")
    answer = sent(service, bucket, "gzip", Chunked(CHUNKS), headers={"content-encoding": "gzip,aws-chunked"})
    expect(answer.status, 200, f"a body that is packed and in chunks: {answer}")
    head = service.reader.head_object(Bucket=bucket, Key="gzip")
    expect(head.get("ContentEncoding"), "gzip", "the encoding that is kept")


@check("bodies in chunks that were tampered with are refused and leave nothing")
def tampered(service: Service) -> None:
    bucket, size, zeros = service.bucket("tampered"), sum(map(len, CHUNKS)), "0" * 64
    crc = ("x-amz-checksum-crc32", encoded(ALGORITHMS["CRC32"](b"".join(CHUNKS))))
    lie = ("x-amz-checksum-crc32", encoded(ALGORITHMS["CRC32"](b"other")))
    refusals: dict[str, tuple[Chunked, int | None, set[tuple[int, str]]]] = {
        "first-signature": (Chunked(CHUNKS, forged={0: zeros}), None, {(403, "SignatureDoesNotMatch")}),
        "later-signature": (Chunked(CHUNKS, forged={2: zeros}), None, {(403, "SignatureDoesNotMatch")}),
        "last-signature": (Chunked(CHUNKS, forged={3: zeros}), None, {(403, "SignatureDoesNotMatch")}),
        "trailer-signature": (Chunked(CHUNKS, True, crc, {4: zeros}), None, {(403, "SignatureDoesNotMatch")}),
        "no-signature": (Chunked(CHUNKS, forged={1: ""}), None, UNSIGNED_CHUNK),
        "no-signatures": (Chunked(CHUNKS, forged=dict.fromkeys(range(4), "")), None, UNSIGNED_CHUNK),
        "no-trailer-signature": (Chunked(CHUNKS, True, crc, {4: ""}), None, UNSIGNED_CHUNK),
        "signed-trailer": (Chunked(CHUNKS, True, lie), None, {(400, "BadDigest")}),
        "unsigned-trailer": (Chunked(CHUNKS, False, lie), None, {(400, "BadDigest")}),
        "too-short": (Chunked(CHUNKS), size + 1, {(400, "IncompleteBody")}),
        "too-long": (Chunked(CHUNKS), size - 1, {(400, "IncompleteBody"), (400, "InvalidRequest")}),
    }
    problems = []
    for key, (body, declared, wanted) in refusals.items():
        answer = sent(service, bucket, key, body, declared=declared)
        if (answer.status, answer.code) not in wanted:
            problems.append(f"{key}: expected one of {wanted}, got {answer}")
    # All of them are told, not just the first.
    expect(problems, [], "what was not refused as it should be")
    expect(service.reader.list_objects_v2(Bucket=bucket)["KeyCount"], 0, "objects that were left")
