"""The same calls on our server and on PyTorch's two: the same results are expected.

The arguments are our port, and the messages that our server knows, in the order of their numbers. What an older PyTorch does not
know is left out.
"""

import os
import re
import socket
import struct
import sys
import threading
from datetime import timedelta
from pathlib import Path

# Every timeout would be told with a stack.
os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"

import torch
import torch.distributed as dist

LONG = timedelta(seconds=20)
SHORT = timedelta(milliseconds=50)


def client(port, libuv):
    return dist.TCPStore("127.0.0.1", port, None, False, LONG, wait_for_workers=False, use_libuv=libuv)


def outcome(call, *args):
    """What a call returns, or how it fails."""
    try:
        return call(*args)
    except Exception as error:
        # PyTorch appends where in its code the error was made.
        return type(error).__name__, str(error).splitlines()[0].split(" Exception raised from ")[0]


def with_timeout(store, timeout, call, *args):
    store.set_timeout(timeout)
    try:
        return outcome(call, *args)
    finally:
        store.set_timeout(LONG)


def together(*calls):
    """The outcomes of calls that run at one time, each on a client of its own."""
    outcomes = [None] * len(calls)

    def run(index, call):
        outcomes[index] = outcome(*call)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


def calls(port, libuv):
    """Yields what each call of PyTorch's client gives."""
    a, b, c = (client(port, libuv) for _ in range(3))
    yield "num_keys of an empty store", outcome(a.num_keys)

    a.set("key", "value")
    yield "get", outcome(a.get, "key")
    yield "get by another", outcome(b.get, "key")
    a.set("key", "")
    yield "get of an empty value", outcome(a.get, "key")
    a.set("", "no name")
    yield "get of an empty key", outcome(a.get, "")
    a.set("bytes", "\u00e9\u0000\n")
    yield "get of any bytes", outcome(a.get, "bytes")
    large = "x" * (5 << 20)
    a.set("large", large)
    yield "get of a large value", outcome(b.get, "large") == large.encode()

    yield "add", [outcome(a.add, "count", amount) for amount in (1, 5, -8, 0, 2**62)]
    yield "get of a counter", outcome(a.get, "count")
    a.set("number", " 41 and more")
    yield "add to a number", outcome(a.add, "number", 1)
    yield "get after it", outcome(a.get, "number")

    yield "compare_set of no key", outcome(a.compare_set, "cas", "other", "new")
    yield "check after it", outcome(a.check, ["cas"])
    yield "compare_set with nothing expected", outcome(a.compare_set, "cas", "", "first")
    yield "compare_set with another", outcome(a.compare_set, "cas", "other", "second")
    yield "compare_set with the right one", outcome(a.compare_set, "cas", "first", "second")
    yield "get after compare_set", outcome(b.get, "cas")

    a.append("log", "one ")
    a.append("log", "two")
    yield "get after append", outcome(a.get, "log")

    a.multi_set(["m1", "m2", "m1"], ["1", "2", "3"])
    yield "multi_get", outcome(b.multi_get, ["m1", "m2", "key", "m1"])
    yield "multi_get that waits", with_timeout(b, SHORT, b.multi_get, ["m1", "never"])
    a.multi_set([], [])
    yield "multi_get of nothing", outcome(b.multi_get, [])

    yield "check", [outcome(a.check, keys) for keys in ([], ["m1"], ["m1", "m2"], ["m1", "never"])]
    yield "wait for what is there", outcome(a.wait, ["m1", "m2"], LONG)
    yield "wait in vain", outcome(a.wait, ["m1", "never", "nor this"], SHORT)
    yield "get in vain", with_timeout(a, SHORT, a.get, "never")
    yield "get after that", outcome(a.get, "m1")

    yield "num_keys", outcome(a.num_keys)
    if hasattr(a, "list_keys"):
        yield "list_keys", sorted(outcome(a.list_keys))
    yield "delete_key", [outcome(a.delete_key, key) for key in ("m2", "m2", "never")]
    yield "check of a deleted key", outcome(a.check, ["m2"])
    yield "get of a deleted key", with_timeout(a, SHORT, a.get, "m2")
    yield "num_keys after that", outcome(a.num_keys)

    yield "two wait, one sets", together((a.get, "later"), (b.wait, ["later", "latest"], LONG),
                                         (lambda: c.multi_set(["later", "latest"], ["now", "too"]),))
    yield "one waits, one adds", together((a.get, "added"), (b.add, "added", 7))
    yield "one waits, one appends", together((a.get, "appended"), (b.append, "appended", "more"))

    def adds():
        return [a.add("raced", 1) for _ in range(50)]

    def sets(name):
        for number in range(50):
            a.set(name, str(number))
            yield a.get(name)

    raced = together(*[(adds,)] * 8)
    yield "threads that share a client and add", sorted(number for numbers in raced for number in numbers)
    yield "threads that share a client and set", together(*[(list, sets(name)) for name in ("t1", "t2", "t3", "t4")])

    if hasattr(a, "barrier"):
        yield "barrier of one", outcome(a.barrier, "alone", 1, LONG)
        yield "barrier of three", together(*[(store.barrier, "three", 3, LONG) for store in (a, b, c)])
        yield "its counter", outcome(a.get, "three")
        yield "who comes late", outcome(b.barrier, "three", 3, SHORT)
        yield "barrier in vain", outcome(a.barrier, "two", 2, SHORT)
        yield "who was counted before giving up", outcome(a.barrier, "two", 2, SHORT)

    p = dist.PrefixStore("outer", dist.PrefixStore("inner", a))
    p.set("key", "under a prefix")
    yield "get under a prefix", outcome(p.get, "key")
    yield "check of it without", [outcome(a.check, [key]) for key in ("outer/inner/key", "inner/outer/key", "key")]
    yield "add under a prefix", outcome(p.add, "count", 3)
    yield "wait under a prefix", outcome(p.wait, ["never"], SHORT)

    if hasattr(a, "clone"):
        clone = a.clone()
        yield "get by a clone", outcome(clone.get, "log")

    if libuv and hasattr(a, "queue_push"):
        for value in ("1", "2", ""):
            a.queue_push("queue", value)
        yield "queue_len", [outcome(a.queue_len, name) for name in ("queue", "no queue")]
        yield "check of a queue", outcome(b.check, ["queue"])
        yield "num_keys without queues", outcome(b.num_keys)
        yield "queue_pop", [outcome(b.queue_pop, "queue", False) for _ in range(4)]
        yield "check of an empty queue", outcome(b.check, ["queue"])
        yield "queue_pop in vain", with_timeout(b, SHORT, b.queue_pop, "queue")
        popped = together((a.queue_pop, "queue"), (b.queue_pop, "queue"),
                          (lambda: [c.queue_push("queue", value) for value in ("x", "y")],))
        yield "two pop, one pushes", sorted(popped[:2])
        yield "queue_len at the end", outcome(c.queue_len, "queue")

    a.set("word", "no number")
    yield "add to a word", outcome(a.add, "word", 1)[0]
    yield "others after it", outcome(b.get, "word")


