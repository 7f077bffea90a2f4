#!/usr/bin/env python3
"""A producer and a worker of greenstalk go on while the leader of the queue is killed under them.

SYNOD_BEANSTALK has the nodes that stay, with commas between them; SYNOD_LEADER_PID is the process that goes.
"""

import os
import random
import signal
import sys
import threading

from greenstalk import Client, TimedOutError

JOBS = 400
KILL_AFTER = 100


def main() -> int:
    nodes = [(host, int(port)) for host, port in (a.rsplit(":", 1) for a in os.environ["SYNOD_BEANSTALK"].split(","))]
    tube = f"failover-{random.getrandbits(48):x}"
    producer = Client(nodes[0], encoding=None, use=tube)
    worker = Client(nodes[-1], encoding=None, watch=tube)
    # A job in somebody's hands must still be in them afterwards.
    producer.put(b"held", priority=1)
    held = worker.reserve(timeout=10)
    done: list[bytes] = []

    def work() -> None:
        with Client(nodes[0], encoding=None, watch=tube) as client:
            while len(done) < JOBS:
                job = client.reserve(timeout=30)
                client.delete(job)
                done.append(job.body)

    working = threading.Thread(target=work)
    working.start()
    for number in range(JOBS):
        if number == KILL_AFTER:
            os.kill(int(os.environ["SYNOD_LEADER_PID"]), signal.SIGKILL)
        producer.put(b"%d" % number)
    working.join(60)
    problems = []
    if sorted(done) != sorted(b"%d" % number for number in range(JOBS)):
        problems.append(f"{len(done)} jobs were done, {len(set(done))} of them different ones; {JOBS} were put")
    state = worker.stats_job(held)["state"]
    if state != "reserved":
        problems.append(f"the job that was held through it is {state}")
    worker.delete(held)
    try:
        left = worker.reserve(timeout=0)
        problems.append(f"{left.body!r} is left")
    except TimedOutError:
        pass
    for problem in problems:
        print(f"  failed  {problem}")
    if not problems:
        print(f"  ok      {JOBS} jobs were put and done once each, and a held one stayed held, while the leader was killed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
