"""Listing: both versions, prefixes, delimiters, pages that go on through another endpoint, and encodings."""

import urllib.parse
import xml.etree.ElementTree as ElementTree
from typing import Any

from .checksum import etag
from .harness import Service, check, expect, in_parallel, refused
from .sigv4 import Request, signed

KEYS = (
    "a",
    "a/1",
    "a/2",
    "a/b/3",
    "a0",
    "b/",
    "b/1",
    "c d/x+y",
    "logs--2024--a",
    "logs--2024--b",
    "logs--2025--a",
    "z",
    "\u00fc/1",
    "\u00fc/2",
    # Above the surrogates of UTF-16: after everything else in UTF-8, before U+FFxx in UTF-16.
    "\uff5e",
    "\U0001f980",
)


def filled(service: Service) -> str:
    bucket = service.bucket("list")
    for number, key in enumerate(KEYS):
        service.any(number).put_object(Bucket=bucket, Key=key, Body=key.encode())
    return bucket


def keys_of(page: dict[str, Any]) -> list[str]:
    return [entry["Key"] for entry in page.get("Contents", [])]


def prefixes_of(page: dict[str, Any]) -> list[str]:
    return [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]


@check("an empty bucket lists nothing")
def empty(service: Service) -> None:
    bucket = service.bucket("empty")
    page = service.reader.list_objects_v2(Bucket=bucket)
    told = (page["KeyCount"], page["IsTruncated"], page.get("Contents"), page["Name"], page["MaxKeys"])
    expect(told, (0, False, None, bucket, 1000), "the page")
    old = service.reader.list_objects(Bucket=bucket)
    expect((old["IsTruncated"], old.get("Contents"), old["MaxKeys"]), (False, None, 1000), "the page of version 1")


@check("keys are listed in the order of their bytes, with what is known of them")
def order(service: Service) -> None:
    bucket, wanted = filled(service), sorted(KEYS, key=str.encode)
    for client in service.clients:
        for call in (client.list_objects, client.list_objects_v2):
            page = call(Bucket=bucket)
            expect(keys_of(page), wanted, "the keys")
            for entry in page["Contents"]:
                told = (entry["Size"], entry["ETag"], entry["StorageClass"])
                data = entry["Key"].encode()
                expect(told, (len(data), etag(data), "STANDARD"), f"what is said of {entry['Key']}")
                expect("LastModified" in entry, True, "its time is said")


@check("prefix and delimiter fold keys")
def folding(service: Service) -> None:
    bucket = filled(service)
    cases: list[tuple[dict[str, str], list[str], list[str]]] = [
        ({"Prefix": "a"}, ["a", "a/1", "a/2", "a/b/3", "a0"], []),
        ({"Prefix": "a/", "Delimiter": "/"}, ["a/1", "a/2"], ["a/b/"]),
        ({"Prefix": "a", "Delimiter": "/"}, ["a", "a0"], ["a/"]),
        ({"Prefix": "b/", "Delimiter": "/"}, ["b/", "b/1"], []),
        ({"Prefix": "c", "Delimiter": "/"}, [], ["c d/"]),
        ({"Prefix": "logs", "Delimiter": "--"}, [], ["logs--"]),
        ({"Prefix": "logs--", "Delimiter": "--"}, [], ["logs--2024--", "logs--2025--"]),
        ({"Prefix": "\u00fc", "Delimiter": "/"}, [], ["\u00fc/"]),
        ({"Prefix": "nothing"}, [], []),
        ({"Prefix": "a/1"}, ["a/1"], []),
    ]
    for arguments, keys, prefixes in cases:
        page = service.reader.list_objects_v2(Bucket=bucket, **arguments)
        told = (keys_of(page), prefixes_of(page), page["KeyCount"])
        expect(told, (keys, prefixes, len(keys) + len(prefixes)), f"version 2 of {arguments}")
        expect({name: page.get(name) for name in arguments}, arguments, "what was asked is repeated")
        old = service.writer.list_objects(Bucket=bucket, **arguments)
        expect((keys_of(old), prefixes_of(old)), (keys, prefixes), f"version 1 of {arguments}")


@check("pages of version 2 go on through another endpoint, and have everything once")
def pages(service: Service) -> None:
    bucket, everything = filled(service), sorted(KEYS, key=str.encode)
    top = ["a", "a0", "z", "\uff5e", "\U0001f980", "logs--2024--a", "logs--2024--b", "logs--2025--a"]
    folded = sorted([*top, "a/", "b/", "c d/", "\u00fc/"], key=str.encode)
    for size in (1, 2, 3, 5, 15, 16, 17):
        expect(walk(service, bucket, size), everything, f"pages of {size}")
        expect(walk(service, bucket, size, Delimiter="/"), folded, f"folded pages of {size}")


def walk(service: Service, bucket: str, size: int, **arguments: str) -> list[str]:
    """All keys and prefixes, page by page, each page of another endpoint."""
    found: list[str] = []
    token: dict[str, str] = {}
    for number in range(100):
        page = service.any(number).list_objects_v2(Bucket=bucket, MaxKeys=size, **arguments, **token)
        here = sorted(keys_of(page) + prefixes_of(page), key=str.encode)
        expect((page["KeyCount"], page["MaxKeys"]), (len(here), size), "counts of the page")
        expect(len(here) <= size, True, "no more than asked for")
        found += here
        expect(page["IsTruncated"], "NextContinuationToken" in page, "there is a token when there is more")
        if not page["IsTruncated"]:
            return found
        token = {"ContinuationToken": page["NextContinuationToken"]}
    return found


