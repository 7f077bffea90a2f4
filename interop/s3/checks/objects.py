"""Objects: put, get, head, delete, copy, ranges, metadata, and keys of every shape."""

import base64
import datetime
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from .checksum import encoded, etag, md5
from .harness import Service, Wrong, body_of, check, expect, expect_in, in_parallel, payload, refused

ODD_KEYS = (
    "with space",
    " leading and trailing ",
    "plus+plus",
    "percent%41",
    "percent%2Fslash",
    "question?mark=1&b=2",
    "hash#tag",
    "a//b",
    "//x",
    "/absolute",
    "folder/",
    "../x",
    "a/../b",
    "./dot",
    ".",
    "..",
    "quotes\"'`",
    "<xml>&amp;</xml>",
    "semi;colon:comma,at@dollar$equals=",
    "back\\slash|pipe^caret~tilde{}[]",
    "star*bang!(parens)",
    "gr\u00fc\u00dfe",
    # The same letter as one and as two code points: these are two keys.
    "caf\u00e9",
    "cafe\u0301",
    "\u4f60\u597d",
    "\U0001f980",
    "tab\there",
    "line\nbreak",
    "return\rcarriage",
    "control\x01",
    "high\uffee",
    "k" * 1024,
    "\u00fc" * 512,
)


@check("an object is put through one endpoint, and got and headed through all")
def put_get(service: Service) -> None:
    bucket = service.bucket("objects")
    for size in (0, 1, 1000, 65_536, 1_048_577, 9_000_000):
        data, key = payload(size), f"size-{size}"
        before = datetime.datetime.now(datetime.timezone.utc)
        put = service.writer.put_object(Bucket=bucket, Key=key, Body=data)
        expect(put["ETag"], etag(data), f"the tag of a put of {size} bytes")
        for client in service.clients:
            got = client.get_object(Bucket=bucket, Key=key)
            expect(got["Body"].read() == data, True, f"{size} bytes come back as they were")
            head = client.head_object(Bucket=bucket, Key=key)
            for answer in (got, head):
                told = (answer["ContentLength"], answer["ETag"], answer["AcceptRanges"])
                expect(told, (size, etag(data), "bytes"), f"length, tag and ranges of {size} bytes")
                age = abs(answer["LastModified"] - before)
                expect(age < datetime.timedelta(minutes=1), True, "it was modified now")


@check("an overwritten or deleted object is so at once for everybody")
def overwrite(service: Service) -> None:
    bucket = service.bucket("overwrite")
    for number in range(30):
        data = f"value {number}".encode()
        service.any(number).put_object(Bucket=bucket, Key="key", Body=data)
        expect(body_of(service.any(number + 1), bucket, "key"), data, f"the value after write {number}")
    for number in range(10):
        service.any(number).put_object(Bucket=bucket, Key="key", Body=b"here")
        service.any(number + 1).delete_object(Bucket=bucket, Key="key")
        refused("NoSuchKey", 404, "get", service.any(number + 2).get_object, Bucket=bucket, Key="key")


@check("deleting is idempotent, and what is not there is NoSuchKey")
def delete(service: Service) -> None:
    bucket = service.bucket("delete")
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"value")
    for client in (service.reader, service.writer, service.reader):
        status = client.delete_object(Bucket=bucket, Key="key")["ResponseMetadata"]["HTTPStatusCode"]
        expect(status, 204, "the status of a delete")
    refused("NoSuchKey", 404, "get", service.writer.get_object, Bucket=bucket, Key="key")
    refused("404", 404, "head", service.reader.head_object, Bucket=bucket, Key="key")


