"""The range-name grammar against hand-written answers, and against datetime with hypothesis."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.reading.range_names import (
    LastDuration,
    LastMessages,
    MalformedRange,
    OffsetsBetween,
    OffsetsCount,
    OffsetsFrom,
    SingleOffset,
    TimeBetween,
    day_name,
    offsets_name,
    parse_offset_spec,
    parse_time_spec,
    timestamp_text,
)
from storage.types import MAX_OFFSET


def ms(*when):
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("00000000000000000434", SingleOffset(434)),
        ("007-0009", OffsetsBetween(7, 9)),
        ("5-5", OffsetsBetween(5, 5)),
        ("5-", OffsetsFrom(5)),
        ("5+3", OffsetsCount(5, 3)),
        ("last-10", LastMessages(10)),
        ("-10", LastMessages(10)),
        (f"0-{MAX_OFFSET}", OffsetsBetween(0, MAX_OFFSET)),
        (f"1+{MAX_OFFSET}", OffsetsCount(1, MAX_OFFSET)),
    ],
)
def test_offset_ranges(text, spec):
    assert parse_offset_spec(text) == spec


MALFORMED_OFFSETS = """
    - + a 5-4 5+0 last-0 -0 last- --5 5--7 5-6-7 5+ +5 -5-6 5+-1 1e3 ٣ last-5- Last-5 5-6+1 0x10 1_000
    9223372036854775808 0-9223372036854775808 last-9223372036854775808 0+9223372036854775808
"""


@pytest.mark.parametrize("text", [*MALFORMED_OFFSETS.split(), "", " 5", "5 ", "5\n", "9" * 5000])
def test_malformed_offset_ranges(text):
    with pytest.raises(MalformedRange):
        parse_offset_spec(text)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026", ms(2026, 1, 1), ms(2027, 1, 1)),
        ("2026-11", ms(2026, 11, 1), ms(2026, 12, 1)),
        ("2026-12", ms(2026, 12, 1), ms(2027, 1, 1)),
        ("2024-02-29", ms(2024, 2, 29), ms(2024, 3, 1)),
        ("2026-11-20", ms(2026, 11, 20), ms(2026, 11, 21)),
        ("20261120", ms(2026, 11, 20), ms(2026, 11, 21)),
        ("2026-11-20T10", ms(2026, 11, 20, 10), ms(2026, 11, 20, 11)),
        ("2026-11-20T10:15", ms(2026, 11, 20, 10, 15), ms(2026, 11, 20, 10, 16)),
        ("2026-11-20T1015", ms(2026, 11, 20, 10, 15), ms(2026, 11, 20, 10, 16)),
        ("20261120T1015", ms(2026, 11, 20, 10, 15), ms(2026, 11, 20, 10, 16)),
        ("20261120T10:15", ms(2026, 11, 20, 10, 15), ms(2026, 11, 20, 10, 16)),
        ("2026-11-20T10Z", ms(2026, 11, 20, 10), ms(2026, 11, 20, 11)),
        ("20261120T1015-0530", ms(2026, 11, 20, 15, 45), ms(2026, 11, 20, 15, 46)),
        ("2026-11-20T10+02", ms(2026, 11, 20, 8), ms(2026, 11, 20, 9)),
        ("9999-12", 253399622400000, 253402300800000),
        ("9999", 253370764800000, 253402300800000),
        ("2026--2027", ms(2026, 1, 1), ms(2027, 1, 1)),
        ("2026-11-20T10--2026-11-20T12:30", ms(2026, 11, 20, 10), ms(2026, 11, 20, 12, 30)),
        ("2026-11-20T10-05:00--2026-11-20T10-06:00", ms(2026, 11, 20, 15), ms(2026, 11, 20, 16)),
        ("2026-11-20T10:15:30.5--2026-11-20T10:15:30.75", 1795169730500, 1795169730750),
        ("2026-11-20T10:15:30,5Z--", 1795169730500, None),
        ("2026-11-20T101530.0005--2026-11-20T10:15:30.0015", 1795169730001, 1795169730002),
        ("2026-11-20T10:15:30.0001--2026-11-20T10:15:30.0002", 1795169730001, 1795169730001),
        ("1763683200000--1763683200001", 1763683200000, 1763683200001),
        ("0000000000000--2026", 0, ms(2026, 1, 1)),
        ("2026-11-20--", ms(2026, 11, 20), None),
        ("until-2026-11-20", None, ms(2026, 11, 20)),
        ("--2026-11-20", None, ms(2026, 11, 20)),
        ("until-1763683200000", None, 1763683200000),
        ("1969--1971", ms(1969, 1, 1), ms(1971, 1, 1)),
    ],
)
def test_time_ranges(text, start, end):
    assert parse_time_spec(text) == TimeBetween(start, end)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("last-90s", 90_000), ("last-15m", 900_000), ("last-2h", 7_200_000), ("last-7d", 604_800_000), ("last-01s", 1000)],
)
def test_last_durations(text, duration_ms):
    assert parse_time_spec(text) == LastDuration(duration_ms)


MALFORMED_TIMES = """
    -- 26 202611 2026-1 2026-13 2026-00 2026-02-30 2025-02-29 0000 2026-11-20T 2026T10 2026-11T10
    2026-11-20T24 2026-11-20T10:60 2026-11-20T10:15:60 2026-11-20Z 2026-11-20+02:00 2026-11-20T10:1530
    2026-11-20T1015:30 2026-1120 202611-20 2026-11-20T10:15:30.5 2026-11-20T10.5-- 2026-11-20T10:15.5--
    1763683200000 176368320000-- 17636832000000-- 2026--2026 2027--2026 2026-11-20T10--2026-11-20T10+00:00
    2026-11-20T10+24:00 2026-11-20T10+02:60 2026-11-20T10+2-- 2026--2027--2028 until- until-2026--2027
    until--2026 last-0s last-5 last-5y last--5s last-5S last-1h-- last-9223372036854775807d 2026-11-20t10
    2026-11-20T10z ٢٠٢٦ 2026-11-20T10:15:30.-- 2026-11-20T10:15:30.1234567890-- 2026---2027 -2026 2026-