# Messages as bytes, so that the order in which the server sees them is known.
OURS = sys.argv[2].split()
(SET, COMPARE_SET, GET, ADD, CHECK, WAIT, GETNUMKEYS, DELETE_KEY, APPEND, MULTI_GET, MULTI_SET, CANCEL_WAIT, PING,
 QUEUE_PUSH, QUEUE_POP, QUEUE_LEN, LIST_KEYS, BARRIER) = range(1, len(OURS))


def names_of_torch():
    """The messages that this PyTorch knows, in the order of their numbers."""
    headers = Path(torch.__file__).parent.glob("include/torch/csrc/distributed/c10d/**/TCPStoreBackend.hpp")
    enum = re.search(r"enum class QueryType : uint8_t \{(.*?)\}", next(headers).read_text(), re.DOTALL)
    return re.findall(r"\w+", enum[1])


THEIRS = names_of_torch()


def message(kind, *fields):
    packed = [bytes([kind])]
    for field in fields:
        packed.append(struct.pack("<q", field) if isinstance(field, int) else struct.pack("<Q", len(field)) + field)
    return b"".join(packed)


STORIES = {
    # Each step: which connection sends, and what.
    "all that wait for a key": [(0, WAIT, 1, b"k"), (1, WAIT, 2, b"k", b"l"), (2, SET, b"l", b""), (2, SET, b"k", b"")],
    "a key twice": [(0, WAIT, 2, b"k", b"k"), (1, SET, b"k", b"")],
    "no keys": [(0, WAIT, 0), (0, CHECK, 0), (0, MULTI_GET, 0), (0, MULTI_SET, 0)],
    "a key that came and went": [(0, WAIT, 2, b"k", b"l"), (1, SET, b"k", b""), (1, DELETE_KEY, b"k"), (1, SET, b"l", b"")],
    "a wait that is cancelled": [(0, WAIT, 1, b"k"), (0, CANCEL_WAIT), (1, SET, b"k", b""), (0, CANCEL_WAIT)],
    "a wait that is cancelled too late": [(0, WAIT, 1, b"k"), (1, SET, b"k", b""), (0, CANCEL_WAIT)],
    "requests during a wait": [(0, WAIT, 1, b"k"), (0, ADD, b"l", 1), (0, GETNUMKEYS), (0, SET, b"k", b"v")],
    "get of no key": [(0, GET, b"k"), (0, MULTI_GET, 2, b"k", b"l")],
    "a wait ended by add": [(0, WAIT, 1, b"k"), (1, ADD, b"k", -1)],
    "a wait ended by append": [(0, WAIT, 1, b"k"), (1, APPEND, b"k", b"")],
    "a wait ended by compare_set": [(0, WAIT, 1, b"k"), (1, COMPARE_SET, b"k", b"", b"new")],
    "a push is for who waited first": [(0, WAIT, 1, b"q"), (1, WAIT, 1, b"q"), (2, QUEUE_PUSH, b"q", b"1"),
                                       (2, QUEUE_PUSH, b"q", b"2"), (0, QUEUE_POP, b"q"), (1, QUEUE_POP, b"q"),
                                       (1, QUEUE_POP, b"q"), (1, QUEUE_LEN, b"q")],
    "a set ends a wait for a queue": [(0, WAIT, 1, b"q"), (1, WAIT, 1, b"q"), (2, SET, b"q", b""), (2, QUEUE_LEN, b"q")],
    "a wait for a queue that has something": [(0, QUEUE_PUSH, b"q", b"1"), (1, WAIT, 1, b"q"), (1, CHECK, 1, b"q")],
    "barrier": [(0, BARRIER, b"k", 3), (1, BARRIER, b"k", 3), (0, GETNUMKEYS), (2, BARRIER, b"k", 3), (0, GET, b"k")],
    "a barrier that one gives up": [(0, BARRIER, b"k", 2), (0, CANCEL_WAIT), (1, BARRIER, b"k", 2)],
    "a barrier whose key is waited for": [(0, WAIT, 1, b"k"), (1, BARRIER, b"k", 2), (0, CHECK, 1, b"k"),
                                          (2, BARRIER, b"k", 2)],
    "a barrier whose key is set": [(0, BARRIER, b"k", 9), (1, SET, b"k", b"5"), (1, BARRIER, b"k", 6)],
    "a barrier on a word": [(0, SET, b"k", b"word"), (0, BARRIER, b"k", 1), (1, GET, b"k")],
    "keys are listed": [(0, SET, b"k", b"v"), (0, QUEUE_PUSH, b"q", b"1"), (1, LIST_KEYS)],
    "an unknown message": [(0, 19), (1, GETNUMKEYS)],
    "a key that is too long": [(0, SET, b"k" * 8193, b""), (1, GETNUMKEYS)],
    "a value that is as long as can be": [(0, SET, b"k" * 8192, b"v" * (8 << 20)), (1, GET, b"k" * 8192)],
    "a value that is too long": [(0, SET, b"k", b"v" * ((8 << 20) + 1)), (1, GETNUMKEYS)],
    "too many keys": [(0, CHECK, (128 << 10) + 1), (1, GETNUMKEYS)],
}