@check("many objects are deleted at once")
def delete_many(service: Service) -> None:
    bucket = service.bucket("delete-many")
    keys = ["a", "b/c", "with space", "<&>\"'", "gr\u00fc\u00dfe", "stays"]
    for key in keys:
        service.writer.put_object(Bucket=bucket, Key=key, Body=b"x")
    doomed = [{"Key": key} for key in [*keys[:3], "never-there"]]
    told = service.reader.delete_objects(Bucket=bucket, Delete={"Objects": doomed})
    expect({entry["Key"] for entry in told["Deleted"]}, {*keys[:3], "never-there"}, "what was deleted")
    expect(told.get("Errors", []), [], "errors")
    rest = [{"Key": key} for key in keys[3:5]]
    quiet = service.writer.delete_objects(Bucket=bucket, Delete={"Objects": rest, "Quiet": True})
    expect(quiet.get("Deleted", []), [], "what a quiet delete says")
    listed = [entry["Key"] for entry in service.reader.list_objects_v2(Bucket=bucket)["Contents"]]
    expect(listed, ["stays"], "what is left")


@check("no more than 1000 objects are deleted at once")
def delete_too_many(service: Service) -> None:
    bucket = service.bucket("delete-too-many")
    doomed = {"Objects": [{"Key": f"k{number}"} for number in range(1001)]}
    refused("MalformedXML", 400, "1001 keys", service.writer.delete_objects, Bucket=bucket, Delete=doomed)
    refused("MalformedXML", 400, "no key", service.writer.delete_objects, Bucket=bucket, Delete={"Objects": []})


@check("keys of every shape are kept as they are")
def odd_keys(service: Service) -> None:
    bucket = service.bucket("odd-keys")
    # The others leave no room for the name of a copy.
    copied = [key for key in ODD_KEYS if len(key.encode()) < 1024]

    def problems(key: str) -> str:
        """Each on its own, so that one bad key does not hide the others."""
        data = b"value of " + key.encode()
        try:
            service.writer.put_object(Bucket=bucket, Key=key, Body=data)
            expect(body_of(service.reader, bucket, key), data, "the body")
            expect(service.writer.head_object(Bucket=bucket, Key=key)["ContentLength"], len(data), "the length")
            if key in copied:
                source = {"Bucket": bucket, "Key": key}
                service.reader.copy_object(Bucket=bucket, Key=key + "2", CopySource=source)
            listed = service.reader.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", [])
            expect([entry["Key"] for entry in listed], [key], "the listed key")
        except Exception as error:  # The key is what matters here, whatever happens to it.
            return f"{key[:40]!r}: {error}"
        return ""

    found = [problem for problem in map(problems, ODD_KEYS) if problem]
    if found:
        raise Wrong("; ".join(found))
    pages = service.reader.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 7})
    listed = [entry["Key"] for page in pages for entry in page["Contents"]]
    copies = [key + "2" for key in copied]
    expect(listed, sorted([*ODD_KEYS, *copies], key=str.encode), "all keys, in the order of their bytes")
    for key in listed:
        service.writer.delete_object(Bucket=bucket, Key=key)
    expect(service.reader.list_objects_v2(Bucket=bucket)["KeyCount"], 0, "keys after all were deleted")


@check("a key longer than 1024 bytes is refused")
def long_key(service: Service) -> None:
    bucket = service.bucket("long-key")
    for key in ("k" * 1025, "\u00fc" * 513):
        refused("KeyTooLongError", 400, "put", service.writer.put_object, Bucket=bucket, Key=key, Body=b"")


