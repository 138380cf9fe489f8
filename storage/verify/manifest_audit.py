"""Compares a log directory with the manifest of a backup: nothing that it lists is missing or changed. More is fine.

The other files (indexes, snapshots, epochs, checkpoints) are compared in a directory that was closed in order, as long
as nothing was added since and segments begin where they did: then each of them must be as it was. Otherwise only files
that no message changes are compared: ids, configurations, the cluster's metadata; and none in a broker's directory, to
which the backup was restored. The log start offset is always compared: a raised one hides messages. Of a backup in an
object store all objects are read and compared.

Ranges of batches are compared, not files: the directory may have other segments than the source had, and grow. Each
range is read from the batch with its first offset to the one with its last. Where its SHA-256 differs, checksums show
which batch has changed; where all of them are right, a header field that no checksum covers has (base offset, leader
epoch), or other batches are there.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from storage.errors import StorageError
from storage.files import names
from storage.files.manifest import Manifest, ManifestFile, ManifestPartition, digest_file
from storage.files.names import FileKind
from storage.files.opening import exists
from storage.format.decoder import verify_crcs
from storage.format.range_digest import BatchRange, RangeDigest, known_offset
from storage.log.batch_spans import spans_between
from storage.log.log_dir import LogDir
from storage.log.reader import find_batch
from storage.log.segment import LargeBatch, parts_of
from storage.log.snapshot import LogSnapshot
from storage.log.stored_dir import backup_at
from storage.log.stored_log import Backup
from storage.progress import NoProgress, Progress, working
from storage.types import TopicPartition
from storage.verify.findings import FaultKind, Finding, Findings, Repair

_NEVER_CHANGE: Final = (names.PARTITION_METADATA, names.TOPIC_PROPERTIES, names.BOOTSTRAP_CHECKPOINT)
_RESTORE: Final = Repair(None, "restore it from the source, or from another copy")


def verify_manifest(
    path: Path,
    manifest: Manifest,
    only: Collection[TopicPartition] | None = None,
    *,
    progress: Progress | None = None,
    workers: int | None = None,
) -> list[Finding]:
    """All ranges of the manifest that a log directory does not have as they were, by path; `only`: of these partitions.

    `workers`: threads, by default as many as there are processors. OSError when the directory cannot be listed.
    """
    log_dir = LogDir.open_read_only(path)
    chosen = {tp: listed for tp, listed in manifest.partitions.items() if only is None or tp in only}
    findings, report = Findings(), progress or NoProgress()
    files: defaultdict[str, dict[str, ManifestFile]] = defaultdict(dict)  # by directory
    if not exists(path / names.META_PROPERTIES):
        for name, file in sorted(manifest.files.items()):
            files[name.rpartition("/")[0]][name] = file
    in_use = not exists(path / names.CLEAN_SHUTDOWN)
    grown = in_use or log_dir.all_partitions() != sorted(manifest.partitions)
    digest = partial(_digest_stored, backup_at(log_dir.path)) if log_dir.is_stored else partial(_digest_here, path)
    total = sum(batch_range.size_bytes for listed in chosen.values() for batch_range in listed.ranges)
    with working(report, "manifest", total), ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for tp, listed in sorted(chosen.items()):
            snapshot = _snapshot(log_dir, tp, listed, findings)
            if snapshot is not None:
                # A log start offset beyond the log would also be the log end offset.
                has_more = snapshot.log_end_offset > max(listed.log_end_offset, snapshot.log_start_offset)
                grown |= has_more
                _check_start(snapshot, listed, path / tp.dir_name, findings)
                bases = {segment.base_offset for segment in snapshot.segments}
                own_files = files[tp.dir_name]
                is_other = in_use or has_more or (bases != _bases(own_files) and not log_dir.is_stored)
                _check_files(path, own_files, digest, findings, grown=is_other)
                check = partial(_check, snapshot, directory=path / tp.dir_name)
                checks = pool.map(check, listed.ranges)
                for batch_range, wrong in zip(listed.ranges, checks, strict=True):
                    report.advance(batch_range.size_bytes)
                    if wrong is not None:
                        findings.add(wrong)
        if only is None:
            _check_files(path, files[""], digest, findings, grown=grown)
    return findings.list()


def _bases(listed: Collection[str]) -> set[int]:
    """The base offsets of the segments whose indexes are listed."""
    parsed = [names.parse_segment_file(Path(name).name) for name in listed]
    return {
        file_name.offset for file_name in parsed if file_name is not None and file_name.kind is FileKind.OFFSET_INDEX
    }


def _check_start(snapshot: LogSnapshot, listed: ManifestPartition, directory: Path, findings: Findings) -> None:
    start, before = snapshot.log_start_offset, listed.log_start_offset
    are_gone = bool(snapshot.segments) and snapshot.segments[0].base_offset > before  # so ranges are missing
    if start != before and not are_gone:
        what = f"the log start offset is not the one that the manifest lists: offsets {min(start, before)} to "
        what += f"{max(start, before) - 1} are {'hidden' if start > before else 'shown again'}"
        findings.add(Finding(FaultKind.MANIFEST_DIFFERS, directory, _RESTORE, what, expected=before, found=start))


def _digest_here(path: Path, name: str) -> ManifestFile | None:
    return digest_file(path / name)


def _digest_stored(backup: Backup, name: str) -> ManifestFile | None:
    file = backup.file(name)
    return None if file is None else ManifestFile(file.size, hashlib.sha256(file.whole()).hexdigest())


def _check_files(
    path: Path,
    files: Mapping[str, ManifestFile],
    digest: Callable[[str], ManifestFile | None],
    findings: Findings,
    *,
    grown: bool,
) -> None:
    """The listed files of one directory. `digest`: a file as it is now. `grown`: there is
    more in it than is listed."""
    for name, listed in files.items():
        if grown and name.rpartition("/")[2] not in _NEVER_CHANGE:
            continue
        try:
            current = digest(name)
        except (StorageError, OSError) as error:
            findings.add(Finding.of_error(FaultKind.MANIFEST_DIFFERS, error, path / name, _RESTORE))
            continue
        if current is None:
            what = "file that the manifest lists is not here"
            findings.add(Finding(FaultKind.MANIFEST_MISSING, path / name, _RESTORE, what))
        elif (current.size_bytes, current.sha256) != (listed.size_bytes, listed.sha256):
            what = "file is not as the manifest lists it"
            expected, has = (
                f"{content.size_bytes} bytes with SHA-256 {content.sha256}" for content in (listed, current)
            )
            findings.add(Finding(FaultKind.MANIFEST_DIFFERS, path / name, _RESTORE, what, expected=expected, found=has))


def _snapshot(log_dir: LogDir, tp: TopicPartition, listed: ManifestPartition, findings: Findings) -> LogSnapshot | None:
    """The partition's log; a finding, and None, if it is not there or cannot be read."""
    directory = log_dir.path / tp.dir_name
    if tp not in log_dir.all_partitions():
        if listed.ranges:
            what, expected = "partition that the manifest lists is not here", f"offsets {_all_offsets(listed)}"
            findings.add(Finding(FaultKind.MANIFEST_MISSING, directory, _RESTORE, what, expected=expected))
        return None
    try:
        return log_dir.log(tp).snapshot()
    except (StorageError, OSError) as error:
        findings.add(Finding.of_error(FaultKind.MANIFEST_MISSING, error, directory, _RESTORE))
        return None


