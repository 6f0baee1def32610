"""Columns that a table gets while a query runs, which reads it with the columns of its start."""

from __future__ import annotations

from collections.abc import Collection

from alignment.shown import log_of
from streaming_source.exceptions import SchemaError

_log = log_of(__name__)


class NewColumns:
    """Names new columns, each once: in the log, or where `schema_evolution` is `fail` by a `SchemaError`."""

    def __init__(self, schema_evolution: str) -> None:
        self._fails = schema_evolution == "fail"
        self._named: set[str] = set()

    def report(self, where: str, names: Collection[str]) -> None:
        """Take the columns that the query has not, and the version that has them: `Delta table /a, version 3,`."""
        new = {*names} - self._named
        if not new:
            return
        listed = ", ".join(sorted(new))
        if self._fails:
            raise SchemaError(
                f"{where} has columns that the query has not: {listed}. schemaEvolution = ignore goes on without them; "
                "a query that is started again has them"
            )
        self._named |= new
        _log.warning(
            "%s has columns that the query has not: %s. A query that is started again has them (schemaEvolution)",
            where,
            listed,
        )
