"""Logs damaged at random, and which of their batches remain intact."""

import struct

from tests.support.record_headers import batches


def hurt(logs, dice):
    """Damages ten batches in random ways; returns the last offsets of the batches that are not intact, and whether the
    damage leaves bytes that show it: a batch that is removed whole leaves only a gap, and of one with another offset
    only the offset is wrong."""
    whole = [(log, number) for log in logs for number, _ in enumerate(batches(log.read_bytes()))]
    chosen = dice.sample(whole, min(10, len(whole) // 2))
    gone = {}
    for log in logs:
        parts = list(batches(log.read_bytes()))
        for _, number in (one for one in chosen if one[0] == log):
            part = bytearray(parts[number])
            last = last_offset(part)
            kind = dice.randrange(8)
            gone[last] = kind not in (5, 6)
            covered = 21 if part[16] == 2 else 16
            if kind == 0:
                part[dice.randrange(covered, len(part))] ^= 1 << dice.randrange(8)
            elif kind == 1:
                part[8:12] = dice.randbytes(4)
            elif kind == 2:
                part = part[: dice.randrange(1, len(part))]
            elif kind == 3:
                part[:] = bytes(len(part))
                part[8] = 1  # a length of zero would end the log
            elif kind == 4:
                part = bytearray(dice.randbytes(dice.randrange(1, 500)))
            elif kind == 5:
                struct.pack_into(">q", part, 0, max(0, struct.unpack_from(">q", part)[0] + dice.choice((-50, 5000))))
            elif kind == 6:
                del part[:]
            else:
                at = dice.randrange(len(part))
                part[at:at] = dice.randbytes(dice.randrange(1, 100))
            parts[number] = bytes(part)
        log.write_bytes(b"".join(parts))
    return gone


def last_offset(part):
    base = struct.unpack_from(">q", part)[0]
    return int(base + struct.unpack_from(">i", part, 23)[0]) if part[16] == 2 else int(base)


def batch_of(lasts, offset):
    return next(last for last in lasts if last >= offset)
