"""Quick start and core tests on what is supported: pairs of Python and PySpark, and the lowest versions of all."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import nox

MATRIX = [
    *(("3.11", "4.0.2"), ("3.11", "4.1.4"), ("3.11", "4.2.0")),
    *(("3.12", "4.2.1"), ("3.12", "4.3.0"), ("3.13", "4.3.0")),
]

# What differs between versions: how Spark finds a format, calls a source and shows its errors; Spark Connect; restarts.
CORE = [
    "tests/alignment/test_timestamps.py",
    "tests/project/test_packaging.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_doors.py",
    "tests/spark/test_errors.py",
    "tests/spark/test_exact_watermark.py",
    "tests/spark/test_file_formats.py",
    "tests/spark/test_misuse.py",
    "tests/spark/test_recovery.py",
    "tests/files/test_files.py",
]

# On PySpark before 4.2: these; the calls that differ; nightly runs; late records that repair their windows; a query
# over Spark's own source that is taken over; the demo; and claims, from hop to hop, under kills.
BEFORE_4_2 = [
    *CORE,
    "tests/cli/test_demo.py",
    "tests/spark/test_before_4_2.py",
    "tests/spark/test_nightly_runs.py",
    "tests/spark/test_repair.py",
    "tests/kafka/test_take_over.py",
]
CLAIMS = "tests/spark/test_three_hops.py"
# PySpark leaves sockets to the garbage collector there.
LEFT_OPEN = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]

# Releases whose checkpoints are audited, and which need not run the project.
AUDITED = ["3.5.8", "4.0.2", "4.1.4"]

# Of the libraries that extras bring: what does not need Spark, which `CORE` has.
EXTRAS = [
    "tests/cli/test_explain.py",
    "tests/cli/test_simulate.py",
    "tests/delta/test_conformance.py",
    "tests/delta/test_snapshot_then_commits.py",
    "tests/iceberg/test_conformance.py",
]
SCHEMAS = ["tests/kafka/test_avro_evolution.py", "tests/kafka/test_outside_values.py"]

# The quick start as a stream: without the trigger, stopped when all is read.
_TRIGGER = "writer.trigger(availableNow=True).start().awaitTermination()"
_STREAM = "query = writer.start(); query.processAllAvailable(); query.stop()"
_PRINT_QUICK_START = "from tests.docs.pages import ROOT, code; print(code(ROOT / 'docs' / 'quick-start.md'))"
_PRINT_INSTALLED = (
    "import importlib.metadata as m; print(*sorted({f'{d.name}=={d.version}' for d in m.distributions()}), sep='\\n')"
)
_COUNTED = """
counted = {tuple(row) for row in spark.table("counts").groupBy("log").agg(F.sum("count")).collect()}
assert counted == {("fast", 3600), ("slow", 3600)}, counted
assert spark.readStream.format("aligned_files").option("eventTimeColumn", "ts").load(f"{root}/logs").isStreaming
"""

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
nox.options.envdir = ".venvs"
nox.options.error_on_missing_interpreters = True
nox.options.reuse_venv = "yes"
nox.options.sessions = ["versions", "older"]


@nox.session
@nox.parametrize("python,pyspark", MATRIX)
def versions(session: nox.Session, pyspark: str) -> None:
    """Install the project beside one PySpark, run the quick start, then the core tests, or those named after `--`."""
    session.log("installing the project and PySpark %s: a minute, the first time", pyspark)
    wanted = [
        f"pyspark[connect]=={pyspark}",
        ".[cli,delta,demo,kafka,metrics]",
        "hypothesis",
        "psutil",
        "pytest",
        "pytest-timeout",
    ]
    session.install("--reinstall-package", "spark-watermark-alignment", *wanted, silent=True)
    python = f"{session.bin}/python"
    session.env.update(PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH="")

    session.log("running docs/quick-start.md, with the project as it is installed")
    quick_start = session.run("python", "-c", _PRINT_QUICK_START, silent=True, log=False)
    if _TRIGGER not in quick_start:
        session.error("docs/quick-start.md starts its queries in another way than _TRIGGER says")
    with TemporaryDirectory() as elsewhere, session.chdir(elsewhere):
        for code in (quick_start, quick_start.replace(_TRIGGER, _STREAM)):
            session.run("python", "-W", "ignore", "-c", f"{code}\n{_COUNTED}", silent=True, log=False)

    session.log("running the core tests")
    core, warnings = (BEFORE_4_2, LEFT_OPEN) if pyspark < "4.2" else (CORE, [])
    run = ["python", "-m", "pytest", *warnings, "--durations=10"]
    session.run(*run, "-m", "not soak", *(session.posargs or core))
    if core is BEFORE_4_2 and not session.posargs:
        session.run(*run, "-m", "soak", CLAIMS)


@nox.session(python="3.11")
@nox.parametrize("pyspark", AUDITED)
def older(session: nox.Session, pyspark: str) -> None:
    """Let one PySpark write checkpoints over files, Kafka and Delta, and audit them with the project as it is here."""
    wanted = ["pyspark[connect]==4.2.0", "-e", ".[cli,delta,iceberg,kafka]", "hypothesis", "pytest", "pytest-timeout"]
    session.install(*wanted, silent=True)
    folder = f"{session.create_tmp()}/pyspark-{pyspark}"
    session.run("uv", "venv", "--clear", "--python", f"{session.bin}/python", folder, external=True, silent=True)
    python = f"{folder}/bin/python"
    session.run("uv", "pip", "install", "--python", python, f"pyspark=={pyspark}", external=True, silent=True)
    session.env.update(OLDER_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1")
    tests = session.posargs or ["tests/auditing/test_older_spark.py"]
    session.run("python", "-m", "pytest", "--durations=10", *tests)


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """Install the lowest versions that pyproject.toml allows, and run the core tests, or those named after `--`."""
    session.log("installing the lowest versions of all requirements: a minute, the first time")
    wanted = [
        "pyspark[connect]==4.2.0",
        ".[cli,delta,fsspec,iceberg,kafka,metrics]",
        "pyiceberg[sql-sqlite]>=0.10",
        "hypothesis>=6.100",
        "pytest>=8.3",
        "pytest-timeout>=2.3",
    ]
    lowest_of = ["--reinstall-package", "spark-watermark-alignment", "--resolution", "lowest-direct"]
    session.install(*lowest_of, *wanted, silent=True)
    python = f"{session.bin}/python"
    session.env.update(PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH="")
    # Old libraries use what newer ones beside them have deprecated.
    run = ["python", "-m", "pytest", "-W", "ignore::DeprecationWarning", "--durations=10"]
    session.run(*run, "-m", "not soak", *(session.posargs or CORE))
    if not session.posargs:
        session.run(*run, "-m", "not soak and not spark", *EXTRAS)
        session.install(*lowest_of, ".[kafka-schema]", silent=True)
        session.run(*run, "-m", "not soak and not kafka", *SCHEMAS)


@nox.session(python="3.11")
def audit(session: nox.Session) -> None:
    """Install the project with the extras that users have, look for known vulnerabilities, and list the licences."""
    session.install(".[cli,delta,fsspec,iceberg,kafka,kafka-schema,metrics,pyspark]", "pip-audit", silent=True)
    session.run("python", "-m", "tests.project.licences", env={"PYTHONPATH": "."})
    # All but the project itself, which no index knows yet in this version: what is left out is an error.
    installed = session.run("python", "-c", _PRINT_INSTALLED, silent=True)
    checked = [line for line in str(installed).splitlines() if not line.startswith("spark-watermark-alignment==")]
    if not checked:
        session.error("nothing is installed, so there is nothing to check: remove .venvs, and run it again")
    listed = Path(session.create_tmp()) / "installed.txt"
    listed.write_text("\n".join(checked), encoding="utf-8")
    strictly = ["--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    session.run("pip-audit", *strictly, "--requirement", str(listed))
    session.log("%d packages were checked", len(checked))
