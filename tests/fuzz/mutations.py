"""Damage to bytes: what a bad disk, a cut transfer and an attacker do."""

import random

# Lengths, offsets and counts at which arithmetic goes wrong.
EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]


def _flip(data, rng):
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(data, rng):
    data[rng.randrange(len(data))] = rng.randrange(256)


def _edge(data, rng):
    width = rng.choice([1, 2, 4, 8])
    at = rng.randrange(len(data))
    value = rng.choice(EDGES) & (256**width - 1)
    data[at : at + width] = value.to_bytes(width, "little")


def _cut(data, rng):
    del data[rng.randrange(len(data)) :]


def _drop(data, rng):
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 64)]


def _repeat(data, rng):
    at, to = rng.randrange(len(data)), rng.randrange(len(data))
    data[to:to] = data[at : at + rng.randrange(1, 64)]


def damaged(data, rng):
    """The bytes with one to four faults."""
    data = bytearray(data)
    kinds = [_flip, _flip, _byte, _edge, _edge, _cut, _drop, _repeat]
    for _ in range(rng.randrange(1, 5)):
        if data:
            rng.choice(kinds)(data, rng)
    return bytes(data)


def generator(seed, area):
    """Random numbers of one area, the same in every process."""
    return random.Random(f"{seed}/{area}")
