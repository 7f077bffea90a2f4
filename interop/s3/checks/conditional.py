"""Writes with a condition: made once, or upon what was read, whichever endpoint they go through.

These are what locks and logs are built of on S3, so they are raced: of many that create, one wins; of many that
count, no increment is lost.
"""

import threading
from typing import Any

from .checksum import etag
from .harness import Service, Wrong, body_of, check, expect, expect_in, in_parallel, outcome, refused
from .multipart import PART_BYTES_MIN, complete, upload

# AWS may also say that another write was under way; one who loses with either may try again.
LOST = ("PreconditionFailed", "ConditionalRequestConflict")


@check("a put if there is none is done once, and again after a delete")
def create_once(service: Service) -> None:
    bucket = service.bucket("create-once")
    for round_number in range(3):
        put = service.any(round_number).put_object
        put(Bucket=bucket, Key="key", Body=b"first", IfNoneMatch="*")
        for client in service.clients:
            told: dict[str, Any] = {"Bucket": bucket, "Key": "key", "Body": b"second", "IfNoneMatch": "*"}
            refused("PreconditionFailed", 412, "a second put", client.put_object, **told)
            expect(body_of(client, bucket, "key"), b"first", "what is there")
        service.any(round_number + 1).delete_object(Bucket=bucket, Key="key")


@check("a put upon a tag is done if the tag is still that")
def put_upon(service: Service) -> None:
    bucket = service.bucket("put-upon")
    tag = service.writer.put_object(Bucket=bucket, Key="key", Body=b"one")["ETag"]
    put = service.reader.put_object
    new = put(Bucket=bucket, Key="key", Body=b"two", IfMatch=tag)["ETag"]
    expect(new, etag(b"two"), "the new tag")
    refused("PreconditionFailed", 412, "the old tag", put, Bucket=bucket, Key="key", Body=b"three", IfMatch=tag)
    expect(body_of(service.writer, bucket, "key"), b"two", "what is there")
    refused("NoSuchKey", 404, "no object", put, Bucket=bucket, Key="missing", Body=b"x", IfMatch=tag)
    refused("404", 404, "what was refused", service.writer.head_object, Bucket=bucket, Key="missing")
    put(Bucket=bucket, Key="key", Body=b"four", IfMatch=new.strip('"'))
    expect(body_of(service.writer, bucket, "key"), b"four", "after a put upon a tag without quotes")


@check("a put if there is none of a certain tag happens unless there is that one")
def put_unless(service: Service) -> None:
    bucket, put = service.bucket("put-unless"), service.writer.put_object
    put(Bucket=bucket, Key="k", Body=b"one", IfNoneMatch=etag(b"other"))
    refused("PreconditionFailed", 412, "that tag", put, Bucket=bucket, Key="k", Body=b"two", IfNoneMatch=etag(b"one"))
    expect(body_of(service.reader, bucket, "k"), b"one", "after what was refused")


@check("an upload is completed upon its condition, and can be after a refusal")
def complete_upon(service: Service) -> None:
    bucket, data = service.bucket("complete-upon"), b"in parts"
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"first")
    first = etag(b"first")
    started, parts = upload(service, bucket, "key", [data])
    told: dict[str, Any] = {"Bucket": bucket, "Key": "key", "UploadId": started, "MultipartUpload": {"Parts": parts}}
    end = service.reader.complete_multipart_upload
    refused("PreconditionFailed", 412, "complete if there is none", end, **told, IfNoneMatch="*")
    refused("PreconditionFailed", 412, "complete upon another tag", end, **told, IfMatch=etag(b"other"))
    expect(body_of(service.writer, bucket, "key"), b"first", "what is there after refusals")
    end(**told, IfMatch=first)
    expect(body_of(service.writer, bucket, "key"), data, "what is there after the completion")
    started, parts = upload(service, bucket, "new", [data])
    told |= {"Key": "new", "UploadId": started, "MultipartUpload": {"Parts": parts}}
    refused("NoSuchKey", 404, "complete upon the tag of nothing", end, **told, IfMatch=first)
    end(**told, IfNoneMatch="*")
    expect(body_of(service.writer, bucket, "new"), data, "what was completed where there was none")


@check("an object is deleted upon its tag")
def delete_upon(service: Service) -> None:
    bucket, delete = service.bucket("delete-upon"), service.reader.delete_object
    tag = service.writer.put_object(Bucket=bucket, Key="key", Body=b"one")["ETag"]
    refused("PreconditionFailed", 412, "another tag", delete, Bucket=bucket, Key="key", IfMatch=etag(b"other"))
    expect(body_of(service.writer, bucket, "key"), b"one", "what is there after a refusal")
    delete(Bucket=bucket, Key="key", IfMatch=tag)
    refused("404", 404, "the deleted object", service.writer.head_object, Bucket=bucket, Key="key")
    refused("NoSuchKey", 404, "delete of nothing", delete, Bucket=bucket, Key="key", IfMatch=tag)


