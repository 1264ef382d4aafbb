"""Times a heartbeat, and a function that does nothing, in a worker; prints both in nanoseconds."""

import timeit

import rallypoint


def nothing() -> None:
    """Do nothing, as the floor: this is what a call costs."""


CALLS = 200_000
rallypoint.heartbeat()
for call in (rallypoint.heartbeat, nothing):
    best = min(timeit.repeat(call, number=CALLS, repeat=5))
    print(f"time {best / CALLS * 1e9:.1f}", flush=True)