@check("user metadata and standard headers come back")
def metadata(service: Service) -> None:
    bucket = service.bucket("metadata")
    wanted: dict[str, Any] = {
        "CacheControl": "max-age=60, public",
        "ContentDisposition": 'attachment; filename="a b.txt"',
        "ContentEncoding": "gzip",
        "ContentLanguage": "de, en",
        "ContentType": "text/plain; charset=utf-8",
        "Metadata": {"plain": "value", "with-dash": "a, b; c=d", "empty": "", "spaced": "two  spaces"},
    }
    expires = datetime.datetime(2035, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"x", Expires=expires, **wanted)
    for call in (service.reader.head_object, service.writer.get_object):
        answer = call(Bucket=bucket, Key="key")
        expect({name: answer.get(name) for name in wanted}, wanted, "headers and metadata")
        expect(answer.get("ExpiresString"), "Wed, 02 Jan 2035 03:04:05 GMT".replace("Wed", f"{expires:%a}"), "Expires")
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"y")
    plain = service.reader.head_object(Bucket=bucket, Key="key")
    expect(plain["Metadata"], {}, "metadata after a put without")
    expect(plain["ContentType"], "binary/octet-stream", "the type of what has none")
    expect(plain.get("CacheControl"), None, "Cache-Control after a put without")


@check("names of user metadata are kept in lower case, and more than 2 KB of it are refused")
def metadata_limits(service: Service) -> None:
    bucket = service.bucket("metadata-limits")
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"", Metadata={"MixedCase": "Value"})
    kept = service.reader.head_object(Bucket=bucket, Key="key")["Metadata"]
    expect(kept, {"mixedcase": "Value"}, "the metadata")
    fits, large = {"m": "v" * 2000}, {"m": "v" * 2100}
    service.writer.put_object(Bucket=bucket, Key="fits", Body=b"", Metadata=fits)
    put = service.writer.put_object
    refused("MetadataTooLarge", 400, "2101 bytes", put, Bucket=bucket, Key="k", Body=b"", Metadata=large)


@check("a get can choose the headers of its answer")
def response_headers(service: Service) -> None:
    bucket = service.bucket("response-headers")
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"x", ContentType="text/plain")
    wanted = {
        "ContentType": "image/png",
        "ContentDisposition": 'attachment; filename="x.png"',
        "CacheControl": "no-store",
        "ContentLanguage": "fr",
        "ContentEncoding": "identity",
    }
    chosen = {f"Response{name}": value for name, value in wanted.items()}
    answer = service.reader.get_object(Bucket=bucket, Key="key", **chosen)
    expect({name: answer.get(name) for name in wanted}, wanted, "the chosen headers")


@check("Content-MD5 is checked")
def content_md5(service: Service) -> None:
    bucket, put = service.bucket("content-md5"), service.writer.put_object
    put(Bucket=bucket, Key="good", Body=b"data", ContentMD5=encoded(md5(b"data")))
    wrong = encoded(md5(b"other"))
    refused("BadDigest", 400, "a wrong digest", put, Bucket=bucket, Key="bad", Body=b"data", ContentMD5=wrong)
    short = base64.b64encode(b"short").decode()
    refused("InvalidDigest", 400, "no digest", put, Bucket=bucket, Key="bad", Body=b"data", ContentMD5=short)
    refused("404", 404, "what was refused", service.reader.head_object, Bucket=bucket, Key="bad")


@check("ranges are served as asked")
def ranges(service: Service) -> None:
    bucket, data = service.bucket("ranges"), payload(3_000_000)
    service.writer.put_object(Bucket=bucket, Key="key", Body=data)
    size = len(data)
    cases = {
        "bytes=0-0": (0, 1),
        "bytes=0-9": (0, 10),
        "bytes=1048570-1048590": (1_048_570, 1_048_591),
        "bytes=2999990-": (2_999_990, size),
        "bytes=-5": (size - 5, size),
        "bytes=-99999999": (0, size),
        "bytes=2999999-99999999": (size - 1, size),
    }
    for asked, (first, end) in cases.items():
        got = service.reader.get_object(Bucket=bucket, Key="key", Range=asked)
        told = (got["ResponseMetadata"]["HTTPStatusCode"], got.get("ContentRange"), got["ContentLength"])
        expect(told, (206, f"bytes {first}-{end - 1}/{size}", end - first), f"the answer to {asked}")
        expect(got["Body"].read() == data[first:end], True, f"the bytes of {asked}")
    head = service.reader.head_object(Bucket=bucket, Key="key", Range="bytes=10-19")
    expect((head["ContentLength"], head.get("ContentRange")), (10, f"bytes 10-19/{size}"), "head of a range")


