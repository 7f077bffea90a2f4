#!/usr/bin/env python3
"""What greenstalk's users do, through one node and another. Every check has tubes of its own.

SYNOD_BEANSTALK says where: HOST:PORT, or several with commas between them. It passes with beanstalkd itself, too.
"""

import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable

import greenstalk
from greenstalk import Client

CHECKS: list[tuple[str, Callable[["Nodes"], None]]] = []
RUN = f"{random.getrandbits(48):x}"


class Wrong(Exception):
    """Something is not as it should be."""


class Nodes:
    """Clients for the nodes, with a tube of their own."""

    def __init__(self, number: int) -> None:
        self.tube = f"check-{RUN}-{number}"
        addresses = [address.rsplit(":", 1) for address in os.environ["SYNOD_BEANSTALK"].split(",")]
        self.addresses = [(host, int(port)) for host, port in addresses]
        self.clients: list[Client] = []

    def producer(self) -> Client:
        return self.client(self.addresses[0])

    def worker(self) -> Client:
        return self.client(self.addresses[-1])

    def client(self, address: tuple[str, int]) -> Client:
        client = Client(address, encoding=None, use=self.tube, watch=self.tube)
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()


def check(name: str) -> Callable[[Callable[[Nodes], None]], Callable[[Nodes], None]]:
    def add(function: Callable[[Nodes], None]) -> Callable[[Nodes], None]:
        CHECKS.append((name, function))
        return function

    return add


def same(actual: object, wanted: object, what: str) -> None:
    if actual != wanted:
        raise Wrong(f"{what}: expected {wanted!r:.200}, got {actual!r:.200}")


def refused(error: type[Exception], what: str, call: Callable[[], object]) -> None:
    try:
        result = call()
    except error:
        return
    raise Wrong(f"{what}: expected {error.__name__}, got {result!r:.200}")


def between(seconds: float, least: float, most: float, what: str) -> None:
    if not least <= seconds <= most:
        raise Wrong(f"{what} took {seconds:.2f} s, expected {least} to {most}")


