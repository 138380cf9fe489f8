"""The block cache: one rendering for all, pinned buffers, a bound that holds; workers that start when they are told."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from kafkafs.reading.block_cache import BlockCache
from kafkafs.reading.workers import Workers
from storage.errors import CorruptBatch
from tests.support.waiting import wait_for

KIB = 1024
SIZE = 256 * KIB


def filled(byte):
    def fill(buffer):
        buffer.array[:SIZE] = byte
        return []

    return fill


def get(cache, key):
    return cache.get(key, SIZE, filled(key % 251))


def test_threads_that_want_the_same_block_wait_for_one_rendering():
    cache = BlockCache()
    begun, go = threading.Event(), threading.Event()
    rendered = []

    def fill(buffer):
        rendered.append(1)
        begun.set()
        assert go.wait(120)
        return []

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(cache.get, 1, SIZE, fill)
        assert begun.wait(120)
        others = [pool.submit(cache.get, 1, SIZE, fill) for _ in range(4)]
        while cache.status().hits < 4:
            pass
        go.set()
        blocks = {id(future.result()) for future in [first, *others]}
    assert len(blocks) == 1
    assert rendered == [1]
    assert first.result().pins == 5


def test_a_failed_rendering_is_told_to_all_and_forgotten():
    cache = BlockCache()

    def fail(_):
        raise CorruptBatch("bad")

    for _ in range(2):
        with pytest.raises(CorruptBatch):
            cache.get(1, SIZE, fail)
    assert not cache.holds(1)
    cache.release(get(cache, 1))
    assert cache.status().used_bytes == SIZE


def test_the_bound_holds_and_the_least_recently_used_goes_first():
    cache = BlockCache(4 * SIZE)
    for key in range(4):
        cache.release(get(cache, key))
    cache.release(get(cache, 0))
    cache.release(get(cache, 4))
    assert cache.holds(0)
    assert not cache.holds(1)
    for key in range(100):
        cache.release(get(cache, key))
        assert cache.status().used_bytes <= 4 * SIZE


def test_pinned_buffers_are_never_recycled():
    """Also of a block that is outdated."""
    cache = BlockCache(2 * SIZE)
    held = [get(cache, key) for key in range(5)]
    assert cache.status().used_bytes == 5 * SIZE
    cache.release(get(cache, 4), outdated=True)
    assert not cache.holds(4)
    for key in range(10, 20):
        cache.release(get(cache, key))
    assert [int(block.buffer.array[0]) for block in held] == list(range(5))
    assert len({block.address for block in held}) == 5
    for block in held:
        cache.release(block)
    cache.release(get(cache, 30))
    assert cache.status().used_bytes <= 2 * SIZE


def test_what_a_sequential_reader_has_read_goes_soon():
    cache = BlockCache()
    for key in range(200):
        cache.release(get(cache, key), finished=True)
    assert cache.status().used_bytes < 10 << 20
    assert cache.holds(199)
    wanted = get(cache, 180)  # somebody close behind
    cache.release(wanted)
    for key in range(200, 400):
        cache.release(get(cache, key), finished=True)
    assert cache.holds(180)


def together(cache, first, count):
    """Puts so many blocks into one buffer, with the keys from `first` on."""
    buffer = cache.take(count * SIZE)
    for number in range(count):
        buffer.array[number * SIZE : (number + 1) * SIZE] = (first + number) % 251
    cache.put(buffer, [(first + number, number * SIZE, SIZE) for number in range(count)])


def content(block):
    return bytes(ctypes.string_at(block.address, block.size))


def test_blocks_in_one_buffer_stay_right_and_within_the_bound():
    cache = BlockCache(8 * SIZE)
    together(cache, 0, 3)
    held = get(cache, 1)
    assert cache.status().misses == 0
    for first in range(10, 200, 3):
        together(cache, first, 3)
        for key in (first, first + 2):
            block = get(cache, key)
            assert content(block) == bytes([key % 251]) * SIZE
            cache.release(block, finished=key % 2 == 0)
        assert cache.status().used_bytes <= 8 * SIZE
        assert content(held) == bytes([1]) * SIZE
    cache.release(held)
    for key in range(300, 340):
        cache.release(get(cache, key))
    assert not cache.holds(1)
    assert cache.status().used_bytes <= 8 * SIZE
    together(cache, 400, 8)
    assert all(cache.holds(key) for key in range(400, 408))


def test_a_block_that_is_there_already_is_not_replaced():
    cache = BlockCache(8 * SIZE)
    mine = get(cache, 5)
    together(cache, 4, 3)
    assert get(cache, 5) is mine
    assert content(mine) == bytes([5]) * SIZE
    assert cache.holds(4)
    cache.put(cache.take(SIZE), [])
    assert cache.status().used_bytes <= 8 * SIZE


def test_no_thread_before_start_and_none_after_stop():
    before, workers, done = threading.active_count(), Workers(2), threading.Event()
    assert not workers.submit(done.set)
    assert threading.active_count() == before
    for _ in range(2):
        workers.start()
    assert threading.active_count() == before + 2

    def fail():
        raise ValueError("a job of no luck")

    assert workers.submit(fail)
    assert workers.submit(done.set)
    assert done.wait(120)
    workers.stop()
    assert threading.active_count() == before
    assert not workers.submit(done.set)


def test_the_threads_end_although_a_helper_takes_the_last_job(monkeypatch):
    """A reader that helps may take a job between any two steps of `stop`."""
    busy, helped, go = threading.Event(), threading.Event(), threading.Event()

    class Contended(SimpleQueue[object]):
        def empty(self):
            answer = super().empty()
            workers.help()
            return answer

        def put(self, item, block=True, timeout=None):
            if item is None:  # the queue was emptied
                go.set()
            super().put(item, block, timeout)

    def first():
        busy.set()
        go.wait(120)

    monkeypatch.setattr("kafkafs.reading.workers.SimpleQueue", Contended)
    workers = Workers(1)
    workers.start()
    assert workers.submit(first)
    assert busy.wait(120)
    assert workers.submit(helped.set)
    stopping = threading.Thread(target=workers.stop, daemon=True)
    stopping.start()
    wait_for("the threads end", lambda: not stopping.is_alive(), seconds=20)
