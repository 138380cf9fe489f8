"""The faults that `mutations` plants: those that were once in the code, and others of their kinds."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """In the file at `path` the text `old`, which is there once, becomes `new`."""

    path: str
    old: str
    new: str


class Fault(NamedTuple):
    """`name` says what is wrong."""

    name: str
    changes: tuple[Change, ...]


def _fault(name, path, old, new, *more):
    return Fault(name, (Change(path, old, new), *(Change(*one) for one in more)))


_LINES = "kafkafs/writing/line_writer.py"
_APPEND = "storage/append"
_READING = "kafkafs/reading"
_OWNED = "storage/directory"

FAULTS = (
    # Lines
    _fault(
        "error-counts-as-told",
        _LINES,
        "            told = not taken and (again or not self._may_be_cut)\n",
        "            told = True\n",
    ),
    _fault(
        "error-is-forgotten",
        _LINES,
        "            if taken:\n                return taken\n            raise error",
        "            if taken:\n                self._failure = None\n                return taken\n"
        "            raise error",
    ),
    _fault(
        "begun-line-is-forgotten",
        _LINES,
        "            self._failure = None\n            return True",
        "            self._failure = None\n            self._begun.clear()\n            return True",
    ),
    _fault("next-line-is-discarded", _LINES, "        self._discarding = continues", "        self._discarding = True"),
    _fault(
        "full-request-ends-a-write",
        _LINES,
        "_Failure(bytes(data[taken:]), error, told, len(data) >= CUT_BYTES)",
        "_Failure(bytes(data[taken:]), error, told, len(data) - taken >= CUT_BYTES)",
    ),
    _fault("sync-does-not-end-a-line", _LINES, "                failure.synced = True", "                pass"),
    _fault(
        "rest-of-line-is-a-line", _LINES, "        self._discarding = continues", "        self._discarding = False"
    ),
    _fault(
        "bytes-lack-and-fsync-is-0",
        _LINES,
        "if failure is not None and (not failure.told or self._lacks_bytes_locked(failure)):",
        "if failure is not None and not failure.told:",
    ),
    _fault(
        "fsync-forgets-error",
        _LINES,
        "if failure is not None and (not failure.told or self._lacks_bytes_locked(failure)):",
        "if failure is not None and self._lacks_bytes_locked(failure):",
    ),
    _fault(
        "lines-beyond-come-twice",
        "kafkafs/writing/destinations.py",
        "        if taken.beyond or self._already:",
        "        if False:",
    ),
    # Flushing
    _fault(
        "flush-without-its-turn",
        f"{_APPEND}/partition_log.py",
        "        with self:\n            if self._files.recovery_point >= offset:",
        "        if True:\n            if self._files.recovery_point >= offset:",
    ),
    _fault("put-back-left-out", f"{_APPEND}/partition_log.py", "                self._files.put_back(unsynced)\n", ""),
    _fault(
        "directory-sync-left-out",
        f"{_APPEND}/partition_files.py",
        "        if unsynced.names:\n",
        "        if False:\n",
    ),
    _fault(
        "log-sync-left-out",
        f"{_APPEND}/partition_files.py",
        "for path in sorted(unsynced.paths):",
        'for path in sorted(path for path in unsynced.paths if path.suffix != ".log"):',
    ),
    _fault(
        "recovery-point-too-far",
        f"{_APPEND}/partition_files.py",
        "self.recovery_point = max(self.recovery_point, offset)",
        "self.recovery_point = max(self.recovery_point, offset + 1)",
    ),
    _fault(
        "fsync-of-own-lines-only",
        "kafkafs/tree/append_files.py",
        "        sync_each((super().sync, self._flush))",
        "        super().sync()",
    ),
    _fault(
        "failed-flush-stays-online",
        f"{_APPEND}/partition_log.py",
        "                if isinstance(error, OSError) and error.errno not in OPENING_ERRORS:",
        "                if False:",
        (
            f"{_APPEND}/partition_log.py",
            "                self._flush_held(end_locked)\n            except OSError as error:\n"
            "                with self._lock:\n                    self._health.fail(error)\n                raise",
            "                self._flush_held(end_locked)\n            except OSError:\n                raise",
        ),
    ),
    _fault(
        "close-without-sync",
        f"{_APPEND}/partition_log.py",
        "                    self._files.sync(self._files.take_unsynced())\n",
        "",
    ),
    # Locks
    _fault(
        "lock-taken-too-late",
        f"{_APPEND}/partition_log.py",
        "        with self._lock:\n            self._opener.check()\n"
        "            base_offset, epoch = self._next_offset, self._epochs.latest_epoch\n            batch.place(",
        "        base_offset, epoch = self._next_offset, self._epochs.latest_epoch\n"
        "        with self._lock:\n            self._opener.check()\n            batch.place(",
    ),
    _fault(
        "lines-without-a-lock",
        _LINES,
        "        with self._lock:\n            if not len(data):",
        "        if True:\n            if not len(data):",
    ),
    # Descriptors, full disks
    _fault(
        "few-descriptors-take-offline",
        f"{_APPEND}/health.py",
        "OPENING_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})",
        "OPENING_ERRORS: Final = frozenset({errno.ENFILE, errno.ENOMEM})",
    ),
    _fault(
        "close-raises",
        f"{_OWNED}/owned_dir.py",
        "        except (StorageError, OSError) as error:\n            clean, failure = False, error",
        "        except StorageError as error:\n            clean, failure = False, error",
    ),
    _fault(
        "opening-is-not-tried-again",
        f"{_OWNED}/owned_dir.py",
        "            if isinstance(failure, PartitionUnavailable):",
        "            if False:",
    ),
    _fault(
        "full-disk-takes-offline",
        f"{_APPEND}/health.py",
        "frozenset({errno.ENOSPC, errno.EDQUOT, *OPENING_ERRORS})",
        "frozenset({*OPENING_ERRORS})",
    ),
    _fault(
        "undo-left-out",
        f"{_APPEND}/active_segment.py",
        "        except BaseException:\n            self._state.restore(before)\n            self._undo(base)\n"
        "            raise\n        if entries:",
        "        except BaseException:\n            self._state.restore(before)\n"
        "            raise\n        if entries:",
    ),
    # Recovery
    _fault(
        "later-segments-kept",
        "storage/recovery/recovery.py",
        "        for other in reversed(later):\n            self._remove_segment(other)\n",
        "",
    ),
    _fault(
        "final-time-entry-unchecked",
        "storage/recovery/recovery.py",
        "            if ends_there:",
        "            if False:",
    ),
    _fault(
        "clean-marker-stays",
        f"{_OWNED}/clean_shutdown.py",
        "    disk.unlink(directory / names.CLEAN_SHUTDOWN)\n    disk.sync_dir(directory)",
        "    pass",
    ),
    _fault(
        "clean-marker-not-durable",
        f"{_OWNED}/clean_shutdown.py",
        "    disk.unlink(directory / names.CLEAN_SHUTDOWN)\n    disk.sync_dir(directory)",
        "    disk.unlink(directory / names.CLEAN_SHUTDOWN)",
    ),
    # Topics that are removed and made again
    _fault(
        "opening-not-tied-to-directory",
        f"{_OWNED}/owned_dir.py",
        "replaced = not is_there()",
        "replaced = False",
        (
            f"{_OWNED}/owned_dir.py",
            "            with self._logs.alone(partitions):\n                try:",
            "            if True:\n                try:",
        ),
        (f"{_OWNED}/owned_dir.py", "        with self._logs.alone(new):", "        if True:"),
    ),
    _fault(
        "failures-of-gone-partitions",
        f"{_OWNED}/owned_dir.py",
        "        return {tp: failed[tp] for tp in sorted(failed) if self._is_here(tp)}",
        "        return failed",
        (f"{_OWNED}/owned_dir.py", "{tp: failures[tp] for tp in failures if self._is_here(tp)}", "dict(failures)"),
        (f"{_OWNED}/owned_dir.py", "        if replaced or partition_dirs.is_gone(directory):", "        if False:"),
        (
            f"{_OWNED}/owned_dir.py",
            "            with self._logs.alone(partitions):\n                try:",
            "            if True:\n                try:",
        ),
    ),
    _fault(
        "checkpoint-lines-stay",
        f"{_OWNED}/owned_dir.py",
        "            self.checkpoints.remove(new)\n",
        "",
        (f"{_OWNED}/owned_dir.py", "                self.checkpoints.remove(partitions)\n", ""),
    ),
    _fault(
        "configuration-of-before",
        f"{_OWNED}/owned_dir.py",
        "                self._config_changes += 1  # `_install` checks it\n",
        "",
    ),
    _fault(
        "view-of-removed-topic",
        "kafkafs/tree/services.py",
        "if state is not None and state.log is not log:",
        "if False:",
    ),
    # Views
    _fault(
        "closed-time-range-freezes",
        f"{_READING}/growth.py",
        "            complete = self._question.is_fixed or (",
        "            times = self._question.times\n"
        "            closed = isinstance(times, TimeBetween) and times.end_ms is not None\n"
        "            complete = self._question.is_fixed or closed or (",
    ),
    _fault(
        "count-before-the-step",
        f"{_READING}/growth.py",
        "        layout, selection, tally = shown.layout, shown.selection, shown.tally\n",
        "        layout, selection, tally = shown.layout, shown.selection, getattr(shown.plan, 'tally', shown.tally)\n",
        (
            f"{_READING}/growth.py",
            "                selection, tally = self._counted(snapshot, selection, tally, visible)\n",
            "                selection, tally = self._counted(snapshot, selection, tally, visible)\n"
            "                shown.plan.tally = tally._replace(offset=shown.tally.offset)\n",
        ),
    ),
    _fault(
        "damage-ends-a-page-read",
        f"{_READING}/handle.py",
        "if position > offset and self.direct_io:",
        "if position > offset:",
        (f"{_READING}/handle.py", "sealed = opened.sealed and not layout.is_damaged", "sealed = opened.sealed"),
        (f"{_READING}/handle.py", "if count < expected and self.direct_io:", "if count < expected:"),
    ),
    # Upkeep, staged writes
    _fault(
        "upkeep-ignores-pending-writes",
        "storage/staged_writes/ledger.py",
        "    return min((part.base_offset for part in shares), default=None)",
        "    return None",
    ),
    _fault("retention-takes-active", "storage/upkeep/retention.py", "[: len(snapshot.segments) - 1]\n", "\n"),
    _fault(
        "retention-takes-one-more",
        "storage/upkeep/retention.py",
        "        return excess >= 0",
        "        return excess + segment.size_bytes > 0",
    ),
    _fault(
        "intent-left-out",
        "storage/staged_writes/commit.py",
        "        owned.commits.change(lambda ledger: ledger.begun(begun))\n",
        "        pass\n",
    ),
    _fault(
        "share-becomes-visible-early",
        f"{_APPEND}/active_segment.py",
        "self._log.write_at(base, chunk[: LENGTH.start], bytes(len(length)), chunk[LENGTH.stop :])",
        "self._log.write_at(base, chunk)",
    ),
    _fault(
        "replay-is-written",
        "storage/staged_writes/commit.py",
        "    if owned.commits.state.is_done(write):",
        "    if False:",
    ),
    _fault(
        "compaction-off-by-one",
        "storage/compaction/compaction.py",
        "end_offset = max(self._map.latest_offset + 1, dirty.first_dirty)",
        "end_offset = max(self._map.latest_offset + 1, dirty.first_dirty) + 1",
    ),
    _fault(
        "compaction-takes-the-active",
        "storage/compaction/compaction.py",
        "bounds = (last_stable_offset(snapshot), segments[-1].base_offset, high_watermark, kept_from)",
        "bounds = (last_stable_offset(snapshot), snapshot.log_end_offset, high_watermark, kept_from)",
        (
            "storage/compaction/compaction.py",
            "uncleanable = segments[max(snapshot.segment_index(limit), 0)].base_offset",
            "uncleanable = limit",
        ),
    ),
    _fault(
        "cleaned-segment-not-synced",
        f"{_APPEND}/swap.py",
        "        for path in paths:\n            sync_path(self._disk, path)\n",
        "",
    ),
    _fault(
        "deleted-messages-shown",
        f"{_READING}/layout.py",
        "    if cursor.next_offset < snapshot.log_start_offset:",
        "    if False:",
    ),
    _fault(
        "damage-hides-its-own-times",
        f"{_READING}/extent.py",
        "        known += [time for time in own if max(first, 0) <= time <= last]\n",
        "        known += []\n",
    ),
    # Of a follower: leader epochs, log start, producers, indexes
    _fault(
        "epochs-are-not-written",
        f"{_APPEND}/partition_log.py",
        "            self._files.write_epochs(epochs)\n",
        "",
    ),
    _fault(
        "log-start-not-checkpointed",
        f"{_OWNED}/owned_dir.py",
        "PartitionOffsets(recovery_point, start if has_line else None, high_watermark)",
        "PartitionOffsets(recovery_point, None, high_watermark)",
    ),
    _fault(
        "high-watermark-too-low",
        f"{_OWNED}/owned_dir.py",
        "high_watermark: int | None = snapshot.log_end_offset",
        "high_watermark: int | None = snapshot.log_start_offset",
    ),
    _fault(
        "checkpoint-ahead-of-sync",
        f"{_OWNED}/owned_dir.py",
        "        recovery_point = log.recovery_point\n",
        "        recovery_point = log.log_end_offset\n",
    ),
    _fault(
        "roll-without-snapshot",
        f"{_APPEND}/partition_log.py",
        "            self._files.write_producer_snapshot(base_offset, self._producers.snapshot())\n",
        "",
    ),
    _fault(
        "recovery-leaves-out-aborted",
        "storage/recovery/recovery.py",
        "                aborted.extend(changes.aborted)\n",
        "                pass\n",
    ),
    _fault(
        "index-state-not-restored", f"{_APPEND}/active_segment.py", "        self._state = values\n", "        pass\n"
    ),
    # The cleaner
    _fault(
        "cleaner-drops-last-of-producer",
        "storage/compaction/batch_filter.py",
        "needed = self._is_last_of_producer(table, control) | (table.last_offset + 1 == self._rules.end_offset)",
        "needed = table.last_offset + 1 == self._rules.end_offset",
    ),
    _fault(
        "cleaner-checkpoint-too-far",
        "storage/compaction/cleaner.py",
        "            owned.note_cleaned(log, result.end_offset)\n",
        "            owned.note_cleaned(log, log.snapshot().segments[-1].base_offset)\n",
    ),
    # The order of names at a loss of power
    _fault(
        "whole-append-begins-first",
        f"{_APPEND}/partition_log.py",
        "    for segment in reversed(built):\n",
        "    for segment in built:\n",
    ),
    _fault(
        "replacement-is-not-synced",
        f"{_APPEND}/swap.py",
        "_path(directory, base_offset, kind, FileState.SWAP))\n    disk.sync_dir(directory)\n",
        "_path(directory, base_offset, kind, FileState.SWAP))\n",
    ),
    _fault(
        "names-of-a-built-segment-are-not-synced",
        f"{_APPEND}/swap.py",
        "        self._disk.sync_dir(self._directory)\n        for path in paths[:3]:",
        "        for path in paths[:3]:",
    ),
    # What is on the disk below a recovery point, and after an orderly end
    _fault(
        "closed-without-snapshot",
        f"{_APPEND}/partition_log.py",
        "                    self._files.write_producer_snapshot(self._next_offset, self._producers.snapshot())\n",
        "",
    ),
    _fault(
        "removed-files-stay",
        "storage/upkeep/maintenance.py",
        "        for entry in awaiting:\n            self._unlink(entry, report)\n",
        "",
    ),
    # Durable writes
    _fault("durable-write-is-not-synced", _LINES, "            if durable and (done", "            if False and (done"),
    _fault(
        "refused-durable-line-goes-on",
        _LINES,
        "            self._refuse_locked(data, 0, error, told=again or not self._may_be_cut, again=again)\n"
        "            self._begun[:] = begun\n            assert self._failure is not None\n"
        "            self._failure.done = done\n            if before is not None and before.done > done:\n"
        "                self._failure.data, self._failure.done = before.data, before.done\n            raise\n",
        "            raise error\n",
        (_LINES, '(done := bytes(data[:taken]).rfind(b"\\n") + 1)', "(done := taken)"),
    ),
    # Queries
    _fault(
        "unfinished-write-forbids-nothing",
        "storage/staged_writes/commit.py",
        "    _refuse_behind_unfinished(owned, write)\n",
        "",
    ),
    _fault(
        "ledger-forgets-queries",
        "storage/files/commit_ledger.py",
        "for query, last in ledger.queries.items()}",
        "for query, last in ()}",
    ),
    _fault(
        "staged-files-stay",
        "storage/staged_writes/commit.py",
        "ledger.done(write, owned.clock.now_ms()))\n    discard(owned, files)\n",
        "ledger.done(write, owned.clock.now_ms()))\n",
    ),
    # The directory
    _fault(
        "configuration-of-first-partition",
        f"{_OWNED}/partition_dirs.py",
        "    for directory in directories:\n",
        "    for directory in directories[:1]:\n",
    ),
    _fault(
        "clean-marker-despite-failure",
        f"{_OWNED}/owned_dir.py",
        "clean = all_asked and not errors and not self._logs.unsound()",
        "clean = all_asked",
    ),
    # retention.ms, flush.ms, segments, deleted keys, partitions that are added
    _fault(
        "retention-by-time-never",
        "storage/upkeep/retention.py",
        "log.now_ms - segment.largest_timestamp_ms() > limit)",
        "log.now_ms - segment.largest_timestamp_ms() > limit + 10**9)",
    ),
    _fault(
        "retention-by-time-too-early",
        "storage/upkeep/retention.py",
        "log.now_ms - segment.largest_timestamp_ms() > limit)",
        "log.now_ms - segment.largest_timestamp_ms() > limit - 60)",
    ),
    _fault(
        "retention-by-first-message",
        "storage/log/offset_lookup.py",
        "    greatest = greatest_timestamp(snapshot, segment).timestamp\n",
        "    first = segment.batch_at(0, snapshot.end_position(segment))\n"
        "    greatest = -1 if first is None else int(first.max_timestamp[0])\n",
    ),
    _fault(
        "flush-ms-never",
        "storage/upkeep/maintenance.py",
        "                if not 0 <= now_ms - log.last_flush_ms < every_ms:  # also when the clock was set back\n",
        "                if False:\n",
    ),
    _fault(
        "flush-ms-late",
        "storage/upkeep/maintenance.py",
        "every_ms = max(log.config.flush_ms, _LEAST_FLUSH_MS)",
        "every_ms = max(log.config.flush_ms * 5, _LEAST_FLUSH_MS)",
    ),
    _fault(
        "flush-ms-counts-sealed",
        f"{_APPEND}/partition_log.py",
        "now_ms = None if only_sealed else self._clock.now_ms()",
        "now_ms = self._clock.now_ms()",
    ),
    _fault(
        "segments-are-too-large",
        f"{_APPEND}/rolling_rules.py",
        "    if fill.size_bytes + size > limits.segment_bytes:",
        "    if fill.size_bytes > limits.segment_bytes:",
    ),
    _fault(
        "segment-ms-counts-from-opening",
        f"{_APPEND}/active_segment.py",
        "            first_timestamp=NO_TIMESTAMP if first is None else int(first.max_timestamp[0]),",
        "            first_timestamp=NO_TIMESTAMP,",
    ),
    _fault(
        "deletes-go-at-once",
        "storage/compaction/batch_filter.py",
        "~passed, retain_legacy_deletes)] |= KEEP_DELETES",
        "False, retain_legacy_deletes)] |= KEEP_DELETES",
    ),
    _fault(
        "deletes-stay",
        "storage/compaction/batch_filter.py",
        "~passed, retain_legacy_deletes)] |= KEEP_DELETES",
        "True, retain_legacy_deletes)] |= KEEP_DELETES",
    ),
    _fault(
        "deletes-horizon-from-message",
        "storage/compaction/batch_filter.py",
        "        horizons[new_horizon] = rules.now_ms + rules.delete_retention_ms\n",
        "        horizons[new_horizon] = (table.base_timestamp + rules.delete_retention_ms - 1)[new_horizon]\n",
    ),
    _fault(
        "deletes-horizon-moves",
        "storage/compaction/batch_filter.py",
        "        new_horizon = ~has_horizon & (",
        "        new_horizon = (",
    ),
    _fault(
        "added-partition-without-configuration",
        f"{_OWNED}/owned_dir.py",
        "self._create_partitions(topic, missing, topic_id, info.overrides, {})",
        "self._create_partitions(topic, missing, topic_id, {}, {})",
    ),
    _fault(
        "added-partition-has-its-own-id",
        f"{_OWNED}/owned_dir.py",
        "topic_id = info.topic_id or partition_metadata.random_id()",
        "topic_id = partition_metadata.random_id()",
    ),
    _fault(
        "made-partitions-are-not-synced",
        f"{_OWNED}/partition_dirs.py",
        "                remove(disk, directory)\n        raise\n    disk.sync_dir(log_dir)\n",
        "                remove(disk, directory)\n        raise\n",
    ),
    _fault(
        "partitions-are-made-in-any-order",
        f"{_OWNED}/partition_dirs.py",
        "        for tp in list(built):\n",
        "        for tp in reversed(list(built)):\n",
    ),
    # Of states that others repair: producers, checkpoints, groups, markers, the order of names
    _fault(
        "producer-expires-too-early",
        f"{_APPEND}/producer_table.py",
        "now_ms - entry.timestamp < expiration_ms",
        "now_ms - entry.timestamp < expiration_ms // 8",
    ),
    _fault(
        "producer-expires-in-its-transaction",
        f"{_APPEND}/producer_table.py",
        "if entry.current_txn_first_offset >= 0 or now_ms",
        "if now_ms",
    ),
    _fault(
        "marker-leaves-time-of-producer",
        f"{_APPEND}/producer_table.py",
        "        timestamp=marker.timestamp,\n        coordinator_epoch",
        "        timestamp=entry.timestamp,\n        coordinator_epoch",
    ),
    _fault(
        "opened-log-keeps-its-checkpoints",
        f"{_OWNED}/owned_dir.py",
        "        if max(known.recovery_point or 0, cleaned) <= end:\n",
        "        if True:\n",
    ),
    _fault(
        "segments-go-newest-first",
        f"{_APPEND}/partition_log.py",
        "removed = self._files.rename_deleted(segments)",
        "removed = self._files.rename_deleted(segments[::-1])",
    ),
    _fault(
        "aborted-is-stable-too-early",
        f"{_APPEND}/producer_table.py",
        "stable = self._next_open(entries, producer, marker.offset + 1)",
        "stable = marker.offset + 1",
    ),
    _fault(
        "aborted-is-not-noted",
        f"{_APPEND}/partition_log.py",
        "        if changes is not None and changes.aborted:\n",
        "        if False:\n",
    ),
    _fault(
        "last-time-entry-is-left-out",
        f"{_APPEND}/active_segment.py",
        "        if final is not None:\n            data",
        "        if False:\n            data",
    ),
    _fault(
        "commit-of-a-group-is-not-flushed",
        "storage/coordinators/group_commits.py",
        "            self._log(group).flush()\n",
        "            self._log(group)\n",
    ),
    _fault(
        "removed-segments-keep-epochs",
        f"{_APPEND}/partition_log.py",
        "                self._replace_epochs_locked(self._epochs.truncate_from_start(first.base_offset))\n",
        "",
    ),
    _fault(
        "removed-segments-keep-log-start",
        f"{_APPEND}/partition_log.py",
        "            self._log_start_offset = max(self._log_start_offset, first.base_offset)\n",
        "",
    ),
)