def _all_offsets(listed: ManifestPartition) -> str:
    return f"{listed.ranges[0].first_offset} to {listed.ranges[-1].last_offset}"


def _check(snapshot: LogSnapshot, listed: BatchRange, directory: Path) -> Finding | None:
    """The finding about a range of the partition in `directory`."""
    digest, first, end = RangeDigest(), None, directory
    try:
        for span in spans_between(snapshot, listed.first_offset, listed.last_offset):
            if first is None:
                first = span.segment.log.path, span.origin, known_offset(span.table, 0)
            end = span.segment.log.path
            digest.add(parts_of(span.data), span.table)
        if first is None:
            return _missing(snapshot, listed, directory)
        actual = digest.result()
        if actual == listed:
            return None
        path, position, offset = first
        if offset != listed.first_offset:
            what = f"{FaultKind.MANIFEST_DIFFERS.text}: {_offsets(listed)}"
            expected = f"a batch with offset {listed.first_offset}"
            return Finding(FaultKind.MANIFEST_DIFFERS, path, _RESTORE, what, position, offset, expected, offset)
        if actual.last_offset != listed.last_offset:
            path, position = _end_of(snapshot, actual.last_offset + 1)
            end = path
        return _changed_batch(snapshot, listed) or _other_headers(path, end, position, listed, actual)
    except (StorageError, OSError) as error:
        wrong = Finding.of_error(FaultKind.MANIFEST_DIFFERS, error, directory, _RESTORE)
        return Finding(
            wrong.kind, wrong.path, wrong.how, f"{wrong.what}, among those that the manifest lists: {_offsets(listed)}",
            wrong.position, wrong.offset, wrong.expected, wrong.found,
        )  # fmt: skip


