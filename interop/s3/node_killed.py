#!/usr/bin/env python3
"""One of the nodes is killed with -9 while clients write through it. They go on through the others.

Workers put objects, one counts by compare-and-swap, one uploads in parts; all of them prefer the endpoint that dies.
No write that was acknowledged may be lost, through whichever endpoint it is read, nor after the node has come back. A
write without an answer may have been done or not, so the count may be a little higher than what was acknowledged.

`interop/s3/run --only node_killed` gives it what it needs: S3_NODE_PIDS, the processes behind S3_ENDPOINTS in the same
order, and S3_RESTART_NODE, a command that takes the number of a node and returns when that is ready.
"""

import functools
import itertools
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError

from checks.harness import Service, Skipped, Wrong, body_of, check, expect, payload, run_all

VICTIM = 1
WORKERS = 6
PUTS_BEFORE, PUTS_AFTER = 20, 40
COUNTS_BEFORE, COUNTS_AFTER = 10, 20
PART_BYTES = 5 * 1024 * 1024
PATIENCE_SECONDS = 60
T = TypeVar("T")


class Story:
    """What the workers share: their clients, and the moment of death."""

    def __init__(self, service: Service) -> None:
        if "S3_NODE_PIDS" not in os.environ or len(service.endpoints) < 3:
            raise Skipped("the nodes are not ours to kill")
        self.pid = int(os.environ["S3_NODE_PIDS"].split()[VICTIM])
        self.clients = [service.client(endpoint, attempts=1) for endpoint in service.endpoints]
        self.bucket = service.bucket("killed")
        # All workers and whoever kills meet twice: when all are in the middle of their work, and after the death.
        self.middle, self.dead = threading.Barrier(WORKERS + 3), threading.Event()

    def insist(self, what: str, call: Callable[[Any], T]) -> T:
        """Asks one endpoint after the other until one of them does it, the one that dies first."""
        return self.insist_counting(what, call)[0]

    def insist_counting(self, what: str, call: Callable[[Any], T]) -> tuple[T, int]:
        """The same, and how many tries before have no answer and may have been done nonetheless."""
        deadline, unknown = time.monotonic() + PATIENCE_SECONDS, 0
        for number in itertools.count(VICTIM):
            try:
                return call(self.clients[number % len(self.clients)]), unknown
            except EndpointConnectionError as error:
                # Nobody was there: it was not done.
                last: Exception = error
            except HTTPClientError as error:
                unknown, last = unknown + 1, error
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                    error.unknown = unknown  # type: ignore[attr-defined]
                    raise
                unknown, last = unknown + 1, error
            if time.monotonic() > deadline:
                raise Wrong(f"{what}: not done within {PATIENCE_SECONDS} s: {last}")
            time.sleep(0.05)
        raise AssertionError("there is always another endpoint")

    def kill(self) -> None:
        self.middle.wait(PATIENCE_SECONDS)
        os.kill(self.pid, signal.SIGKILL)
        self.dead.set()


def put_objects(story: Story, worker: int) -> list[str]:
    """Puts objects before, during and after the death; returns the keys that were acknowledged."""
    keys = []
    for number in range(PUTS_BEFORE + PUTS_AFTER):
        if number == PUTS_BEFORE:
            story.middle.wait(PATIENCE_SECONDS)
        key = f"worker-{worker}/object-{number:03}"
        place = {"Bucket": story.bucket, "Key": key, "Body": value_of(key)}
        story.insist(key, lambda client: client.put_object(**place))
        keys.append(key)
    return keys


def value_of(key: str) -> bytes:
    return payload(10_000 + len(key), seed=sum(key.encode()))


