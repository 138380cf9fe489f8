"""The examples run as tests, so that what the README shows works."""

import doctest
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from kafkafs.cli.man_page import man_page
from kafkafs.mounting.mount_options import parse_options
from storage.verify.verify import verify_log_dir
from tests.interop.kafka import JARS, requires_kafka
from tests.shown_commands import MANUAL, PAGES, carried_out
from tests.support.mounts import KAFKAFS, kafkafs_mounts, requires_fuse, run_kafkafs

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "examples" / "sample-log"
SERVICE = MANUAL / "service.md"
AVRO_SAMPLE = ROOT / "examples" / "avro-log"
STAMP = ROOT / ".venv" / ".kafkafs-installed"

installed = pytest.mark.skipif(
    not STAMP.exists() and os.environ.get("CI", "").lower() not in ("true", "1"),
    reason="not installed by tests/run.sh: the quickstart would install first",
)


def quickstart(*arguments):
    script = str(ROOT / "examples" / "quickstart.sh")
    return subprocess.run([script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=280)


@requires_fuse
@installed
def test_quickstart_leaves_nothing_mounted():
    for _ in range(2):
        done = quickstart()
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert '$ cat orders/0/messages.txt\x1b[0m\n{"order":10000,' in done.stdout
        assert "250 orders/0/time/2026-11-20.txt" in done.stdout
        (mounted,) = re.findall(r" at (\S+), read-only", done.stdout)
        assert Path(mounted) not in kafkafs_mounts()
        assert not Path(mounted).parent.exists()


@requires_fuse
@installed
def test_quickstart_of_a_directory_stays_mounted(tmp_path):
    point = tmp_path / "mnt"
    try:
        for _ in range(2):
            done = quickstart(SAMPLE, point)
            assert done.returncode == 0, done.stderr
            assert f"kafkafs umount {point}" in done.stdout
            assert kafkafs_mounts().count(point) == 1
        assert (point / "payments/0/messages.txt").read_bytes().splitlines()[0] == b"order 1 paid"
    finally:
        run_kafkafs("umount", point)
    assert point not in kafkafs_mounts()


@installed
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up CAP_SYS_ADMIN")
@pytest.mark.parametrize("empty", [False, True])
def test_quickstart_where_nothing_can_be_mounted(tmp_path, empty):
    """Containers usually forbid mounts: the quickstart says so and shows the same messages with commands."""
    script = str(ROOT / "examples" / "quickstart.sh")
    arguments = []
    if empty:
        run_kafkafs("topics", "create", tmp_path / "log", "t")
        arguments = [str(tmp_path / "log"), str(tmp_path / "mnt")]
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin", script, *arguments],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    reasons = [line for line in done.stdout.splitlines() if "nothing can be mounted: " in line]
    assert len(reasons) == 1
    assert "CAP_SYS_ADMIN" in reasons[0]
    if empty:
        assert "no partition here holds a message" in done.stdout
    else:
        assert '$ kafkafs cat . orders/0\x1b[0m\n{"order":10000,' in done.stdout
        assert "--time 2026-11-20 | wc -l\x1b[0m\n250\n" in done.stdout
        assert '"offset":499,' in done.stdout


def test_the_notebook(tmp_path):
    """pandas, polars and DuckDB agree with `kafkafs count`, and the plot is a picture."""
    plot = tmp_path / "orders.png"
    command = [sys.executable, str(ROOT / "examples" / "notebook.py"), str(SAMPLE), "orders", str(plot)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "orders: {0: (0, 500), 1: (0, 200)}" in done.stdout
    assert "0 0 b'c-36' b'{\"order\":10000," in done.stdout
    assert "2026-11-20 23:00:00+00:00  10  4" in done.stdout
    assert re.search(r"b\"c-32\" +┆ 31 +┆ 2361", done.stdout)
    assert re.search(r"0 │ +100 │ 2026-11-19 09:36:02.667", done.stdout)
    assert plot.read_bytes().startswith(b"\x89PNG\r\n")


def test_quickstart_with_wrong_arguments(tmp_path):
    assert quickstart("only-one").returncode == 2
    assert quickstart(tmp_path / "nowhere", tmp_path / "mnt").returncode != 0
    assert not (tmp_path / "mnt").exists()


def example(name, *arguments, timeout=280):
    """The output of an example, which must print nothing on stderr and leave nothing mounted."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [str(ROOT / "examples" / name), *map(str, arguments)]
    environment = {**os.environ, "PATH": path, "KAFKAFS_KAFKA": str(JARS)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert not {Path(named) for named in re.findall(r"/\S+/mnt", done.stdout)} & set(kafkafs_mounts())
    return done.stdout.splitlines()


def test_every_example_is_tested():
    here = Path(__file__).read_text()
    scripts = {path.name for path in (ROOT / "examples").glob("*.*") if os.access(path, os.X_OK)}
    assert len(scripts) >= 5
    assert not {name for name in scripts if f'"{name}"' not in here}


def test_reading_a_crashed_brokers_disk(tmp_path):
    said = example("crashed-broker.sh")
    assert "  cuts 00000000000000000480.log at position 1919, offset 500: 150 bytes are removed" in said
    assert ["orders/0", "500"] in [line.split() for line in said]
    assert any(line.split()[:6] == ["billing", "classic", "Empty", "0", "1", "2"] for line in said)
    assert ["total", "1349"] in [line.split() for line in said]
    assert any("batch-crc" in line for line in said)
    assert "  offsets 60 to 99 lost" in said
    assert said[-1] == "nothing wrong"
    disk = tmp_path / "disk"
    shutil.copytree(SAMPLE, disk)
    example("crashed-broker.sh", disk, tmp_path / "copy")
    for topic in ("orders", "payments"):
        ours = run_kafkafs("cat", tmp_path / "copy", topic).stdout
        assert ours == run_kafkafs("cat", SAMPLE, topic).stdout
    assert not verify_log_dir(tmp_path / "copy")


def test_a_backup(tmp_path):
    said = example("backup.sh")
    assert [line for line in said if line.endswith(": equal")] == [
        f"{partition}: equal" for partition in ("accounts/0", "clicks/0", "orders/0", "orders/1", "payments/0")
    ]
    assert ["payments/0", "8", "9"] in [line.split()[:3] for line in said]
    assert "nothing wrong" in said
    assert ["total", "360"] in [line.split() for line in said]
    for _ in range(2):
        example("backup.sh", SAMPLE, tmp_path / "backup")
    assert run_kafkafs("count", tmp_path / "backup", "orders").stdout.split()[-1] == b"700"
    assert not verify_log_dir(tmp_path / "backup")
    checked = run_kafkafs("verify", tmp_path / "backup", "--manifest", tmp_path / "backup.manifest.json")
    assert checked.stdout == b"nothing wrong\n"


@pytest.mark.nightly
@pytest.mark.broker
@pytest.mark.xdist_group("broker")
@requires_kafka
def test_a_backup_between_two_brokers():
    said = example("backup.sh", "--brokers", timeout=800)
    assert said.count("nothing wrong") == 2
    assert {"orders/0: equal", "orders/1: equal"} <= set(said)
    assert said[-1] == "1501 messages consumed, each of them once"


def test_decoding(tmp_path):
    said = example("decoded.sh")
    assert ["shipments-value", "2", "2", "AVRO", "live"] in [line.split()[:5] for line in said]
    assert any('"value":{"shipment":"S-1060","carrier":"DHL",' in line for line in said)
    assert "schemas/import.jsonl" in said
    assert not verify_log_dir(AVRO_SAMPLE)
    assert run_kafkafs("count", AVRO_SAMPLE, "shipments").stdout.split()[-1] == b"60"


@requires_fuse
def test_a_snapshot():
    said = example("snapshot.sh")
    assert "   250  orders/0/time/2026-11-19.txt" in said
    assert "@groups/billing/orders/0: 420" in said
    assert "not a byte of the snapshot has changed" in said[-1]


@requires_fuse
def test_a_local_log_for_shell_scripts(tmp_path):
    said = example("local-log.sh")
    assert [line for line in said if " does " in line] == [
        *(f"fast does job {n}" for n in (1, 2, 3, 4)),
        *(f"slow does job {n}" for n in (1, 2)),
        *(f"fast does job {n}" for n in (5, 6)),
        "slow does job 3",
    ]
    assert said[-2:] == ["fast.offset:6", "slow.offset:3"]


@requires_fuse
def test_the_picture_of_the_readme(tmp_path):
    """It shows what the commands print now, and downloads nothing."""
    kept = (ROOT / "examples" / "picture.svg").read_text()
    assert "(examples/picture.svg)" in (ROOT / "README.md").read_text()
    assert set(re.findall(r"\w+://[^\s\"')]*", kept)) == {"http://www.w3.org/2000/svg"}
    example("picture.py", tmp_path / "made.svg")
    words = [re.findall(r"<text[^>]*>([^<]*)", text) for text in (kept, (tmp_path / "made.svg").read_text())]
    assert len(words[0]) > 60
    assert words[0] == words[1]


@requires_fuse
@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq")
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "spark.md"], ids=lambda page: page.name)
def test_the_commands_that_a_page_shows(tmp_path, page):
    """They print what it shows. When one differs: `python -m tests.shown_commands --write`, and read the diff."""
    assert carried_out(page, tmp_path) == page.read_text()


@pytest.mark.parametrize("page", sorted({*MANUAL.glob("*.md")} - {MANUAL / "README.md"}), ids=lambda page: page.name)
def test_a_page_of_the_manual_begins_with_an_example(page):
    assert re.match(r"# .+\n\n```\n\$ kafkafs |# .+\n\n```\n\$ (cp|tar) ", page.read_text())
    assert f"({page.name})" in (MANUAL / "README.md").read_text()


def test_the_python_that_the_manual_shows(monkeypatch):
    pytest.importorskip("pyarrow", reason="no pyarrow")
    monkeypatch.chdir(ROOT)
    page = MANUAL / "sql-and-python.md"
    (block,) = re.findall(r"^```python\n(>>> .*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    example = doctest.DocTestParser().get_doctest(block, {}, page.name, str(page), 0)
    assert len(example.examples) > 5
    assert doctest.DocTestRunner().run(example).failed == 0


@requires_fuse
def test_the_systemd_unit_of_the_manual(tmp_path):
    """Its commands work, with other directories."""
    page = SERVICE.read_text()
    (start,), (stop,) = (
        re.findall(rf"^{key}=\S*/kafkafs (.*)$", page, re.MULTILINE) for key in ("ExecStart", "ExecStop")
    )
    places = {"/var/lib/kafka": str(SAMPLE), "/mnt/kafka": str(tmp_path / "mnt")}
    words = {command: [places.get(word, word) for word in command.split()] for command in (start, stop)}
    assert all(str(tmp_path / "mnt") in found for found in words.values())
    assert str(SAMPLE) in words[start]
    if os.geteuid() != 0:  # fuse.conf may not allow other users
        words[start] = words[start][: words[start].index("-o")]
    (tmp_path / "mnt").mkdir()
    with subprocess.Popen([*KAFKAFS, *words[start]], stderr=subprocess.PIPE) as serving:
        try:
            deadline = time.monotonic() + 120
            while tmp_path / "mnt" not in kafkafs_mounts():
                assert serving.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert (tmp_path / "mnt" / "orders").is_dir()
            run_kafkafs(*words[stop])
            assert serving.wait(timeout=120) == 0
        finally:
            serving.kill()
    assert tmp_path / "mnt" not in kafkafs_mounts()


def test_the_fstab_line_of_the_manual():
    """tests/kafkafs/mounting/test_lifecycle.py runs mount(8) itself; this checks the options."""
    (line,) = re.findall(r"^/\S+ +/\S+ +fuse\.kafkafs .*$", SERVICE.read_text(), re.MULTILINE)
    *_, kind, options, dump, check = line.split()
    assert (kind, dump, check) == ("fuse.kafkafs", "0", "0")
    assert parse_options([options]).write is False


def test_the_man_page(tmp_path):
    """It is plain roff, and a wheel installs it (tests/test_packaging.py)."""
    text = man_page()
    macros = {line.split()[0] for line in text.splitlines() if line.startswith(".")}
    assert macros <= {".TH", ".SH", ".SS", ".TP", ".B", ".BR", ".I", ".IR", ".PP", ".EX", ".EE", ".nf", ".fi", '.\\"'}
    with (ROOT / "pyproject.toml").open("rb") as file:
        files = tomllib.load(file)["tool"]["setuptools"]["data-files"]
    assert files == {"share/man/man1": ["kafkafs/cli/kafkafs.1"]}
    if shutil.which("groff"):
        page = tmp_path / "kafkafs.1"
        page.write_text(text)
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-z", str(page)], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""


def test_the_sample():
    """It holds what tests/interop/make_sample.py wrote, and reading has not changed it."""
    assert run_kafkafs("count", SAMPLE, "orders").stdout.split()[-1] == b"700"
    committed = run_kafkafs("cat", SAMPLE, "payments/0", "--isolation", "read_committed").stdout
    assert committed == b"order 1 paid\norder 2 paid\norder 5 paid\n"
    accounts = run_kafkafs("cat", SAMPLE, "accounts/0", "--format", "%k=%s\n").stdout
    assert accounts.endswith(b'c-03=\nc-11={"customer": "c-11", "balance": 0}\n')
    assert (SAMPLE / ".kafka_cleanshutdown").exists()
    assert not (SAMPLE / ".lock").exists()


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_export_on_spark(tmp_path):
    """It exports to Parquet and reads the result."""
    pytest.importorskip("pyspark", reason="no pyspark: install the extra `spark`", exc_type=ImportError)
    if shutil.which("java") is None and os.environ.get("CI", "").lower() not in ("true", "1"):
        pytest.skip("no Java: Spark does not run")
    command = [sys.executable, str(ROOT / "examples" / "spark_export.py"), str(SAMPLE), str(tmp_path / "lake")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1349 messages in ")
    assert "|payments|2026-11-19|5       |60   |" in lines


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq")
def test_the_page_about_spark(tmp_path):
    """Its commands and its program work."""
    pytest.importorskip("pyspark", reason="no pyspark: install the extra `spark`", exc_type=ImportError)
    if shutil.which("java") is None and os.environ.get("CI", "").lower() not in ("true", "1"):
        pytest.skip("no Java: Spark does not run")
    page = MANUAL / "spark.md"
    assert carried_out(page, tmp_path) == page.read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    session = 'from pyspark.sql import SparkSession\nspark = SparkSession.builder.master("local[1]").getOrCreate()\n'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    subprocess.run([sys.executable, "-c", session + program], cwd=tmp_path, check=True, timeout=280, env=environment)
