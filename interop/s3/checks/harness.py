"""How a check is written, run and told.

A check is a function with a name in plain words. It gets a `Service`, which hands out clients of its endpoints, and
raises `Wrong` when something is not as it should be. Whatever is written through one endpoint is read through another.
"""

import contextlib
import itertools
import os
import pathlib
import random
import re
import socket
import time
import traceback
import urllib.parse
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from .sigv4 import Credentials

# boto3 makes its clients at run time: there is no type that a reader or a tool could be told.
Client = Any


class Wrong(Exception):
    """Something is not as it should be."""


class Skipped(Exception):
    """What the check needs is not there."""


def expect(actual: object, wanted: object, what: str) -> None:
    if actual != wanted:
        raise Wrong(f"{what}: expected {shortened(wanted)}, got {shortened(actual)}")


def expect_in(actual: object, wanted: tuple | set | list, what: str) -> None:
    if actual not in wanted:
        raise Wrong(f"{what}: expected one of {shortened(wanted)}, got {shortened(actual)}")


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}... ({len(text)} characters)"


def refused(
    codes: str | tuple[str, ...], status: int, what: str, call: Callable[..., object], **arguments: Any
) -> None:
    """The call must be refused with one of these codes and this status."""
    wanted = (codes,) if isinstance(codes, str) else codes
    try:
        call(**arguments)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        told = error.response["ResponseMetadata"]["HTTPStatusCode"]
        # No answer to a HEAD has a body, and so no code.
        if told != status or code not in (*wanted, str(status)):
            raise Wrong(f"{what}: expected {status} {' or '.join(wanted)}, got {told} {code}: {error}") from error
        return
    raise Wrong(f"{what}: expected {status} {' or '.join(wanted)}, but it was done")


def refused_as(pairs: dict[str, int], what: str, call: Callable[..., object], **arguments: Any) -> None:
    """The call must be refused with one of these codes, each with its status."""
    code = outcome(call, **arguments)
    expect_in(code, tuple(pairs), what)
    refused(code, pairs[code], what, call, **arguments)


def outcome(call: Callable[..., object], **arguments: Any) -> str:
    """The code of the error of a call, or nothing if it was done."""
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return ""


