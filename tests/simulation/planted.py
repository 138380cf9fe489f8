"""Planted faults: for each promise one that breaks it, as functions that stand in for public ones of the product."""

import contextlib
import errno
from dataclasses import replace

from kafkafs.reading import growth
from kafkafs.reading.layout import Layout
from kafkafs.tree.append_files import AppendHandle, LinesHandle
from kafkafs.writing.destinations import AlreadyAppended
from kafkafs.writing.line_writer import LineWriter
from storage.append import partition_log, swap
from storage.append.active_segment import IndexState
from storage.append.health import Health
from storage.append.partition_files import PartitionFiles
from storage.append.partition_log import PartitionLog
from storage.compaction.compaction import PassInput
from storage.coordinators.group_commits import GroupCommitter
from storage.directory import clean_shutdown, partition_dirs
from storage.directory.directory_checkpoints import DirectoryCheckpoints
from storage.directory.owned_dir import OwnedDir, OwnedLogs
from storage.errors import StorageError
from storage.files.commit_ledger import Ledger
from storage.recovery import recovery
from storage.staged_writes import ledger
from storage.upkeep import retention

FAULTS = {}  # by name: the function that stands in, and what it stands in for


def stands_in_for(owner, name):
    """The decorated function replaces a function or method, which it gets before the arguments of each call."""

    def plant(stand_in):
        FAULTS[stand_in.__name__] = stand_in, owner, name
        return stand_in

    return plant


def plant(patch, fault):
    """From now on the fault of this name is in the product."""
    stand_in, owner, name = FAULTS[fault]
    replaced = vars(owner)[name]
    if isinstance(replaced, property):
        patch.setattr(owner, name, property(lambda self: stand_in(replaced.fget, self)))
        return
    call = getattr(replaced, "__func__", replaced)  # of a static method

    def standing_in(*arguments, **named):
        return stand_in(call, *arguments, **named)

    patch.setattr(owner, name, staticmethod(standing_in) if isinstance(replaced, staticmethod) else standing_in)


class _UnsyncedNames:
    """A disk that does not sync directories."""

    def __init__(self, disk):
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def sync_dir(self, _path):
        pass


# What is acknowledged is on the disk, with its name


@stands_in_for(PartitionFiles, "sync")
def messages_are_not_synced(sync, files, unsynced):
    unsynced.paths = {path for path in unsynced.paths if path.suffix != ".log"}
    sync(files, unsynced)


@stands_in_for(PartitionFiles, "sync")
def names_are_not_synced(sync, files, unsynced):
    unsynced.names = False
    sync(files, unsynced)


@stands_in_for(partition_dirs, "create")
def new_partitions_are_not_synced(create, disk, log_dir, *arguments):
    create(_UnsyncedNames(disk), log_dir, *arguments)


@stands_in_for(swap, "make_ready")
def replacement_is_not_synced(make_ready, disk, directory, base_offset):
    make_ready(_UnsyncedNames(disk), directory, base_offset)


@stands_in_for(clean_shutdown, "remove")
def clean_marker_comes_back(remove, disk, directory):
    remove(_UnsyncedNames(disk), directory)


@stands_in_for(PartitionFiles, "synced")
def recovery_point_is_too_far(synced, files, offset, now_ms):
    synced(files, offset + 1, now_ms)


@stands_in_for(AppendHandle, "sync")
def fsync_covers_own_lines_only(_sync, handle):
    LinesHandle.sync(handle)


@stands_in_for(GroupCommitter, "sync")
def offsets_of_groups_are_not_synced(_sync, _committer, _group):
    pass


# What fails is told, and once


@stands_in_for(LineWriter, "sync")
def fsync_hides_errors(sync, writer):
    with contextlib.suppress(StorageError, OSError):
        sync(writer)


@stands_in_for(AlreadyAppended, "note")
def lines_are_appended_twice(_note, _already, _columns, _count, _there):
    pass


@stands_in_for(Health, "fail")
def failed_sync_stays_online(fail, health, error):
    if getattr(error, "errno", None) != errno.EIO:
        fail(health, error)