@check("StartAfter, Marker and NextMarker")
def markers(service: Service) -> None:
    bucket, everything = filled(service), sorted(KEYS, key=str.encode)
    for after in ("a/1", "a/11", "0", "zzz", "\u00fc/1"):
        wanted = [key for key in everything if key.encode() > after.encode()]
        expect(keys_of(service.reader.list_objects_v2(Bucket=bucket, StartAfter=after)), wanted, f"after {after}")
        expect(keys_of(service.writer.list_objects(Bucket=bucket, Marker=after)), wanted, f"marker {after}")
    page = service.reader.list_objects_v2(Bucket=bucket, Prefix="a/", StartAfter="a/1")
    expect(keys_of(page), ["a/2", "a/b/3"], "after a key in a prefix")
    plain = service.reader.list_objects(Bucket=bucket, MaxKeys=2)
    told = (keys_of(plain), plain["IsTruncated"])
    expect(told, (everything[:2], True), "the first page of version 1")
    folded = service.reader.list_objects(Bucket=bucket, MaxKeys=2, Delimiter="/")
    page_told = (keys_of(folded), prefixes_of(folded), folded.get("NextMarker"))
    expect(page_told, (["a"], ["a/"], "a/"), "the first folded page of version 1")
    rest = service.writer.list_objects(Bucket=bucket, Delimiter="/", Marker=folded["NextMarker"])
    expect((keys_of(rest)[0], prefixes_of(rest)[0]), ("a0", "b/"), "the page after NextMarker")


@check("keys come encoded if asked for, and plain otherwise")
def encoding(service: Service) -> None:
    bucket, odd = service.bucket("encoding"), ["per%cent", "plus+plus", "with space", "\u00fc&<x>"]
    for key in odd:
        service.writer.put_object(Bucket=bucket, Key=key, Body=b"")
    asked: dict[str, str] = {"Bucket": bucket, "EncodingType": "url"}
    for page in (service.reader.list_objects_v2(**asked), service.reader.list_objects(**asked)):
        expect(page.get("EncodingType"), "url", "the encoding that is told")
        told = keys_of(page)
        # Both ways to write a space are in use, and read by all clients.
        expect([urllib.parse.unquote_plus(key) for key in told], odd, "the keys, decoded")
        expect("per%25cent" in told and "with space" not in told, True, "the keys are encoded")
    folded = service.reader.list_objects_v2(**asked, Delimiter="&")
    expect(list(map(urllib.parse.unquote_plus, prefixes_of(folded))), ["\u00fc&"], "the prefix, decoded")
    plain, _ = signed(Request("GET", service.endpoints[-1], f"/{bucket}", {"list-type": "2"}), service.credentials)
    tree = ElementTree.fromstring(plain.send().body)
    keys = [node.text for node in tree.iter() if node.tag.rsplit("}", 1)[-1] == "Key"]
    expect(keys, odd, "the keys when no encoding is asked for")


@check("at most 1000 keys come at once, and 1000 are deleted at once")
def thousand(service: Service) -> None:
    bucket, count = service.bucket("thousand"), 1005
    wanted = [f"key-{number:05}" for number in range(count)]

    def fill(worker: int) -> None:
        for number in range(worker, count, 16):
            service.any(number).put_object(Bucket=bucket, Key=wanted[number], Body=b"x")

    in_parallel(16, fill)
    for limit in ({}, {"MaxKeys": 5000}):
        page = service.reader.list_objects_v2(Bucket=bucket, **limit)
        expect((page["KeyCount"], page["IsTruncated"]), (1000, True), f"the first page with {limit}")
    found = walk(service, bucket, 1000)
    expect(found, wanted, "all keys")
    doomed = {"Objects": [{"Key": key} for key in wanted[:1000]], "Quiet": True}
    expect(service.writer.delete_objects(Bucket=bucket, Delete=doomed).get("Errors"), None, "errors")
    expect(keys_of(service.reader.list_objects_v2(Bucket=bucket)), wanted[1000:], "what is left")


@check("a page of nothing, and a token of nobody")
def edges(service: Service) -> None:
    bucket, call = filled(service), service.reader.list_objects_v2
    page = call(Bucket=bucket, MaxKeys=0)
    expect((page["KeyCount"], page["IsTruncated"], page.get("Contents")), (0, False, None), "no keys at most")
    refused("InvalidArgument", 400, "a made-up token", call, Bucket=bucket, ContinuationToken="made up")
    refused("InvalidArgument", 400, "fewer than none", call, Bucket=bucket, MaxKeys=-1)


@check("the owner is told if asked for")
def owner(service: Service) -> None:
    bucket = filled(service)
    asked = service.reader.list_objects_v2(Bucket=bucket, FetchOwner=True)["Contents"][0]
    expect(bool(asked.get("Owner", {}).get("ID")), True, "there is an owner")
    expect("Owner" in service.reader.list_objects_v2(Bucket=bucket)["Contents"][0], False, "it is told unasked")