@check("a job is put, reserved and deleted")
def put_reserve_delete(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    number = producer.put(b"hello")
    job = worker.reserve(timeout=5)
    same((job.id, job.body), (number, b"hello"), "the job")
    same(producer.peek(number).body, b"hello", "what is peeked at")
    refused(greenstalk.NotFoundError, "another connection deletes it", lambda: producer.delete(number))
    worker.delete(job)
    refused(greenstalk.NotFoundError, "it is gone", lambda: producer.peek(number))
    refused(greenstalk.NotFoundError, "it is deleted once", lambda: worker.delete(job))


@check("any bytes are a body, and the longest one is told")
def bodies(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    longest = producer.stats()["max-job-size"]
    whole = bytes(range(256)) + b"\r\nquit\r\n"
    for body in [b"", whole, random.randbytes(longest)]:
        producer.put(body)
        job = worker.reserve(timeout=5)
        same(job.body, body, f"a body of {len(body)} bytes")
        worker.delete(job)
    refused(greenstalk.JobTooBigError, "one byte more", lambda: producer.put(bytes(longest + 1)))
    producer.put(b"after it")
    same(worker.reserve(timeout=5).body, b"after it", "the connection goes on")


@check("smaller priorities go first, equal ones in order")
def priorities(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    for priority in [5, 2**32 - 1, 0, 5, 0]:
        producer.put(b"%d" % priority, priority=priority)
    jobs = [worker.reserve(timeout=5) for _ in range(5)]
    same([job.body for job in jobs], [b"0", b"0", b"5", b"5", b"4294967295"], "the order")
    same(jobs[0].id < jobs[1].id, True, "the first of two equal ones comes first")


@check("a delayed job waits for its time")
def delay(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    begun = time.monotonic()
    number = producer.put(b"later", delay=2)
    same(producer.stats_job(number)["state"], "delayed", "its state")
    same(producer.peek_delayed().id, number, "the delayed job")
    refused(greenstalk.NotFoundError, "none is ready", producer.peek_ready)
    refused(greenstalk.TimedOutError, "nothing is there", lambda: worker.reserve(timeout=0))
    same(worker.reserve(timeout=10).id, number, "the job")
    between(time.monotonic() - begun, 1.9, 6, "the delay")


@check("a job that is held for too long is somebody else's")
def time_to_run(nodes: Nodes) -> None:
    producer, late, worker = nodes.producer(), nodes.worker(), nodes.worker()
    number = producer.put(b"slow", ttr=1)
    job = late.reserve(timeout=5)
    begun = time.monotonic()
    same(worker.reserve(timeout=10).id, number, "the job for the other")
    between(time.monotonic() - begun, 0.8, 5, "the time to run")
    for name, call in [("touch", late.touch), ("release", late.release), ("bury", late.bury), ("delete", late.delete)]:
        refused(greenstalk.NotFoundError, name, lambda call=call: call(job))
    same(worker.stats_job(number)["timeouts"], 1, "how often it was lost")
    worker.delete(number)


@check("a worker is told that a deadline is near")
def deadline_soon(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    producer.put(b"held", ttr=3)
    job = worker.reserve(timeout=5)
    begun = time.monotonic()
    refused(greenstalk.DeadlineSoonError, "waiting", lambda: worker.reserve(timeout=30))
    between(time.monotonic() - begun, 1.7, 2.8, "waiting")
    refused(greenstalk.DeadlineSoonError, "waiting again", worker.reserve)
    worker.touch(job)
    refused(greenstalk.TimedOutError, "after a touch", lambda: worker.reserve(timeout=0))
    number = producer.put(b"ready", ttr=60)
    same(worker.reserve(timeout=5).id, number, "a job that is ready")
    worker.delete(job)


@check("a job is released, touched, buried and kicked")
def life(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    number = producer.put(b"x", priority=9, ttr=30)
    job = worker.reserve(timeout=5)
    worker.release(job, priority=3, delay=60)
    told = worker.stats_job(number)
    same((told["state"], told["pri"], told["delay"], told["releases"]), ("delayed", 3, 60, 1), "after the release")
    worker.kick_job(number)
    job = worker.reserve(timeout=5)
    worker.touch(job)
    worker.bury(job, priority=7)
    same(producer.peek_buried().id, number, "the buried job")
    refused(greenstalk.NotFoundError, "touch of a buried job", lambda: worker.touch(job))
    other = producer.put(b"y", delay=60)
    same(producer.kick(10), 1, "buried jobs are kicked alone")
    same(producer.peek_delayed().id, other, "the delayed one is where it was")
    same(producer.kick(10), 1, "then delayed ones")
    same(producer.kick(10), 0, "then none")
    job = worker.reserve_job(number)
    refused(greenstalk.NotFoundError, "reserving it again", lambda: worker.reserve_job(number))
    told = worker.stats_job(number)
    same((told["state"], told["pri"], told["ttr"]), ("reserved", 7, 30), "what it is")
    same((told["reserves"], told["buries"], told["kicks"]), (3, 1, 2), "what became of it")
    same(told["tube"], nodes.tube, "where it is")


@check("a job belongs to its connection")
def connection(nodes: Nodes) -> None:
    producer, gone, worker = nodes.producer(), nodes.worker(), nodes.worker()
    number = producer.put(b"x", ttr=600)
    same(gone.reserve(timeout=5).id, number, "the job")
    gone.close()
    same(worker.reserve(timeout=5).id, number, "the job for the other")
    same(worker.stats_job(number)["timeouts"], 0, "it did not have to time out")


@check("a worker that waits gets a job that comes later")
def waiting(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    got: list[greenstalk.Job] = []
    thread = threading.Thread(target=lambda: got.append(worker.reserve(timeout=20)))
    thread.start()
    while producer.stats_tube(nodes.tube)["current-waiting"] == 0 and len(nodes.addresses) == 1:
        time.sleep(0.01)
    number = producer.put(b"x")
    thread.join()
    same([job.id for job in got], [number], "what it got")
    begun = time.monotonic()
    refused(greenstalk.TimedOutError, "no other job", lambda: worker.reserve(timeout=1))
    between(time.monotonic() - begun, 0.9, 3, "waiting for nothing")


@check("tubes are used, watched, ignored and listed")
def tubes(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    second = f"{nodes.tube}-second"
    producer.use(second)
    same(producer.using(), second, "the tube that is used")
    number = producer.put(b"second")
    refused(greenstalk.TimedOutError, "a tube that is not watched", lambda: worker.reserve(timeout=0))
    same(worker.watch(second), 2, "how many are watched")
    same(sorted(worker.watching()), [nodes.tube, second], "which are watched")
    same("default" in worker.tubes() and second in worker.tubes(), True, "the tubes that there are")
    same(worker.ignore(nodes.tube), 1, "how many are left")
    refused(greenstalk.NotIgnoredError, "the last one", lambda: worker.ignore(second))
    same(worker.reserve(timeout=5).id, number, "the job")
    refused(greenstalk.NotFoundError, "a tube that is not there", lambda: worker.stats_tube(f"{nodes.tube}-none"))
    refused(greenstalk.BadFormatError, "a name that is none", lambda: worker.use("-x"))


@check("a paused tube gives out nothing")
def pause(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    number = producer.put(b"x")
    begun = time.monotonic()
    producer.pause_tube(nodes.tube, 2)
    told = producer.stats_tube(nodes.tube)
    same((told["pause"], told["cmd-pause-tube"]), (2, 1), "what is told of the pause")
    same(told["pause-time-left"] in (0, 1), True, "what is left of it")
    refused(greenstalk.TimedOutError, "while it is paused", lambda: worker.reserve(timeout=0))
    same(worker.reserve(timeout=10).id, number, "the job")
    between(time.monotonic() - begun, 1.8, 6, "the pause")
    refused(greenstalk.NotFoundError, "a tube that is not there", lambda: producer.pause_tube(f"{nodes.tube}-none", 1))


@check("statistics count")
def statistics(nodes: Nodes) -> None:
    producer, worker = nodes.producer(), nodes.worker()
    before = producer.stats()
    for number in range(5):
        producer.put(b"x", delay=60 * (number == 0))
    worker.delete(worker.reserve(timeout=5))
    worker.bury(worker.reserve(timeout=5))
    worker.reserve(timeout=5)
    told = producer.stats_tube(nodes.tube)
    counts = [told[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried")]
    same(counts, [1, 1, 1, 1], "jobs of the tube")
    same((told["name"], told["total-jobs"], told["cmd-delete"]), (nodes.tube, 5, 1), "the tube")
    after = producer.stats()
    same(after["total-jobs"] - before["total-jobs"], 5, "jobs of all tubes")
    same(after["cmd-put"] - before["cmd-put"], 5, "puts")
    same(after["current-connections"] >= 1, True, "connections")


def main() -> int:
    failures = 0
    for number, (name, function) in enumerate(CHECKS):
        nodes, begun = Nodes(number), time.monotonic()
        try:
            function(nodes)
            mark, trouble = "✓", ""
        except Wrong as wrong:
            mark, trouble = "✗", f"{wrong}\n"
        except Exception:  # noqa: BLE001 - whatever it is, it is told, and the other checks go on
            mark, trouble = "✗", traceback.format_exc(limit=-3)
        nodes.close()
        print(f"  {mark} {name} ({time.monotonic() - begun:.1f} s)")
        if trouble:
            failures += 1
            print("".join(f"      {line}\n" for line in trouble.splitlines()), end="")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