@stands_in_for(Health, "failed")
def full_disk_takes_offline(failed, health, error, *, in_doubt):
    failed(health, error, in_doubt=True)


# Offsets and order


@stands_in_for(PartitionLog, "append_batch")
def offset_is_taken_without_the_lock(append_batch, log, batch, now_ms):
    class Early(type(batch)):
        def place(self, _base_offset, leader_epoch):
            batch.place(base_offset, leader_epoch)

    base_offset = log.log_end_offset
    return append_batch(log, Early(*batch), now_ms)


@stands_in_for(partition_log, "batch_fits")
def segments_are_never_full(_batch_fits, *_arguments):
    return True


# Recovery


@stands_in_for(recovery, "plan_leftovers")
def replaced_segments_stay(plan_leftovers, *arguments):
    plan = plan_leftovers(*arguments)
    return replace(plan, remove=tuple(name for name in plan.remove if not name.endswith((".log", ".cleaned"))))


@stands_in_for(recovery, "is_sound")
def rolled_segment_is_not_checked(_is_sound, _segment):
    return True


@stands_in_for(DirectoryCheckpoints, "set")
def log_start_is_not_checkpointed(set_offsets, checkpoints, tp, offsets):
    set_offsets(checkpoints, tp, replace(offsets, log_start=None))


# Indexes


@stands_in_for(IndexState, "final_time_entry")
def last_time_entry_is_left_out(_final_time_entry, _state):
    return None


@stands_in_for(IndexState, "restore")
def failed_append_counts_for_the_index(_restore, _state, _values):
    pass


# Producers, transactions, leader epochs


@stands_in_for(PartitionFiles, "write_producer_snapshot")
def producers_are_not_written(_write, _files, _offset, _content):
    pass


@stands_in_for(PartitionFiles, "append_aborted")
def aborted_transactions_are_not_noted(_append, _files, _base_offset, _aborted):
    pass


@stands_in_for(PartitionFiles, "write_epochs")
def leader_epochs_are_not_written(_write, _files, _epochs):
    pass


# Retention, compaction


@stands_in_for(retention, "retention_timestamp_ms")
def retention_is_early(timestamp_ms, snapshot, segment):
    return timestamp_ms(snapshot, segment) - 60


@stands_in_for(PartitionFiles, "rename_deleted")
def newest_segments_go_first(rename_deleted, files, segments):
    return rename_deleted(files, segments[::-1])


@stands_in_for(OwnedDir, "note_cleaned")
def cleaner_checkpoint_is_too_far(note_cleaned, owned, log, _offset):
    note_cleaned(owned, log, log.log_end_offset)


@stands_in_for(PassInput, "rules")
def cleaner_forgets_producers(rules, pass_input):
    return replace(rules(pass_input), producers=())


@stands_in_for(PassInput, "rules")
def deletes_go_at_once(rules, pass_input):
    return replace(rules(pass_input), delete_retention_ms=0)


# Exactly-once writes


@stands_in_for(Ledger, "begun")
def write_begins_without_its_intent(_begun, state, _commit):
    return state


@stands_in_for(Ledger, "is_done")
def replay_is_written(_is_done, _state, _write):
    return False


@stands_in_for(ledger, "kept_from")
def retention_ignores_pending_writes(_kept_from, _state, _snapshot):
    return None


# Topics that are removed and made again


@stands_in_for(DirectoryCheckpoints, "remove")
def checkpoint_lines_stay(_remove, _checkpoints, _partitions):
    pass


@stands_in_for(OwnedLogs, "alone")
def log_is_opened_while_its_topic_goes(_alone, _logs, _partitions):
    return contextlib.nullcontext()


# Views


@stands_in_for(growth, "spans_from")
def deleted_messages_are_shown(spans_from, snapshot, *arguments):
    return spans_from(replace(snapshot, log_start_offset=snapshot.segments[0].base_offset), *arguments)


@stands_in_for(Layout, "of")
def view_stops_growing(of, cursor, runs, greatest, complete, *unlisted):
    return of(cursor, runs, greatest, complete or bool(runs), *unlisted)
