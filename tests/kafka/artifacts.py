"""Java artifacts: what a POM in `maven/` names, resolved once by `mvn` into a cache outside the repository."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["BROKER", "SPARK_CONNECTOR", "Artifacts", "ArtifactsMissingError", "cache"]

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
    """

    def __init__(self, pom: Path) -> None:
        self._pom = pom
        text = pom.read_text(encoding="utf-8")
        found = re.search(r"<version>([^<$]+)</version>", text)
        assert found, f"{pom} has no version of its own"
        self.version = found[1]
        # By content: another exclusion, the same version, is another set of jars.
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
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
            shutil.copy(self._pom, Path(work) / "pom.xml")
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


_POMS = Path(__file__).resolve().parent / "maven"
BROKER = Artifacts(_POMS / "broker.xml")
SPARK_CONNECTOR = Artifacts(_POMS / "spark-connector.xml")