@check("ranges that cannot be served are refused, and nonsense gives no part of an object")
def bad_ranges(service: Service) -> None:
    bucket, get = service.bucket("bad-ranges"), service.reader.get_object
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"0123456789")
    service.writer.put_object(Bucket=bucket, Key="empty", Body=b"")
    for key, asked in (("key", "bytes=10-"), ("key", "bytes=99-100"), ("key", "bytes=-0"), ("empty", "bytes=0-0")):
        refused("InvalidRange", 416, f"{asked} of {key}", get, Bucket=bucket, Key=key, Range=asked)
    for asked in ("bytes=5-4", "lines=1-2", "bytes=x-y"):
        # AWS takes nonsense for no range at all; to refuse it is stricter, and loses nobody a byte.
        try:
            got = get(Bucket=bucket, Key="key", Range=asked)
        except ClientError as error:
            expect(error.response["ResponseMetadata"]["HTTPStatusCode"], 400, f"the refusal of {asked}")
            continue
        told = (got["ResponseMetadata"]["HTTPStatusCode"], got["Body"].read())
        expect(told, (200, b"0123456789"), f"the answer to {asked}")


@check("a copy has the bytes and the metadata of its source, or new metadata")
def copy(service: Service) -> None:
    one, two, data = service.bucket("copy-from"), service.bucket("copy-to"), payload(200_000)
    about: dict[str, Any] = {"ContentType": "text/css", "Metadata": {"a": "b"}}
    service.writer.put_object(Bucket=one, Key="source +%/key", Body=data, **about)
    source = {"Bucket": one, "Key": "source +%/key"}
    for bucket in (one, two):
        told = service.reader.copy_object(Bucket=bucket, Key="copy", CopySource=source)["CopyObjectResult"]
        expect(told["ETag"], etag(data), "the tag of the copy")
        expect("LastModified" in told, True, "the time of the copy")
        got = service.writer.get_object(Bucket=bucket, Key="copy")
        expect(got["Body"].read() == data, True, "the bytes of the copy")
        expect({name: got[name] for name in about}, about, "what is said of the copy")
    new: dict[str, Any] = {"ContentType": "text/html", "Metadata": {"c": "d"}}
    service.writer.copy_object(Bucket=two, Key="new", CopySource=source, MetadataDirective="REPLACE", **new)
    head = service.reader.head_object(Bucket=two, Key="new")
    expect({name: head[name] for name in new}, new, "what was said anew")


@check("a copy onto itself needs a change, and then is one")
def copy_onto_itself(service: Service) -> None:
    bucket = service.bucket("copy-self")
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"data", Metadata={"old": "1"})
    here: dict[str, Any] = {"Bucket": bucket, "Key": "key", "CopySource": {"Bucket": bucket, "Key": "key"}}
    refused("InvalidRequest", 400, "no change", service.writer.copy_object, **here)
    service.writer.copy_object(**here, MetadataDirective="REPLACE", Metadata={"new": "2"})
    got = service.reader.get_object(Bucket=bucket, Key="key")
    expect((got["Metadata"], got["Body"].read()), ({"new": "2"}, b"data"), "metadata and bytes")


