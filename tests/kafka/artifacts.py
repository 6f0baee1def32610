"""Java artifacts: what a POM names, in `maven/` or made here, resolved once by `mvn` into a cache elsewhere."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.spark_home import RELEASE

__all__ = ["BROKER", "SPARK_CONNECTOR", "Artifacts", "ArtifactsMissingError", "cache", "of_older_spark"]

_TIMEOUT_S = 600


def cache() -> Path:
    """Where what was downloaded is kept, outside of the repository."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "spark-watermark-alignment"


class ArtifactsMissingError(Exception):
    """The artifacts are not in the cache and cannot be resolved here; the message says why, in one line."""


class Artifacts:
    """The closure of one POM as a directory of jars.

    Parameters
    ----------
    pom : Path
        A POM whose own version is that of what it brings.
    text : str, optional
        Its text, if there is no such file.
    """

    def __init__(self, pom: Path, text: str | None = None) -> None:
        self._pom, self._text = pom, text if text is not None else pom.read_text(encoding="utf-8")
        found = re.search(r"<version>([^<$]+)</version>", self._text)
        assert found, f"{pom} has no version of its own"
        self.version = found[1]
        # By content: another exclusion, the same version, is another set of jars.
        digest = hashlib.sha256(self._text.encode()).hexdigest()[:8]
        self._name = f"{pom.stem}-{self.version}-{digest}"

    @property
    def folder(self) -> Path:
        """Where the jars lie once they were resolved."""
        return cache() / self._name

    def jars(self) -> list[Path]:
        """Return the jars, resolving them first where the cache has none.

        Raises
        ------
        ArtifactsMissingError
            There is no `mvn`, or it did not find them.
        """
        if not self.folder.is_dir():
            self._resolve()
        return sorted(self.folder.glob("*.jar"))

    def _resolve(self) -> None:
        mvn = shutil.which("mvn")
        if mvn is None:
            raise ArtifactsMissingError(f"mvn is not on the PATH, and {self.folder} does not exist")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        # Into place in one step: two runs at once, or one that is killed, leave no half cache.
        with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix=".resolving-") as work:
            (Path(work) / "pom.xml").write_text(self._text, encoding="utf-8")
            command = [
                mvn,
                "-q",
                "-B",
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                "-DoutputDirectory=jars",
            ]
            try:
                done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise ArtifactsMissingError(f"mvn did not resolve {self._pom.name} in {_TIMEOUT_S} s") from None
            if done.returncode:
                raise ArtifactsMissingError(f"mvn could not resolve {self._pom.name}: {_first_error(done.stdout)}")
            try:
                (Path(work) / "jars").rename(self.folder)
            except OSError:
                if not self.folder.is_dir():  # not because another run was faster
                    raise


def _first_error(output: str) -> str:
    lines = [line.split("[ERROR]")[-1].strip() for line in output.splitlines() if "[ERROR]" in line]
    return (lines or ["it said nothing"])[0][:300]


_SHARED = ("org.apache.kafka:kafka-clients:3.9.2", "org.apache.commons:commons-pool2:2.13.1")
_OLDER = {
    ("3.5", "kafka"): (
        "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.1",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.12:3.5.1",
        *_SHARED,
    ),
    ("4.0", "kafka"): (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.2",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        *_SHARED,
    ),
    ("4.1", "kafka"): (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1",
        *_SHARED,
    ),
    ("3.5", "delta"): ("io.delta:delta-spark_2.12:3.3.2", "io.delta:delta-storage:3.3.2"),
    ("4.0", "delta"): ("io.delta:delta-spark_2.13:4.0.0", "io.delta:delta-storage:4.0.0"),
    ("4.1", "delta"): ("io.delta:delta-spark_4.1_2.13:4.1.0", "io.delta:delta-storage:4.1.0"),
}
"""By release of Spark and source; not always of the same version, since Maven lags behind."""
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def of_older_spark(release: str, source: str) -> Artifacts:
    """Spark's own source over `kafka` or `delta` for a release before 4.2."""
    parts = [coordinates.split(":") for coordinates in _OLDER[release, source]]
    names = ("groupId", "artifactId", "version")
    wanted = [
        "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, part, strict=True)) + _ALONE for part in parts
    ]
    return Artifacts(
        Path(f"older-{source}.xml"),
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>spark-watermark-alignment</groupId><artifactId>older-{source}</artifactId>"
        f"<version>{release}</version><packaging>pom</packaging><dependencies>"
        + "".join(f"<dependency>{text}</dependency>" for text in wanted)
        + "</dependencies></project>",
    )


_POMS = Path(__file__).resolve().parent / "maven"
BROKER = Artifacts(_POMS / "broker.xml")
SPARK_CONNECTOR = (
    of_older_spark(RELEASE, "kafka") if (RELEASE, "kafka") in _OLDER else Artifacts(_POMS / "spark-connector.xml")
)
