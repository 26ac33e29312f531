"""The peer in Python: kazoo's recipes on ZooKeeper. It is asked by lines on stdin and answers on stdout, as the processes of
lab/bench/src/peer.rs do."""

import sys
import threading
import time
from collections import deque

sys.path.insert(0, sys.argv[1])

from kazoo.client import KazooClient
from kazoo.recipe.election import Election

PATIENCE = 30


class Standing:
    """A client with a session of its own, that waits for its turn or has it."""

    def __init__(self, hosts, timeout=60):
        self.client = KazooClient(hosts=hosts, timeout=timeout)
        self.client.start(timeout=PATIENCE)
        self.waiting = None

    def begin(self, path, turn):
        self.turn = turn(self.client, path)
        self.waiting = threading.Thread(target=self.turn.wait, daemon=True)
        self.waiting.start()

    def join(self, path, turn):
        before = standing(self.client, path)
        self.begin(path, turn)
        deadline = time.monotonic() + PATIENCE
        while standing(self.client, path) <= before:
            if time.monotonic() > deadline:
                raise TimeoutError("it does not stand")
            time.sleep(0.001)

    def lead(self):
        if not self.turn.led.wait(PATIENCE):
            raise TimeoutError("its turn does not come")
        return self.turn.at

    def resign(self):
        self.turn.leave.set()

    def gone(self):
        self.waiting.join(PATIENCE)
        if self.waiting.is_alive():
            raise TimeoutError("it does not resign")


class Turn:
    def __init__(self):
        self.led, self.leave = threading.Event(), threading.Event()

    def mine(self):
        self.at = time.monotonic_ns()
        self.led.set()
        self.leave.wait()


class Elected(Turn):
    def __init__(self, client, path):
        super().__init__()
        self.election = Election(client, path, "bench")

    def wait(self):
        self.election.run(self.mine)


class Locked(Turn):
    def __init__(self, client, path):
        super().__init__()
        self.lock = client.Lock(path, "bench")

    def wait(self):
        with self.lock:
            self.mine()


def standing(client, path):
    return len(client.get_children(path)) if client.exists(path) else 0


class Queue:
    def __init__(self, hosts, turn):
        self.hosts, self.turn = hosts, turn
        self.others = KazooClient(hosts=hosts)
        self.others.start(timeout=PATIENCE)
        self.standing, self.path, self.spare = deque(), "", None
        self.timeout = 60

    def ttl(self, seconds):
        self.timeout = int(seconds)
        return []

    def stand(self, path, _):
        self.path = "/" + path
        self.join(Standing(self.hosts, self.timeout))
        return []

    def lead(self):
        # By the wall clock, which all processes share.
        at = self.standing[0].lead()
        return [time.time_ns() - (time.monotonic_ns() - at)]

    def join(self, candidate):
        candidate.join(self.path, self.turn)
        self.standing.append(candidate)

    def gather(self, path, count):
        for old in self.standing:
            old.client.stop()
            old.client.close()
        self.standing, self.path = deque(), "/" + path
        for _ in range(int(count)):
            self.join(Standing(self.hosts))
        self.standing[0].lead()
        return []

    def change(self):
        old, start = self.standing.popleft(), time.monotonic_ns()
        old.resign()
        took = self.standing[0].lead() - start
        old.gone()
        return old, took

    def handover(self):
        old, took = self.change()
        self.join(old)
        return [took]

    def fresh(self):
        self.join(self.spare or Standing(self.hosts))
        for number in range(10):
            path = "/others/%d" % number
            self.others.ensure_path(path)
            self.others.set(path, b"")
            time.sleep(0.002)
        self.spare, took = self.change()
        return [took]

    def alone(self, path):
        candidate = self.spare or Standing(self.hosts)
        start = time.monotonic_ns()
        candidate.begin("/" + path, self.turn)
        led = candidate.lead() - start
        candidate.resign()
        candidate.gone()
        self.spare = candidate
        return [led, time.monotonic_ns() - start]


def main():
    bench, hosts = sys.argv[2:]
    queue = Queue(hosts, Locked if bench == "locks" else Elected)
    known = {"gather": queue.gather, "handover": queue.handover, "fresh": queue.fresh, "alone": queue.alone,
             "ttl": queue.ttl, "stand": queue.stand, "lead": queue.lead}
    print("ok", flush=True)
    for line in sys.stdin:
        ask, *words = line.split()
        try:
            answer = "ok" + "".join(" %d" % number for number in known[ask](*words))
        except Exception as error:  # whatever it is, the bench must know
            answer = "error %s %r" % (ask, error)
        print(answer.replace("\n", " "), flush=True)


main()
