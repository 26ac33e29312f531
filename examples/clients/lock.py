#!/usr/bin/env python3
"""Runs a command while it holds a lock, through the lock API of `eldest serve`. Python's standard library only.

    lock.py [--node http://127.0.0.1:8470] [--wait SECONDS] RESOURCE COMMAND [ARGUMENT...]

The command finds the fencing token in ELDEST_FENCING_TOKEN, as with `eldest lock`. If the lock is lost it is killed before anyone else can have it.
Ends with the command's own code; 75: the lock was not free in time, 74: it was lost, 69: no node answered.
The variable ELDEST_HTTP_TOKEN holds the node's token, if it has one.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

# How much earlier than it must the command is killed.
MARGIN = 0.5


def now():
    """A clock that also counts while the machine is suspended, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lock:
    """A lock that was acquired; `deadline` is until when it is ours, by now()."""

    def __init__(self, node, resource, wait, ttl):
        self.path = f"{node}/v1/locks/{urllib.parse.quote(resource, safe='')}"
        self.timeout = ttl / 4
        owner = f"{socket.gethostname()}:{os.getpid()}"
        wanted = {"owner": owner, "wait_ms": int(wait * 1000), "ttl_ms": int(ttl * 1000)}
        lock = self._ask("POST", self.path, wanted, wait + 10)
        self.path += "/" + lock["lock"]
        self.token = lock["fencing_token"]
        # The promised time counts from before we began to wait, and may be over.
        self.renew()

    def renew(self):
        self._ask("PUT", self.path + "/renew", None, self.timeout)

    def release(self):
        self._ask("DELETE", self.path, None, 10)

    def _ask(self, method, url, body, timeout):
        request = urllib.request.Request(url, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        token = os.environ.get("ELDEST_HTTP_TOKEN")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        asked = now()
        with urllib.request.urlopen(request, timeout=timeout) as response:
            answer = json.load(response)
        if "may_act_for_ms" in answer:
            # From before the request was sent: the answer may have been on its way for long.
            self.deadline = asked + answer["may_act_for_ms"] / 1000
        return answer


def renew(lock, ended):
    """Renews until the end; a failure is tried again, for as long as the deadline allows."""
    while not ended.wait(lock.timeout):
        try:
            lock.renew()
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                # It is lost, or was given back: there is nothing to wait for.
                lock.deadline = 0
                return
        except (OSError, ValueError):
            pass


def run(lock, command):
    """The command's code, or None if the lock was lost."""
    environment = dict(os.environ, ELDEST_FENCING_TOKEN=str(lock.token))
    environment.pop("ELDEST_HTTP_TOKEN", None)
    program = subprocess.Popen(command, env=environment)
    for end in (signal.SIGTERM, signal.SIGINT):
        signal.signal(end, lambda *_: program.terminate())
    ended = threading.Event()
    # Beside us: a renewal that hangs does not keep us from the deadline.
    threading.Thread(target=renew, args=(lock, ended), daemon=True).start()
    try:
        while True:
            left = lock.deadline - MARGIN - now()
            if left <= 0:
                program.kill()
                program.wait()
                return None
            try:
                return program.wait(min(0.2, left))
            except subprocess.TimeoutExpired:
                pass
    finally:
        ended.set()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node", default="http://127.0.0.1:8470")
    parser.add_argument("--wait", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--ttl", type=float, default=10, metavar="SECONDS")
    parser.add_argument("resource")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.command:
        parser.error("a command is missing")
    try:
        lock = Lock(args.node, args.resource, args.wait, args.ttl)
    except urllib.error.HTTPError as error:
        print(error.read().decode(), file=sys.stderr)
        return 75 if error.code == 409 else 69
    except (OSError, ValueError) as error:
        print(f"{args.node}: {error}", file=sys.stderr)
        return 69
    code = run(lock, args.command)
    if code is None:
        print("the lock was lost", file=sys.stderr)
        return 74
    try:
        lock.release()
    except (OSError, ValueError):
        pass  # it is free when its time is over
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