class Raw:
    """A connection whose bytes we see."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))
        self.asked = 0

    def send(self, data):
        if self.socket is None:
            return
        try:
            self.socket.sendall(data)
        except OSError:
            self.socket = None

    def news(self):
        """All that has come up to now, as a reply to a request of now tells; None if the connection is gone."""
        if self.socket is None:
            return None
        # What is expected of a key that is not there is answered, and nothing is set. PING is not known to all.
        self.asked += 1
        echo = struct.pack("<QQ", 8, 0xABCD_0000 + self.asked)
        data = b""
        try:
            self.socket.sendall(message(COMPARE_SET, b"nobody's", echo[8:], b""))
            while not data.endswith(echo):
                more = self.socket.recv(1 << 20)
                if not more:
                    raise ConnectionError
                data += more
        except OSError:
            self.socket = None
            return None
        return data[: -len(echo)]


def story(port, steps):
    connections = [Raw(port) for _ in range(3)]
    told = []
    for number, *fields in steps:
        connections[number].send(message(*fields))
        # Its reply tells that the server has carried out the step; only then do others ask.
        own = connections[number].news()
        told.append([own] + [other.news() for other in connections if other is not connections[number]])
    # The next story finds no keys and no queues.
    last = Raw(port)
    for connection in connections:
        connection.send(message(CANCEL_WAIT))
        connection.news()
    for key in (b"k", b"l", b"q", b"k" * 8192):
        last.send(message(DELETE_KEY, key))
        if "QUEUE_POP" in THEIRS:
            last.send(message(QUEUE_POP, key) * 3)
    last.news()
    return told


def clean(port):
    """Deletes all keys of our server."""
    raw = Raw(port)
    raw.send(message(LIST_KEYS))
    listed = raw.news()
    at = 8
    while at < len(listed):
        end = at + 8 + struct.unpack_from("<Q", listed, at)[0]
        raw.send(bytes([DELETE_KEY]) + listed[at:end])
        at = end
    raw.news()


def short(value):
    text = repr(value)
    return text if len(text) < 500 else text[:500] + "…"


def main():
    ours = int(sys.argv[1])
    different = same = 0

    def compare(whose, name, expected, got):
        nonlocal different, same
        if expected == got:
            same += 1
        else:
            different += 1
            print(f"{name}, {whose}: {short(expected)}\n  ours: {short(got)}", file=sys.stderr)

    compare("the header", "the messages there are", THEIRS, OURS[: len(THEIRS)])
    # Before the calls, which leave keys behind.
    torchs = {}
    for whose, libuv in (("libuv", True), ("older", False)):
        server = dist.TCPStore("127.0.0.1", 0, None, True, LONG, wait_for_workers=False, use_libuv=libuv)
        torchs[whose] = server
    for name, steps in STORIES.items():
        # One that nobody knows has a story, too.
        if any(len(THEIRS) <= kind < len(OURS) for _, kind, *_ in steps):
            continue
        compare("libuv", name, story(torchs["libuv"].port, steps), story(ours, steps))
    for whose, server in torchs.items():
        libuv = whose == "libuv"
        got = list(calls(ours, libuv))
        for expected, got in zip(calls(server.port, libuv), got, strict=True):
            compare(whose, expected[0], expected[1:], got[1:])
        # Our server is empty for the next.
        clean(ours)
    print(f"{same} the same, {different} not")


main()