def in_parallel(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Does it with so many threads at once, each told its number."""
    with ThreadPoolExecutor(max_workers=count) as pool:
        return list(pool.map(work, range(count)))


class Service:
    """The endpoints of a service, and what is needed to talk to them."""

    def __init__(self) -> None:
        self.endpoints = os.environ["S3_ENDPOINTS"].split()
        self.region = os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        self.credentials = self.named_credentials("AWS")
        self.run_id = os.environ.get("S3_RUN_ID", uuid.uuid4().hex[:8])
        self.numbers = itertools.count(1)
        self.buckets: list[str] = []
        self.clients = [self.client(endpoint) for endpoint in self.endpoints]

    def named_credentials(self, name: str) -> Credentials:
        """Credentials by the name that they have in the environment."""
        try:
            access = os.environ[f"{name}_ACCESS_KEY_ID"]
            return Credentials(access, os.environ[f"{name}_SECRET_ACCESS_KEY"], self.region)
        except KeyError as error:
            raise Skipped(f"{error.args[0]} is not set") from error

    def client(
        self,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
        attempts: int = 4,
        style: str = "path",
        **settings: Any,
    ) -> Client:
        """A client of an endpoint. One of a single attempt never hides what a first answer was."""
        credentials = credentials or self.credentials
        config = Config(
            signature_version=settings.pop("signature_version", "s3v4"),
            retries={"mode": "standard", "total_max_attempts": attempts},
            s3={"addressing_style": style},
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=32,
            **settings,
        )
        # A session of its own, because the default one is not for threads.
        return boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint or self.endpoints[0],
            region_name=self.region,
            aws_access_key_id=credentials.access_key,
            aws_secret_access_key=credentials.secret_key,
            config=config,
        )

    @property
    def writer(self) -> Client:
        """A client of the first endpoint."""
        return self.clients[0]

    @property
    def reader(self) -> Client:
        """A client of the last endpoint."""
        return self.clients[-1]

    def any(self, number: int) -> Client:
        """One client after the other."""
        return self.clients[number % len(self.clients)]

    def bucket_name(self, stem: str) -> str:
        """A name that no bucket has."""
        return f"{stem}-{self.run_id}-{next(self.numbers)}"

    def bucket(self, stem: str = "bucket") -> str:
        """A new bucket, which is removed in the end."""
        name = self.bucket_name(stem)
        self.writer.create_bucket(Bucket=name)
        self.buckets.append(name)
        return name

    def clean(self) -> None:
        """Removes all buckets and what is in them."""
        for name in self.buckets:
            with contextlib.suppress(ClientError, BotoCoreError):
                self.remove(name)

    def remove(self, bucket: str) -> None:
        for upload in uploads(self.writer, bucket):
            self.writer.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        pages = self.writer.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        for key in [entry["Key"] for page in pages for entry in page.get("Contents", [])]:
            self.writer.delete_object(Bucket=bucket, Key=key)
        self.writer.delete_bucket(Bucket=bucket)


def uploads(client: Client, bucket: str, **filters: Any) -> list[dict[str, Any]]:
    pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, **filters)
    return [upload for page in pages for upload in page.get("Uploads", [])]


def payload(size: int, seed: int = 1) -> bytes:
    """Bytes that no service can pack, the same for the same seed."""
    return random.Random(seed).randbytes(size)


def body_of(client: Client, bucket: str, key: str, **arguments: Any) -> bytes:
    return client.get_object(Bucket=bucket, Key=key, **arguments)["Body"].read()


Check = Callable[[Service], None]
CHECKS: list[tuple[str, str, Check]] = []


def check(name: str) -> Callable[[Check], Check]:
    """Adds a check to those that are run, in the order of the source."""

    def register(function: Check) -> Check:
        CHECKS.append((pathlib.Path(function.__code__.co_filename).stem, name, function))
        return function

    return register


def told(error: BaseException) -> str:
    """What went wrong, and where in the checks."""
    here = str(pathlib.Path(__file__).parent.parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(here)]
    ours = [frame for frame in frames if not frame.filename.endswith("harness.py")] or frames
    place = f"{pathlib.Path(ours[-1].filename).name}:{ours[-1].lineno}: " if ours else ""
    kind = "" if isinstance(error, Wrong) else f"{type(error).__name__}: "
    return f"{place}{kind}{error}"


def run_one(service: Service, name: str, function: Check) -> str:
    """Runs a check, prints its line, and returns the mark that it got."""
    started, mark, note = time.monotonic(), "✓", ""
    try:
        function(service)
    except Skipped as reason:
        mark, note = "-", f"skipped: {reason}"
    except Exception as error:  # Whatever a check stumbles over is its failure, and the others still run.
        mark, note = "✗", told(error)
    print(f"  {mark} {name} ({time.monotonic() - started:.1f} s)", flush=True)
    if note:
        print(f"      {note}", flush=True)
    return mark


def run_all(pattern: str, scenario: str) -> int:
    """Runs the checks whose module or name has the pattern, and notes what failed for whoever started this."""
    resolve_localhost()
    service = Service()
    marks: dict[str, list[str]] = {"✓": [], "-": [], "✗": []}
    chosen = [entry for entry in CHECKS if re.search(pattern, f"{entry[0]}: {entry[1]}")]
    try:
        for module, entries in itertools.groupby(chosen, key=lambda entry: entry[0]):
            print(f" {module}", flush=True)
            for _, name, run in entries:
                marks[run_one(service, name, run)].append(f"{scenario}: {module}: {name}")
    finally:
        service.clean()
    note_failures(marks["✗"])
    print(f" {len(marks['✓'])} of {len(chosen)} checks passed, {len(marks['-'])} skipped")
    return 1 if marks["✗"] or not chosen else 0


def note_failures(lines: list[str]) -> None:
    if path := os.environ.get("S3_FAILURES"):
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def resolve_localhost() -> None:
    """Lets `bucket.localhost` be this machine, which it is by RFC 6761, but not in every C library."""
    ask = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **named: Any) -> Any:
        is_local = isinstance(host, str) and host.endswith(".localhost")
        return ask("127.0.0.1" if is_local else host, *arguments, **named)

    socket.getaddrinfo = resolve


def virtual_endpoint(endpoint: str) -> str:
    """The same endpoint by a name that a bucket can be put in front of."""
    parts = urllib.parse.urlsplit(endpoint)
    is_address = re.fullmatch(r"[0-9.]+|\[.*\]", parts.netloc.rsplit(":", 1)[0] if parts.port else parts.netloc)
    name = "localhost" if is_address else parts.hostname
    return f"{parts.scheme}://{name}{f':{parts.port}' if parts.port else ''}"
