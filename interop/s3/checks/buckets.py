"""Buckets: their life, their names, and what is said of those that are not there."""

from typing import Any

from .harness import Service, check, expect, expect_in, outcome, refused
from .sigv4 import Request, signed

BAD_NAMES = ("ab", "x" * 64, "Upper", "under_score", "-dash", "dash-", "two..dots", "192.168.5.4", "xn--prefix")


@check("a bucket is made, seen through every endpoint, and removed")
def life(service: Service) -> None:
    name = service.bucket_name("life")
    made = service.writer.create_bucket(Bucket=name)
    expect(made["Location"].rstrip("/").rsplit("/", 1)[-1].split(".")[0], name, "the bucket in Location")
    for client in service.clients:
        client.head_bucket(Bucket=name)
        listed = {bucket["Name"]: bucket for bucket in client.list_buckets()["Buckets"]}
        expect(name in listed, True, "the bucket is in the list of buckets")
        expect(listed[name]["CreationDate"].tzinfo is not None, True, "the time of its creation is a time")
    service.reader.delete_bucket(Bucket=name)
    for client in service.clients:
        refused(("404", "NoSuchBucket"), 404, "head of a removed bucket", client.head_bucket, Bucket=name)


@check("making a bucket again harms nothing")
def again(service: Service) -> None:
    name = service.bucket("again")
    service.writer.put_object(Bucket=name, Key="stays", Body=b"here")
    code = outcome(service.reader.create_bucket, Bucket=name)
    # The oldest region of AWS says yes, all others name the owner.
    expect_in(code, ("", "BucketAlreadyOwnedByYou"), "making the bucket again")
    expect(service.reader.get_object(Bucket=name, Key="stays")["Body"].read(), b"here", "what was in it")


@check("a bucket with an object in it is not removed")
def not_empty(service: Service) -> None:
    name = service.bucket("full")
    service.writer.put_object(Bucket=name, Key="key", Body=b"value")
    refused("BucketNotEmpty", 409, "removing a full bucket", service.reader.delete_bucket, Bucket=name)
    service.writer.delete_object(Bucket=name, Key="key")
    service.reader.delete_bucket(Bucket=name)


@check("bad names are refused")
def names(service: Service) -> None:
    for name in BAD_NAMES:
        request, _ = signed(Request("PUT", service.endpoints[0], f"/{name}"), service.credentials)
        answer = request.send()
        expect((answer.status, answer.code), (400, "InvalidBucketName"), f"making the bucket {name!r}")


@check("names at the edge of what is allowed are taken")
def long_names(service: Service) -> None:
    stem = service.bucket_name("n")
    for name in (f"{stem}-".ljust(63, "9"), f"{stem}.with.dots", f"0{stem}"):
        service.buckets.append(name)
        service.writer.create_bucket(Bucket=name)
        service.reader.put_object(Bucket=name, Key="k", Body=b"v")
        expect(service.writer.get_object(Bucket=name, Key="k")["Body"].read(), b"v", f"an object in {name}")


@check("what is asked of a bucket that does not exist is answered with NoSuchBucket")
def missing(service: Service) -> None:
    name, client = service.bucket_name("missing"), service.writer
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "get": (client.get_object, {"Key": "k"}),
        "put": (client.put_object, {"Key": "k", "Body": b""}),
        "delete": (client.delete_object, {"Key": "k"}),
        "list v1": (client.list_objects, {}),
        "list v2": (client.list_objects_v2, {}),
        "delete many": (client.delete_objects, {"Delete": {"Objects": [{"Key": "k"}]}}),
        "multipart": (client.create_multipart_upload, {"Key": "k"}),
        "list uploads": (client.list_multipart_uploads, {}),
        "location": (client.get_bucket_location, {}),
        "remove": (client.delete_bucket, {}),
    }
    for what, (call, arguments) in calls.items():
        refused("NoSuchBucket", 404, what, call, Bucket=name, **arguments)


@check("a bucket has a location")
def location(service: Service) -> None:
    told = service.reader.get_bucket_location(Bucket=service.bucket("place"))["LocationConstraint"]
    wanted = (None, "us-east-1") if service.region == "us-east-1" else (service.region,)
    expect_in(told, wanted, "the location")
