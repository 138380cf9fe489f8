"""What a process leaves in a log directory, before anything is repaired: what the next opening relies on."""

from storage.errors import CorruptCheckpoint, PartitionUnavailable
from storage.files import checkpoints, leader_epochs, names
from storage.files.names import FileKind
from storage.types import TopicPartition
from tests.simulation.contents import Anomaly, batches_in, segments_of
from tests.simulation.disk import check_partitions
from tests.simulation.oracle import COMPACTED
from tests.simulation.states import check_durable, check_reaches


def check_killed(world, *, lost_power):
    """After a kill or a loss of power."""
    if not lost_power:
        check_partitions(world.path)
    for topic, count in world.partitions.items():
        gone = [n for n in range(count) if not (world.path / TopicPartition(topic, n).dir_name).is_dir()]
        if gone:
            raise Anomaly(f"partitions {gone} of {topic} are gone, which had {count}")
    points = _read(world, names.RECOVERY_POINT_CHECKPOINT)
    starts = _read(world, names.LOG_START_CHECKPOINT)
    for tp, point in points.items():
        directory = world.path / tp.dir_name
        if not directory.is_dir() or tp.topic in world.removals or (world.rotten and tp.topic == "plain"):
            continue
        if any(directory.glob("*.swap")) or any(directory.glob("*.cleaned")):
            continue  # a replacement has to be finished first
        if lost_power:
            check_reaches(directory, point, "recovery point checkpoint")
        else:
            check_durable(directory, point, world.disk, "recovery point checkpoint")
    for tp, copy in world.copies.items():
        if starts.get(tp, 0) > copy.start:
            raise Anomaly(f"log start checkpoint: {starts[tp]} of {tp}, expected at most {copy.start}")
        # A batch's leader epoch is on disk before the batch.
        directory = world.path / tp.dir_name
        entries = leader_epochs.read(directory / names.LEADER_EPOCH_CHECKPOINT).entries
        written = {(batch.base, batch.crc): batch.epoch for batch in copy.batches if copy.start <= batch.last}
        epochs = {written[place] for place in batches_in(directory) if place in written}
        if missing := epochs - {entry.epoch for entry in entries}:
            raise Anomaly(f"leader epochs: {tp} holds batches of {missing}, and has {entries}")


def check_opened(world, owned):
    """After an opening: no checkpoint is beyond a log, which may have been cut. What is appended to it now is neither
    on the disk nor cleaned."""
    for name in (names.RECOVERY_POINT_CHECKPOINT, names.CLEANER_CHECKPOINT):
        lines = _read(world, name)
        if beyond := {log.tp: lines[log.tp] for log in owned.logs() if lines.get(log.tp, 0) > log.log_end_offset}:
            raise Anomaly(f"{name} is beyond the end of logs that were opened: {beyond}")


def check_closed(world, owned, closing, offline):
    """After a close: what says that it was in order, and the checkpoints. `offline`: the partitions that failed
    before."""
    is_marked = (world.path / names.CLEAN_SHUTDOWN).exists()
    # Only the sync of its name may have failed.
    in_doubt = is_marked and isinstance(closing.failure, OSError) and not closing.errors
    if is_marked != closing.clean and not in_doubt:
        raise Anomaly(f"clean shutdown: the file is there: {is_marked}, after {closing}")
    offline = {tp: error for tp, error in offline.items() if not isinstance(error, PartitionUnavailable)}
    if closing.clean and (offline or closing.errors):  # what was only unavailable has been opened now
        raise Anomaly(f"clean shutdown: {closing}, although these failed: {offline}")
    if not closing.clean:
        return
    points, starts = _read(world, names.RECOVERY_POINT_CHECKPOINT), _read(world, names.LOG_START_CHECKPOINT)
    marks, cleaner = _read(world, names.REPLICATION_CHECKPOINT), _read(world, names.CLEANER_CHECKPOINT)
    for log in owned.logs():
        tp, end, directory = log.tp, log.log_end_offset, world.path / log.tp.dir_name
        first = min((int(path.stem) for path in directory.glob("*.log")), default=0)
        expected = end, end, log.log_start_offset if log.log_start_offset > first else None
        written = points.get(tp), marks.get(tp), starts.get(tp)
        if written != expected:
            raise Anomaly(f"checkpoints of {tp}: {written}, expected {expected}")
        if cleaner.get(tp, 0) > end:
            raise Anomaly(f"cleaner checkpoint: {cleaner[tp]} of {tp}, which ends at {end}")
        _check_rolled(world, tp)
        if end and not (directory / names.segment_file(end, FileKind.PRODUCER_SNAPSHOT)).exists():
            raise Anomaly(f"producers: {tp} was closed at {end} without a snapshot")
        if not world.faults and (left := [path.name for path in directory.glob("*.deleted")]):
            raise Anomaly(f"removed files stay after an orderly end: {tp} has {left}")


def _check_rolled(world, tp):
    """No segment is larger than segment.bytes, or goes on for longer than segment.ms."""
    most_bytes, copy = world.settings["segment.bytes"].get(tp.topic), world.copies.get(tp)
    if most_bytes is None or (copy is not None and copy.is_compacted):
        return
    if any(rotten == tp for rotten, _ in world.rotten):  # a flipped bit may be one of a time
        return
    for path, _, table in segments_of(world.path / tp.dir_name):
        if table.rows < 2:
            continue
        times = table.max_timestamp[: table.rows]
        waits_ms = int(times.max()) - int(times[0])
        if int(table.end[table.rows - 1]) > most_bytes:
            raise Anomaly(f"segment of {tp}: {path.name} has more than {most_bytes} bytes")
        is_late = waits_ms > world.settings["segment.ms"].get(tp.topic, 1 << 62)
        if is_late and tp.topic not in COMPACTED:  # a cleaner joins them
            raise Anomaly(f"segment of {tp}: {path.name} goes on for {waits_ms} ms")


def _read(world, name):
    try:
        return checkpoints.read(world.path / name)
    except CorruptCheckpoint as error:
        raise Anomaly(f"{name} does not parse: {error}") from None