"""


@pytest.mark.parametrize("text", [*MALFORMED_TIMES.split(), "", "2026 ", " 2026", "2026\n"])
def test_malformed_time_ranges(text):
    with pytest.raises(MalformedRange):
        parse_time_spec(text)


zones = st.none() | st.integers(-14 * 60, 14 * 60)
moments = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29))


@st.composite
def written_instants(draw):
    """A moment to the second, in one of its spellings."""
    moment = draw(moments).replace(microsecond=0)
    zone_minutes = draw(zones)
    day = moment.strftime("%Y-%m-%d").rjust(10, "0")
    clock = moment.strftime("%H:%M:%S")
    if draw(st.booleans()):
        day = day.replace("-", "")
    if draw(st.booleans()):
        clock = clock.replace(":", "")
    text = f"{day}T{clock}"
    if zone_minutes is None:
        return text + draw(st.sampled_from(["", "Z"])), moment.replace(tzinfo=UTC)
    hours, minutes = divmod(abs(zone_minutes), 60)
    sign = "-" if zone_minutes < 0 else "+"
    text += f"{sign}{hours:02d}{draw(st.sampled_from(['', ':']))}{minutes:02d}"
    return text, moment.replace(tzinfo=timezone(timedelta(minutes=zone_minutes)))


def exact_ms(moment):
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@given(written_instants())
def test_every_spelling_of_a_second(written):
    text, moment = written
    start = exact_ms(moment)
    assert parse_time_spec(text) == TimeBetween(start, start + 1000)
    assert parse_time_spec(f"{text}--") == TimeBetween(start, None)
    assert parse_time_spec(f"--{text}") == parse_time_spec(f"until-{text}") == TimeBetween(None, start)


@given(st.text(alphabet="0123456789-+T:.Zlastuni", max_size=40) | st.text(max_size=30))
def test_any_text_parses_or_is_malformed(text):
    for parse in (parse_offset_spec, parse_time_spec):
        with suppress(MalformedRange):
            assert parse(text) is not None


@given(st.integers(0, MAX_OFFSET), st.integers(0, MAX_OFFSET))
def test_offsets_name_is_parsed_back(first, length):
    assert parse_offset_spec(offsets_name(first)) == OffsetsFrom(first)
    last = min(first + length, MAX_OFFSET)
    assert parse_offset_spec(offsets_name(first, last)) == OffsetsBetween(first, last)


@given(st.integers(exact_ms(datetime(1, 1, 1, tzinfo=UTC)), 253402300800000 - 1))
def test_day_name_holds_its_timestamp(timestamp_ms):
    day = parse_time_spec(day_name(timestamp_ms))
    assert day.start_ms <= timestamp_ms < day.end_ms == day.start_ms + 86_400_000


def test_day_name_outside_the_calendar():
    with pytest.raises(MalformedRange):
        day_name(253402300800000)


def test_timestamp_text():
    assert timestamp_text(1763683200123) == "2025-11-21T00:00:00.123Z"
    assert timestamp_text(2**62) == str(2**62)
