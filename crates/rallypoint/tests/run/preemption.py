"""Trains a number for so many steps, with checkpoints, over a sum of all workers: a collective that is real and needs no torch.

The number after each step depends on every step before it, and not on who computed what.
"""
import json
import os
import socket
import struct
import sys
import time

import rallypoint

PRIME = 2**61 - 1
MESSAGE = struct.Struct("!Q?")
checkpoint, steps = sys.argv[1], int(sys.argv[2])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def read(peer):
    data = peer.recv(MESSAGE.size, socket.MSG_WAITALL)
    if len(data) != MESSAGE.size:
        sys.exit(f"rank {rank}: a peer is gone")
    return MESSAGE.unpack(data)


def meet():
    """The peers of rank 0; of the others, rank 0."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        server = socket.create_server(("", place[1]))
        return [server.accept()[0] for _ in range(world_size - 1)]
    while True:
        try:
            return [socket.create_connection(place)]
        except ConnectionRefusedError:
            time.sleep(0.01)


def all_reduce(number, flag):
    """The sum of the numbers, and whether one of the flags is set."""
    if rank != 0:
        peers[0].sendall(MESSAGE.pack(number, flag))
        return read(peers[0])
    for peer in peers:
        theirs, theirs_too = read(peer)
        number, flag = (number + theirs) % PRIME, flag or theirs_too
    for peer in peers:
        peer.sendall(MESSAGE.pack(number, flag))
    return number, flag


def save(step, weight):
    with open(f"{checkpoint}.new", "w") as file:
        json.dump([step, weight], file)
    os.replace(f"{checkpoint}.new", checkpoint)


rallypoint.preemption()
peers = meet()
begin, weight = json.load(open(checkpoint)) if os.path.exists(checkpoint) else (0, 1)
if rank == 0:
    print(f"from step {begin} with {world_size} workers", flush=True)
for step in range(begin, steps):
    gradient = sum((weight ^ i) * (i + step) for i in range(rank, 64, world_size)) % PRIME
    total, preempted = all_reduce(gradient, rallypoint.preemption() is not None)
    weight = (weight + total) % PRIME
    if preempted:
        if rank == 0:
            save(step + 1, weight)
            print(f"saved step {step + 1}", flush=True)
        rallypoint.preemption_saved()
        sys.exit()
    # Until the test has done its part.
    if not os.path.exists(f"{checkpoint}.hurry"):
        time.sleep(0.02)
if rank == 0:
    print(f"done after {steps} steps: {weight}", flush=True)