def count(story: Story) -> tuple[int, int]:
    """Counts; returns how many increments were acknowledged, and how many more there may be."""
    done, maybe = 0, 0
    story.insist("the counter", lambda client: client.put_object(Bucket=story.bucket, Key="count", Body=b"0"))
    while done < COUNTS_BEFORE + COUNTS_AFTER:
        if done == COUNTS_BEFORE and not story.dead.is_set():
            story.middle.wait(PATIENCE_SECONDS)
            story.dead.wait(PATIENCE_SECONDS)
        read = story.insist("a read of the count", lambda client: client.get_object(Bucket=story.bucket, Key="count"))
        body = str(int(read["Body"].read()) + 1).encode()
        place = {"Bucket": story.bucket, "Key": "count", "Body": body, "IfMatch": read["ETag"]}
        try:
            maybe += story.insist_counting("a count", lambda client: client.put_object(**place))[1] > 0
            done += 1
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("PreconditionFailed", "ConditionalRequestConflict"):
                raise
            # Nobody else counts: it was a try of our own, without an answer, that was done.
            if not error.unknown:  # type: ignore[attr-defined]
                raise Wrong("a count was refused although nobody else counts") from error
            maybe += 1
    return done, maybe


def upload(story: Story) -> bytes:
    """Uploads an object in three parts, of which the second follows the death; returns its bytes."""
    parts, told = [payload(PART_BYTES, 1), payload(PART_BYTES, 2), b"end"], []
    place: dict[str, Any] = {"Bucket": story.bucket, "Key": "in parts"}
    started = story.insist("an upload", lambda client: client.create_multipart_upload(**place))
    place["UploadId"] = started["UploadId"]
    for number, part in enumerate(parts, start=1):
        if number == 2:
            story.middle.wait(PATIENCE_SECONDS)
        put = lambda client: client.upload_part(**place, PartNumber=number, Body=part)
        told.append({"PartNumber": number, "ETag": story.insist(f"part {number}", put)["ETag"]})
    try:
        story.insist("completion", lambda c: c.complete_multipart_upload(**place, MultipartUpload={"Parts": told}))
    except ClientError as error:
        # A try without an answer may have completed it: then there is nothing left to complete.
        if error.response["Error"]["Code"] != "NoSuchUpload" or not error.unknown:  # type: ignore[attr-defined]
            raise
    return b"".join(parts)


def verify(story: Story, alive: list[int], keys: list[str], counted: tuple[int, int], data: bytes) -> None:
    """Everything that was acknowledged is there, through each of these endpoints."""
    done, maybe = counted
    for client in (story.clients[index] for index in alive):
        with ThreadPoolExecutor(8) as pool:
            bodies = pool.map(functools.partial(body_of, client, story.bucket), keys)
            lost = [key for key, body in zip(keys, bodies) if body != value_of(key)]
        expect(lost, [], "objects that are not what was written")
        total = int(body_of(client, story.bucket, "count"))
        expect(done <= total <= done + maybe, True, f"the count {total} is between {done} and {done + maybe}")
        expect(body_of(client, story.bucket, "in parts") == data, True, "the object in parts is whole")
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=story.bucket, Prefix="worker-")
        listed = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        expect(listed, sorted(keys), "the listed keys")


@check("what was acknowledged outlives a node that is killed, and is there when it comes back")
def killed(service: Service) -> None:
    story = Story(service)
    with ThreadPoolExecutor(WORKERS + 3) as pool:
        putting = [pool.submit(put_objects, story, worker) for worker in range(WORKERS)]
        counting, uploading = pool.submit(count, story), pool.submit(upload, story)
        pool.submit(story.kill).result()
        keys = [key for worker in putting for key in worker.result()]
        counted, data = counting.result(), uploading.result()
    others = [index for index in range(len(service.endpoints)) if index != VICTIM]
    verify(story, others, keys, counted, data)
    subprocess.run([*shlex.split(os.environ["S3_RESTART_NODE"]), str(VICTIM + 1)], check=True)
    verify(story, [VICTIM, *others], keys, counted, data)


if __name__ == "__main__":
    sys.exit(run_all("", "node_killed"))