def _missing(snapshot: LogSnapshot, listed: BatchRange, directory: Path) -> Finding:
    """The finding about a range without any of its batches: the log ends before it, or has a gap."""
    segment = snapshot.active
    what = f"{FaultKind.MANIFEST_MISSING.text}: {_offsets(listed)}"
    if segment is None:
        return Finding(FaultKind.MANIFEST_MISSING, directory, _RESTORE, what, found="no segment")
    end = snapshot.log_end_offset
    position = snapshot.active_end if end <= listed.first_offset else None
    instead = f"the log ends at offset {end}" if position is not None else "a gap"
    return Finding(FaultKind.MANIFEST_MISSING, segment.log.path, _RESTORE, what, position, None, None, instead)


def _end_of(snapshot: LogSnapshot, offset: int) -> tuple[Path, int]:
    """The file and position where the next batch from an offset on begins, or the log ends."""
    behind = find_batch(replace(snapshot, log_start_offset=0), offset)
    if behind is not None:
        return behind.segment.log.path, behind.position
    return snapshot.segments[-1].log.path, snapshot.active_end


def _changed_batch(snapshot: LogSnapshot, listed: BatchRange) -> Finding | None:
    """The first batch of a range whose checksum is wrong."""
    for span in spans_between(snapshot, listed.first_offset, listed.last_offset):
        if isinstance(span.data, LargeBatch):
            continue  # its CRC was checked when it was found
        damage = verify_crcs(span.data, span.table, 0, span.table.rows, span.origin)
        if damage is not None:
            what = f"a batch has changed among those that the manifest lists: {_offsets(listed)}"
            error = damage.error
            return Finding(
                FaultKind.MANIFEST_DIFFERS, span.segment.log.path, _RESTORE, what, damage.position, error.offset,
                error.expected, error.found,
            )  # fmt: skip
    return None


def _other_headers(path: Path, end: Path, position: int, listed: BatchRange, actual: BatchRange) -> Finding:
    """A range of sound batches that are not those of the manifest; it is in the files from `path` to `end`."""
    what, expected, has = FaultKind.MANIFEST_DIFFERS.text, f"SHA-256 {listed.sha256}", actual.sha256
    if actual.last_offset != listed.last_offset or actual.batches != listed.batches:
        expected = f"{listed.batches} batches up to offset {listed.last_offset}"
        has = f"{actual.batches} batches up to offset {actual.last_offset}"
    elif actual.crc_of_crcs == listed.crc_of_crcs:
        what = "a batch's base offset or leader epoch, which no checksum covers, has changed"
    what += f": {_offsets(listed)}" + (f", in {path.name} to {end.name}" if end != path else "")
    return Finding(FaultKind.MANIFEST_DIFFERS, path, _RESTORE, what, position, listed.first_offset, expected, has)


def _offsets(listed: BatchRange) -> str:
    return f"offsets {listed.first_offset} to {listed.last_offset}"
