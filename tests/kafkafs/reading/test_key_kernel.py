"""The kernel of keys: both forms give the same, what a plain loop gives, and no key that is in a filter is denied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.reading import key_kernel
from tests.support.uncompiled import uncompiled

FORMS = [
    pytest.param(uncompiled("kafkafs.reading.key_kernel"), id="plain"),
    pytest.param(key_kernel, id="built"),
]
BOTH = (uncompiled("kafkafs.reading.key_kernel"), key_kernel)
FIELDS = 7
POSITION, FILE_END, BASE_OFFSET, CRC, KEYS, FIRST, WORDS = range(FIELDS)
uint64s = st.integers(0, 2**64 - 1) | st.integers(0, 5)
keys_of = st.lists(st.none() | st.binary(max_size=30) | st.sampled_from([b"a", b"ab", b"abcdefgh"]), max_size=40)


def columns_of(keys):
    """A buffer in which each key lies somewhere else, and where it starts and how long it is."""
    data, starts = b"x", []
    for number, key in enumerate(keys):
        starts.append(len(data))
        data += (key or b"") + b"y" * (number % 3)
    lengths = [-1 if key is None else len(key) for key in keys]
    return data, np.array(starts, np.int64), np.array(lengths, np.int64)


def hashes_of(form, keys, secret=(7, 2**63 + 12345)):
    hashes = np.empty(len(keys), np.uint64)
    form.hash_keys(*columns_of(keys), *secret, hashes)
    return hashes


class Made:
    """A collector's arrays, with room for so many records and batches."""

    def __init__(self, form, records, batches):
        self.form = form
        self.state = np.zeros(form.STATE_CELLS, np.int64)
        self.pending = np.empty(records, np.uint64)
        self.sketch = np.empty(records // 4 + 1, np.uint64)
        self.table = np.empty((batches, FIELDS), np.int64)
        self.filters = np.empty(records * form.BITS_PER_KEY // 64 + batches, np.uint64)

    def add(self, table, batch, hashes, size, records):
        self.form.collect(
            table, 0, table.shape[1], np.array(batch, np.int64), hashes, size, records, self.state, self.pending,
            self.sketch, self.table, self.filters,
        )  # fmt: skip

    def close(self):
        self.form.close(self.state, self.pending, self.sketch, self.table, self.filters)

    @property
    def blocks(self):
        return self.table[: self.state[self.form.BLOCKS]]

    @property
    def words(self):
        return self.filters[: self.state[self.form.WORDS]]

    def may_hold(self, hash_):
        marks = np.full(len(self.blocks), 9, np.uint8)
        columns = np.ascontiguousarray(self.blocks.T)
        self.form.probe(self.words, columns[FIRST], columns[WORDS], hash_, marks)
        return marks.tolist()


def table_of(sizes, position=0):
    """The headers of batches of these sizes, one after the other."""
    table = np.zeros((14, len(sizes)), np.int64)
    table[0] = position + np.cumsum([0, *sizes])[:-1]
    table[1], table[2], table[13] = sizes, np.arange(len(sizes)) + 100, np.arange(len(sizes)) + 200
    return table


@given(keys_of, st.tuples(uint64s, uint64s))
def test_hashes(keys, secret):
    """Both forms have the same; a key has the same everywhere, and none has 0, which stands for null."""
    plain, built = (hashes_of(form, keys, secret).tolist() for form in BOTH)
    assert plain == built
    alone = [int(hashes_of(key_kernel, [key], secret)[0]) for key in keys]
    assert built == alone
    assert [value == 0 for value in built] == [key is None for key in keys]


def test_similar_keys_have_different_hashes():
    keys = [b"%07d" % n for n in range(20_000)] + [b"user-%09d" % n for n in range(20_000)]
    keys += [bytes(n) for n in range(40)] + [b"a" * 16 + bytes([n]) for n in range(256)]
    hashes = hashes_of(key_kernel, [*keys])
    assert len(set(hashes.tolist())) == len(keys)
    for shift in (0, 16, 32, 48):  # and each part of a hash is as good as chance
        assert len(np.unique(hashes >> np.uint64(shift) & np.uint64(0xFFFF))) > 28_000  # in theory 30,200 of 65,536


@given(keys_of, st.integers(0, 8), st.booleans())
def test_names(keys, longest, alike):
    """A key is one name, whatever hashes say: also if all have the same."""
    expected = list(dict.fromkeys(key for key in keys if key is not None and len(key) <= longest))
    for form in BOTH:
        names, ends, table = np.zeros(50 * longest, np.uint8), np.zeros(50, np.int64), np.zeros(64, np.int64)
        count = 0
        for part in (keys[:10], keys[10:]):
            hashes = np.full(len(part), 5, np.uint64) if alike else hashes_of(form, part)
            count = form.add_names(*columns_of(part), hashes, longest, names, ends, table, count)
        found = ends[:count].tolist()
        text = names.tobytes()
        assert [text[start:end] for start, end in zip([0, *found], found, strict=False)] == expected
        few = np.zeros(max(len(expected) - 1, 0), np.int64)
        if expected:
            assert form.add_names(*columns_of(keys), hashes_of(form, keys), longest, names, few, table * 0, 0) == -1


@given(
    st.lists(st.tuples(st.integers(50, 400), st.lists(st.integers(0, 30), max_size=8)), max_size=20),
    st.integers(0, 20),
)
def test_blocks(batches, cut):
    """Whole batches until they have 1,000 bytes or 20 records, and filters that deny none of their keys."""
    expected = []  # position, end, base offset, CRC
    inside = []
    position = records = 0
    for number, (size, keys) in enumerate(batches):
        # base offsets and CRCs count from 100 and 200 in each of the two tables
        row = number if number < cut else number - cut
        if not expected or expected[-1][1] - expected[-1][0] >= 1000 or records >= 20:
            expected.append([position, position, 100 + row, 200 + row])
            inside.append(set())
            records = 0
        position += size
        records += len(keys)
        expected[-1][1] = position
        inside[-1].update(key for key in keys if key)  # 0: null
    made = []
    for form in BOTH:
        one = Made(form, 200, 25)
        start = 0
        for part in (batches[:cut], batches[cut:]):
            table = table_of([size for size, _ in part], start)
            start += sum(size for size, _ in part)
            rows = [row for row, (_, keys) in enumerate(part) for _ in keys]
            hashes = hashes_of(form, [b"k%d" % key if key else None for _, keys in part for key in keys])
            one.add(table, rows, hashes, 1000, 20)
        one.close()
        one.close()
        made.append((one.blocks.tolist(), one.words.tolist()))
        assert one.blocks[:, : CRC + 1].tolist() == expected
        for number in range(1, 31):
            hash_ = int(hashes_of(form, [b"k%d" % number])[0])
            for mark, keys in zip(one.may_hold(hash_), inside, strict=True):
                assert mark or number not in keys
        for block, keys in zip(one.blocks.tolist(), inside, strict=True):
            assert abs(block[KEYS] - len(keys)) <= 2
            assert block[WORDS] == -(-block[KEYS] * 10 // 64)
    assert made[0] == made[1]


@pytest.mark.parametrize("form", FORMS)
def test_a_block_with_damage_has_no_filter(form):
    made = Made(form, 10, 3)
    made.add(table_of([100]), [0, 0], hashes_of(form, [b"a", b"b"]), 1000, 20)
    made.state[form.IS_UNKNOWN] = 1
    made.close()
    made.add(table_of([100], 100), [0], hashes_of(form, [b"c"]), 1000, 20)
    made.close()
    assert made.blocks[:, WORDS].tolist() == [-1, 1]
    assert made.may_hold(1)[0] == 1
    assert made.may_hold(int(hashes_of(form, [b"c"])[0])) == [1, 1]


@pytest.mark.parametrize("distinct", [1, 1000, 2900, 3700, 4000])
def test_blocks_after_one_of_different_keys(distinct):
    """Then a filter is made as if all keys were different, and again if they are not."""
    made = []
    for form in BOTH:
        one = Made(form, 12_000, 3)
        for number, many in enumerate((4000, distinct, 4000)):
            keys = [b"%d-%d" % (number, key % many) for key in range(4000)]
            one.add(table_of([1000], 1000 * number), [0] * 4000, hashes_of(form, keys), 1000, 5000)
        made.append((one.blocks.tolist(), one.words.tolist()))
        for number, block in enumerate(one.blocks.tolist()):
            many = distinct if number == 1 else 4000
            assert abs(block[KEYS] / many - 1) < 0.02
            words = -(-block[KEYS] * 10 // 64)
            assert words <= block[WORDS] <= words * 16 / 15 + 1
            inside = hashes_of(form, [b"%d-%d" % (number, key) for key in range(many)])[::7].tolist()
            assert all(one.may_hold(value)[number] for value in inside)
    assert made[0] == made[1]


def test_how_many_other_keys_pass():
    """Of keys as people have them: numbered."""
    count = 5000
    made = Made(key_kernel, count, 1)
    made.add(table_of([1000]), [0] * count, hashes_of(key_kernel, [b"user-%07d" % n for n in range(count)]), 1000, 20)
    others = hashes_of(key_kernel, [b"user-%07d" % n for n in range(count, 5 * count)])
    passed = sum(made.may_hold(value)[0] for value in others.tolist())
    assert 0.006 < passed / (4 * count) < 0.014  # in theory 0.0094


@pytest.mark.parametrize("form", FORMS)
def test_filters_that_are_not_there(form):
    """No words: no keys. A size that is negative or beyond the words: any key."""
    firsts = np.array([0, 0, 0, 5, -1], np.int64)
    sizes = np.array([0, -1, 5, 1, 1], np.int64)
    marks = np.full(5, 9, np.uint8)
    form.probe(np.zeros(4, np.uint64), firsts, sizes, 17, marks)
    assert marks.tolist() == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("form", FORMS)
def test_too_little_room_is_refused(form):
    data, starts, lengths = columns_of([b"one", b"two", b"three"])
    hashes = hashes_of(form, [b"one", b"two", b"three"])
    with pytest.raises(IndexError, match="hashes"):
        form.hash_keys(data, starts, lengths, 1, 2, hashes[:2])
    with pytest.raises(ValueError, match="outside"):
        form.hash_keys(data[:-6], starts, lengths, 1, 2, hashes)
    names, ends, table = np.zeros(24, np.uint8), np.zeros(3, np.int64), np.zeros(4, np.int64)
    with pytest.raises(IndexError, match="room"):
        form.add_names(data, starts, lengths, hashes, 9, names, ends, table, 0)
    with pytest.raises(IndexError, match="table"):
        form.add_names(data, starts, lengths, hashes, 8, names, ends, table[:3], 0)
    with pytest.raises(IndexError, match="lengths"):
        form.add_names(data, starts, lengths[:2], hashes, 8, names, ends, table, 0)
    with pytest.raises(IndexError, match="elsewhere"):
        form.add_names(data, starts, lengths, hashes, 8, names, ends + 30, table, 2)
    with pytest.raises(IndexError, match="free slot"):
        form.add_names(data, starts, lengths, hashes, 8, names, ends, table + 1, 1)
    with pytest.raises(ValueError, match="outside"):
        form.add_names(data[:-6], starts, lengths, hashes, 8, names, ends, table, 0)
    for short in ("pending", "sketch", "table", "filters", "state"):
        made = Made(form, 3, 1)
        setattr(made, short, getattr(made, short)[:-1])
        with pytest.raises(IndexError, match=r"room|missing"):
            made.add(table_of([100]), [0, 0, 0], hashes, 50, 20)
    for batch in ([1, 1, 1], [0, 0, 1], [-1, 0, 0]):
        with pytest.raises(IndexError, match="outside"):
            Made(form, 3, 1).add(table_of([100]), batch, hashes, 1000, 20)
    with pytest.raises(IndexError, match="missing"):
        Made(form, 4, 1).add(table_of([100]), [0, 0, 0, 0], hashes, 1000, 20)
    with pytest.raises(IndexError, match="marks"):
        form.probe(hashes, lengths, lengths, 1, np.zeros(2, np.uint8))
    nothing = np.zeros(3, np.int64)
    with pytest.raises(IndexError, match="rows"):
        form.rows_with_key(b"abc", nothing, nothing, b"a", np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="outside"):
        form.rows_with_key(b"abc", nothing + 3, nothing + 1, b"a", np.zeros(3, np.int64))


@pytest.mark.parametrize("form", FORMS)
def test_rows_with_a_key(form):
    data = b"abcabcab"
    starts, lengths = np.array([0, 3, 0, 1, 6, 8], np.int64), np.array([3, 3, -1, 3, 2, 0], np.int64)
    rows = np.empty(6, np.int64)
    for key, expected in ((b"abc", [0, 1]), (b"bca", [3]), (b"ab", [4]), (b"", [5]), (b"xyz", [])):
        assert rows[: form.rows_with_key(data, starts, lengths, key, rows)].tolist() == expected
