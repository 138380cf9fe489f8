"""Planted faults: for each promise one that breaks it, as functions that stand in for public ones of the product."""

import contextlib
import copy
import errno
import weakref
from dataclasses import replace

from kafkafs.reading.layout import Layout
from kafkafs.tree.append_files import AppendHandle, LinesHandle
from kafkafs.writing.line_writer import LineWriter
from storage.append.health import Health
from storage.append.index_state import IndexState
from storage.append.partition_files import PartitionFiles
from storage.append.partition_log import PartitionLog
from storage.compaction.compaction import PassInput
from storage.coordinators.group_commits import GroupCommitter
from storage.directory import clean_shutdown
from storage.directory.directory_checkpoints import DirectoryCheckpoints
from storage.directory.owned_dir import OwnedDir
from storage.errors import StorageError
from storage.files.commit_ledger import Ledger
from storage.recovery import recovery
from storage.staged_writes import ledger, shares
from storage.upkeep import retention


def _does_nothing(*_arguments):
    return None


def _finds_nothing(*_arguments):
    return ()


# By name: what is replaced, and the function that stands in for it. That gets what it replaces before the arguments.
FAULTS = {
    "offsets_of_groups_are_not_synced": (GroupCommitter, "sync", _does_nothing),
    "last_time_entry_is_left_out": (IndexState, "final_time_entry", _does_nothing),
    "producers_are_not_written": (PartitionFiles, "write_producer_snapshot", _does_nothing),
    "aborted_transactions_are_not_noted": (PartitionFiles, "append_aborted", _does_nothing),
    "leader_epochs_are_not_written": (PartitionFiles, "write_epochs", _does_nothing),
    "checkpoint_lines_stay": (DirectoryCheckpoints, "remove", _does_nothing),
    "retention_ignores_pending_writes": (ledger, "kept_from", _does_nothing),
    "shares_are_appended_again": (shares, "spans_between", _finds_nothing),
}


def plant(patch, fault):
    """From now on the fault of this name is in the product."""
    owner, name, stand_in = FAULTS[fault]
    replaced = vars(owner)[name]
    if isinstance(replaced, property):
        patch.setattr(owner, name, property(lambda self: stand_in(replaced.fget, self)))
    elif isinstance(replaced, staticmethod):
        patch.setattr(owner, name, staticmethod(lambda *arguments, **named: stand_in(replaced, *arguments, **named)))
    else:
        patch.setattr(owner, name, lambda *arguments, **named: stand_in(replaced, *arguments, **named))


def _stands_in_for(owner, name):
    def note(stand_in):
        FAULTS[stand_in.__name__] = owner, name, stand_in
        return stand_in

    return note


@_stands_in_for(PartitionFiles, "sync")
def messages_are_not_synced(sync, files, unsynced):
    unsynced.paths = {path for path in unsynced.paths if path.suffix != ".log"}
    sync(files, unsynced)


@_stands_in_for(PartitionFiles, "sync")
def names_are_not_synced(sync, files, unsynced):
    unsynced.names = False
    sync(files, unsynced)


@_stands_in_for(clean_shutdown, "remove")
def clean_marker_comes_back(_remove, disk, directory):
    disk.unlink(directory / ".kafka_cleanshutdown")  # and the directory is not synced


@_stands_in_for(PartitionFiles, "synced")
def recovery_point_is_too_far(synced, files, offset, now_ms):
    synced(files, offset + 1, now_ms)


@_stands_in_for(AppendHandle, "sync")
def fsync_covers_own_lines_only(_sync, handle):
    LinesHandle.sync(handle)


@_stands_in_for(LineWriter, "sync")
def fsync_hides_errors(sync, writer):
    with contextlib.suppress(StorageError, OSError):
        sync(writer)


_first_states = weakref.WeakKeyDictionary()  # copies of writers
_refusing = weakref.WeakSet()


@_stands_in_for(LineWriter, "write")
def refused_file_takes_more(write, writer, data, *, durable=False):
    before = _first_states.setdefault(writer, copy.copy(writer))
    try:
        return write(writer, data, durable=durable)
    except (StorageError, OSError):
        if writer in _refusing:
            return write(before, data, durable=durable)
        _refusing.add(writer)
        raise


@_stands_in_for(Health, "fail")
def failed_sync_stays_online(fail, health, error):
    if getattr(error, "errno", None) != errno.EIO:
        fail(health, error)


@_stands_in_for(Health, "failed")
def full_disk_takes_offline(failed, health, error, *, in_doubt):
    failed(health, error, in_doubt=True)


@_stands_in_for(PartitionLog, "append_batch")
def offset_is_taken_without_the_lock(append_batch, log, batch, now_ms):
    class Early(type(batch)):
        def place(self, _base_offset, leader_epoch):
            batch.place(base_offset, leader_epoch)

    base_offset = log.log_end_offset
    return append_batch(log, Early(*batch), now_ms)


@_stands_in_for(recovery, "plan_leftovers")
def recovery_leaves_interrupted_work(plan_leftovers, *arguments):
    return replace(plan_leftovers(*arguments), remove=())


@_stands_in_for(DirectoryCheckpoints, "set")
def log_start_is_not_checkpointed(set_offsets, checkpoints, tp, offsets):
    set_offsets(checkpoints, tp, replace(offsets, log_start=None))


@_stands_in_for(retention, "retention_timestamp_ms")
def retention_is_early(timestamp_ms, snapshot, segment):
    return timestamp_ms(snapshot, segment) - 60


@_stands_in_for(PartitionFiles, "rename_deleted")
def newest_segments_go_first(rename_deleted, files, segments):
    return rename_deleted(files, segments[::-1])


@_stands_in_for(OwnedDir, "note_cleaned")
def cleaner_checkpoint_is_too_far(note_cleaned, owned, log, _offset):
    note_cleaned(owned, log, log.log_end_offset)


@_stands_in_for(PassInput, "rules")
def cleaner_forgets_producers(rules, pass_input):
    return replace(rules(pass_input), producers=())


@_stands_in_for(PassInput, "rules")
def deleted_keys_stay(rules, pass_input):
    return replace(rules(pass_input), delete_retention_ms=1 << 40)


@_stands_in_for(Ledger, "begun")
def write_begins_without_its_intent(_begun, state, _commit):
    return state


@_stands_in_for(Ledger, "is_done")
def replay_is_written(_is_done, _state, _write):
    return False


@_stands_in_for(Layout, "of")
def view_stops_growing(of, cursor, runs, greatest, complete, *unlisted):
    return of(cursor, runs, greatest, complete or bool(runs), *unlisted)