@check("of 16 that create one object at once, exactly one wins")
def create_race(service: Service) -> None:
    bucket = service.bucket("create-race")
    clients = [service.client(service.endpoints[n % len(service.endpoints)], attempts=1) for n in range(16)]
    for round_number in range(8):
        key, ready = f"key-{round_number}", threading.Barrier(16)

        def create(number: int) -> str:
            ready.wait()
            body = f"of {number}".encode()
            return outcome(clients[number].put_object, Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")

        codes = in_parallel(16, create)
        expect(codes.count(""), 1, f"winners of round {round_number}, of {codes}")
        for code in filter(None, codes):
            expect_in(code, LOST, "what losers are told")
        body = f"of {codes.index('')}".encode()
        for client in service.clients:
            expect(body_of(client, bucket, key), body, "what is there is of the winner")


@check("of 4 that complete an upload of one new object at once, exactly one wins")
def complete_race(service: Service) -> None:
    bucket, ready = service.bucket("complete-race"), threading.Barrier(4)
    bodies = [bytes([65 + number]) * 1000 for number in range(4)]
    started = [upload(service, bucket, "key", [body]) for body in bodies]
    clients = [service.client(service.endpoints[n % len(service.endpoints)], attempts=1) for n in range(4)]

    def finish(number: int) -> str:
        upload_id, parts = started[number]
        ready.wait()
        end = clients[number].complete_multipart_upload
        told = {"Bucket": bucket, "Key": "key", "UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
        return outcome(end, **told, IfNoneMatch="*")

    codes = in_parallel(4, finish)
    expect(codes.count(""), 1, f"winners, of {codes}")
    expect(body_of(service.reader, bucket, "key"), bodies[codes.index("")], "what is there is of the winner")


@check("8 threads that count by compare-and-swap lose no increment")
def counter(service: Service) -> None:
    bucket, threads, each = service.bucket("counter"), 8, 10
    service.writer.put_object(Bucket=bucket, Key="count", Body=b"0")
    clients = [service.client(service.endpoints[n % len(service.endpoints)], attempts=1) for n in range(threads)]
    totals = in_parallel(threads, lambda number: count_up(clients[number], bucket, each))
    for client in service.clients:
        expect(int(body_of(client, bucket, "count")), threads * each, "the count")
    # Whoever wrote a number was the only one to do so.
    written = [number for total in totals for number in total]
    expect(sorted(written), list(range(1, threads * each + 1)), "the numbers that were written")


def count_up(client: Any, bucket: str, times: int) -> list[int]:
    """Counts so many times, each time until it was done; says which numbers it wrote."""
    written: list[int] = []
    for _ in range(times * 400):
        if len(written) == times:
            return written
        read = client.get_object(Bucket=bucket, Key="count")
        number = int(read["Body"].read()) + 1
        body = str(number).encode()
        code = outcome(client.put_object, Bucket=bucket, Key="count", Body=body, IfMatch=read["ETag"])
        expect_in(code, ("", *LOST), "the answer to a compare-and-swap")
        written += [] if code else [number]
    raise Wrong(f"after {times * 400} tries only {len(written)} of {times} increments were done")


@check("of 8 that replace or delete one object upon the same tag, exactly one wins")
def replace_race(service: Service) -> None:
    bucket, ready = service.bucket("replace-race"), threading.Barrier(8)
    tag = service.writer.put_object(Bucket=bucket, Key="key", Body=b"old")["ETag"]
    clients = [service.client(service.endpoints[n % len(service.endpoints)], attempts=1) for n in range(8)]

    def replace(number: int) -> str:
        """Every other one deletes instead: that is a change as well."""
        ready.wait()
        if number % 2:
            return outcome(clients[number].delete_object, Bucket=bucket, Key="key", IfMatch=tag)
        body = f"of {number}".encode()
        return outcome(clients[number].put_object, Bucket=bucket, Key="key", Body=body, IfMatch=tag)

    codes = in_parallel(8, replace)
    expect(codes.count(""), 1, f"winners, of {codes}")
    for code in filter(None, codes):
        expect_in(code, (*LOST, "NoSuchKey"), "what losers are told")


@check("an object in parts has a tag that a put can be upon")
def put_upon_parts(service: Service) -> None:
    bucket, data = service.bucket("upon-parts"), [b"a" * PART_BYTES_MIN, b"b"]
    started, parts = upload(service, bucket, "key", data)
    tag = complete(service, bucket, "key", started, parts)["ETag"]
    service.reader.put_object(Bucket=bucket, Key="key", Body=b"new", IfMatch=tag)
    expect(body_of(service.writer, bucket, "key"), b"new", "what is there")