@check("a copy keeps to its conditions")
def copy_conditions(service: Service) -> None:
    bucket, data = service.bucket("copy-if"), b"data"
    put = service.writer.put_object(Bucket=bucket, Key="key", Body=data)
    modified = service.reader.head_object(Bucket=bucket, Key="key")["LastModified"]
    past, day = modified - datetime.timedelta(days=1), datetime.timedelta(days=1)
    here: dict[str, Any] = {"Bucket": bucket, "Key": "copy", "CopySource": {"Bucket": bucket, "Key": "key"}}
    good: list[dict[str, Any]] = [
        {"CopySourceIfMatch": put["ETag"]},
        {"CopySourceIfNoneMatch": etag(b"other")},
        {"CopySourceIfModifiedSince": past},
        {"CopySourceIfUnmodifiedSince": modified + day},
    ]
    bad: list[dict[str, Any]] = [
        {"CopySourceIfMatch": etag(b"other")},
        {"CopySourceIfNoneMatch": put["ETag"]},
        {"CopySourceIfModifiedSince": modified},
        {"CopySourceIfUnmodifiedSince": past},
    ]
    for condition in good:
        service.reader.copy_object(**here, **condition)
    for condition in bad:
        refused("PreconditionFailed", 412, str(condition), service.reader.copy_object, **here, **condition)


@check("a copy of nothing is refused")
def copy_nothing(service: Service) -> None:
    bucket, copy_object = service.bucket("copy-nothing"), service.writer.copy_object
    no_key = {"Bucket": bucket, "Key": "missing"}
    refused("NoSuchKey", 404, "no key", copy_object, Bucket=bucket, Key="k", CopySource=no_key)
    no_bucket = {"Bucket": service.bucket_name("nowhere"), "Key": "k"}
    refused("NoSuchBucket", 404, "no bucket", copy_object, Bucket=bucket, Key="k", CopySource=no_bucket)


@check("a get keeps to its conditions")
def conditional_get(service: Service) -> None:
    bucket, data = service.bucket("get-if"), b"data"
    tag = service.writer.put_object(Bucket=bucket, Key="key", Body=data)["ETag"]
    modified = service.writer.head_object(Bucket=bucket, Key="key")["LastModified"]
    past = modified - datetime.timedelta(days=1)
    other = etag(b"other")
    cases: list[tuple[dict[str, Any], int]] = [
        ({"IfMatch": tag}, 200),
        ({"IfMatch": "*"}, 200),
        ({"IfMatch": other}, 412),
        ({"IfNoneMatch": other}, 200),
        ({"IfNoneMatch": tag}, 304),
        ({"IfNoneMatch": "*"}, 304),
        ({"IfModifiedSince": past}, 200),
        ({"IfModifiedSince": modified}, 304),
        ({"IfUnmodifiedSince": modified}, 200),
        ({"IfUnmodifiedSince": past}, 412),
        # A tag says more than a time.
        ({"IfMatch": tag, "IfUnmodifiedSince": past}, 200),
        ({"IfNoneMatch": tag, "IfModifiedSince": past}, 304),
        ({"IfNoneMatch": other, "IfModifiedSince": modified}, 200),
    ]
    for condition, status in cases:
        for call in (service.reader.get_object, service.writer.head_object):
            expect_status(status, f"{call.__name__} if {condition}", call, Bucket=bucket, Key="key", **condition)


def expect_status(status: int, what: str, call: Callable[..., Any], **arguments: Any) -> None:
    if status == 200:
        told = call(**arguments)["ResponseMetadata"]["HTTPStatusCode"]
        expect(told, 200, what)
    else:
        refused(("304", "NotModified") if status == 304 else "PreconditionFailed", status, what, call, **arguments)


@check("16 threads that overwrite one object leave one of their values, whole")
def overwrite_race(service: Service) -> None:
    bucket = service.bucket("overwrite-race")
    values = [bytes([65 + number]) * 300_000 for number in range(16)]
    put = lambda number: service.any(number).put_object(Bucket=bucket, Key="key", Body=values[number])
    in_parallel(16, put)
    seen = {body_of(client, bucket, "key") for client in service.clients}
    expect(len(seen), 1, "different values that the endpoints have")
    expect_in(seen.pop()[:1], [value[:1] for value in values], "the first byte")
    whole = body_of(service.reader, bucket, "key")
    expect(whole in values, True, "it is one of those that were written")
