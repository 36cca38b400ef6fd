"""Spark's session: a JVM of ours, as quiet, small and quick as it gets.

The JVM ends when this process does, however it ends: it waits for the end of its standard input.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext, accumulators
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.checkpoint import Checkpoint
from spark_jobs.java import find_java

_LOG = logging.getLogger(__name__)
_END_S = 10.0
_STREAMING = "org.apache.spark.sql.execution.streaming"
_JVM = [
    # Micro-batches are small and all alike: what the second compiler and a parallel collector gain, they cost.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # Hadoop runs `chmod` for every file that it makes, and Spark makes some for every micro-batch.
    "-Djdk.lang.Process.launchMechanism=VFORK",
]
_SETTINGS = {
    "spark.app.name": "threadline",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Of each stage and partition. What a micro-batch needs was written just before: the system has it in memory.
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "2",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "30",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Beside every file of the checkpoint there would be one with its checksum, beside the one that Hadoop makes.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.shuffle.checksum.enabled": "false",
}


_LONGEST_FOLDER = 60  # of sockets: 108 bytes are the most for a name, and Spark's own ones have 42


class SessionFailed(RuntimeError):
    """Spark did not start; the text says where it says why."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What there is to choose."""

    master: str = "local[2]"
    partitions: int = 2
    driver_memory: str = "1g"
    verbose: bool = False


def start_session(options: SessionOptions, checkpoint: Checkpoint) -> SparkSession:
    """Start Spark. What it says goes to a file in the checkpoint's folder, or to this process's stderr if verbose."""
    os.environ["JAVA_HOME"] = str(find_java(os.environ))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        os.environ["SPARK_HOME"] = str(_spark_home(checkpoint.scratch))
    except OSError as error:
        raise SessionFailed(f"Spark cannot be set up in {checkpoint.folder}: {error.strerror}") from error
    _hush()
    conf = SparkConf(loadDefaults=False).setAll(
        [
            *_SETTINGS.items(),
            ("spark.master", options.master),
            ("spark.driver.memory", options.driver_memory),
            ("spark.driver.extraJavaOptions", " ".join([*_JVM, f'"-Djava.io.tmpdir={checkpoint.scratch}"'])),
            ("spark.local.dir", str(checkpoint.scratch)),
            ("spark.sql.shuffle.partitions", str(options.partitions)),
            *_sockets(checkpoint.scratch),
        ]
    )
    _end_jvm()
    if checkpoint.spark_log.exists():  # whoever starts the job again does not take away what the last one said
        checkpoint.spark_log.replace(checkpoint.spark_log.with_suffix(".log.before"))
    with checkpoint.spark_log.open("wb") as log:
        output = {} if options.verbose else {"stdout": log, "stderr": log}
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, popen_kwargs={"pass_fds": (checkpoint.lock,), **output}
            )
            context = SparkContext(conf=conf, gateway=gateway)
            context.setLogLevel("ERROR")
            return SparkSession(context)
        except (PySparkRuntimeError, Py4JError, OSError) as error:
            why = _why(error, checkpoint)
            _end_jvm()
            raise SessionFailed(f"Spark did not start: {why} ({checkpoint.spark_log} may say more)") from error


def _hush() -> None:
    """If Spark's process ends, the job says so in one line. Libraries would add their tracebacks."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_py4j)
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        setattr(server, "handle_error", lambda *_: _LOG.debug("an accumulator is lost", exc_info=True))  # noqa: B010


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """It logs to the root logger as well."""
    return "py4j" not in Path(record.pathname).parts


def _sockets(scratch: Path) -> list[tuple[str, str]]:
    """How Spark talks to its workers: through files, which is a fifth quicker than TCP, if their names fit."""
    folder = scratch.resolve() / "s"
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        return []
    folder.mkdir()
    kind = "spark.python.unix.domain.socket"
    return [(f"{kind}.enabled", "true"), (f"{kind}.dir", str(folder))]


def _spark_home(folder: Path) -> Path:
    """Spark's own folder, but for its Python library: that is an archive, which every worker would have to compile
    anew. As it is not there, they take the one that this process has."""
    home = folder / "spark"
    home.mkdir()
    package = Path(pyspark.__file__).parent
    for name in ("bin", "jars"):
        (home / name).symlink_to(package / name)
    return home


def stop_session(spark: SparkSession) -> None:
    """Stop Spark, and wait until its process is gone: then nobody writes to the checkpoint any more."""
    with suppress(Py4JError, OSError):  # it has ended already
        spark.stop()
    _end_jvm()


def _end_jvm() -> None:
    """Spark would keep its JVM for the next session of this process, with the folders of the last one."""
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_END_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def _why(error: Exception, checkpoint: Checkpoint) -> str:
    """What Java says went wrong, or the first that it said at all."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getMessage()).splitlines()[0]
    lines = [line.strip() for line in checkpoint.spark_log.read_text(errors="replace").splitlines()]
    said = [line for line in lines if line and not line.startswith(("WARNING", "at "))]
    wrong = [line for line in said if re.search("Exception|Error|Invalid", line)]
    return re.sub(r'^Exception in thread "[^"]*" ', "", (wrong or said or [str(error)])[0])
