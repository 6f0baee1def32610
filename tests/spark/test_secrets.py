"""Secrets of options in a real run: what Spark prints and writes down, and what we do, has none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.files.stores import s3_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECRET = "do-not-tell-this"
"""All values that are secret begin so."""

_KEYS = """
import json, os, time


def login():
    with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as calls:
        calls.write(f"{os.getpid()}\\n")
    with open(os.path.join(os.path.dirname(__file__), "keys.json")) as keys:
        return json.load(keys), time.time() + 3600
"""

_KAFKA = {"subscribe": "orders", "kafka.bootstrap.servers": "127.0.0.1:1"}
LOGINS = [
    {
        **_KAFKA,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{SECRET}-user" password="{SECRET}-password";',
    },
]
"""Options of sources that are loaded without a connection."""
REFUSED = [
    ("aligned_iceberg", "db.t", {"catalog.type": "rest", "catalog.uri": "http://127.0.0.1:1", "catalog.token": SECRET}),
    ("aligned_iceberg", "db.t", {"catalog.type": "sql", "catalog.uri": f"postgresql://u:{SECRET}@127.0.0.1:1/x"}),
    ("aligned_files", f"s3://AKIA:{SECRET}/of-aws@bucket/data", {}),
    ("aligned_files", f"abfss://data@account.dfs.core.windows.net/x?sig={SECRET}", {}),
    ("aligned_delta", f"s3://AKIA:{SECRET}/of-aws@bucket/data", {}),
    ("aligned_kafka", "", {**_KAFKA, "kafka.ssl.private.key.passphrase": SECRET, "kafka.sasl.password": SECRET}),
    *(
        (
            "aligned_kafka",
            "",
            {**_KAFKA, "valueFormat": "avro", "schemaRegistryUrl": f"http://{login}127.0.0.1:1", **given},
        )
        for login, given in (
            (f"user:{SECRET}/registry@", {}),
            ("", {"schemaRegistry.basic.auth.user.info": f"user:{SECRET}-info"}),
        )
    ),
    *(
        ("aligned_kafka", "", {**_KAFKA, f"kafka.{name}": f"{SECRET}-key"})
        for name in ("ssl.keystore.key", "ssl.key.pem", "ssl.key.password", "ssl.truststore.password")
    ),
]
"""Sources that cannot be loaded, with what is secret."""

_PROGRAM = """
import json, os, sys
from functools import reduce
from pyspark.sql import DataFrame, SparkSession, functions as F
from streaming_source import explain, late_records, read_stream, with_exact_watermark

root, uri, is_connect = sys.argv[1], sys.argv[2], sys.argv[3] == "connect"
with open(root + "/options.json") as file:
    fixed, secret, logins, refused = json.load(file)
builder = SparkSession.builder.remote("local[2]") if is_connect else SparkSession.builder.master("local[2]")
conf = {
    "spark.app.name": "shown-to-all",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": "file://" + root + "/events",
}
spark = builder.config(map=conf).getOrCreate()
if not is_connect:
    spark.sparkContext.setLogLevel("DEBUG")
options = {"eventTimeColumn": "t", "splitBy": "file", **fixed}
frames = {
    "by function": read_stream(spark).format("aligned_files").options(**options, credentials="my_keys:login"),
    "by option": read_stream(spark).format("aligned_files").options(**options, **secret),
}
frames = {name: reader.load(uri) for name, reader in frames.items()}
packed = {**options, "secretOptions": json.dumps(secret)}
plain = spark.readStream.format("aligned_files").options(**packed).option("timeZone", "UTC").load(uri)
frames["by hand"] = with_exact_watermark(plain)
batch = spark.read.format("aligned_files").options(**packed).option("timeZone", "UTC").load(uri)
logins = [read_stream(spark).format("aligned_kafka").options(**kafka).load() for kafka in logins]
for name, place, given in refused:
    try:
        read_stream(spark).format(name).options(eventTimeColumn="t", **given).load(place).explain(True)
    except Exception as error:
        print("refused", error, repr(error))
if is_connect:
    # A client's options are in what it sends, which Spark's event log has.
    frames = {"by function": frames["by function"]}
else:
    # Each costs a process of Python. The frame by hand has all of the plain one.
    for frame in (*frames.values(), batch, *logins):
        frame.explain(True)
    for frame in (frames["by option"], batch):
        frame.explain("formatted")
    assert batch.count() == 12
# To Spark a frame that was packed by hand is the one by option.
frames.pop("by hand", None)
# One query over all of them: what Spark writes down of a query has each.
counted = reduce(DataFrame.union, frames.values()).groupBy(F.window("t", "4 seconds")).count()
writer = counted.writeStream.format("parquet").option("checkpointLocation", root + "/checkpoint")
query = writer.option("path", root + "/out").trigger(availableNow=True).start()
assert query.awaitTermination(120)
query.explain(True)
print(query.status, query.recentProgress, [getattr(one, "json", one) for one in query.recentProgress])
print(explain(query), json.dumps(explain(query).to_json(), default=str))
# The latest window is not closed.
assert {row["count"] for row in spark.read.parquet(root + "/out").collect()} == {6 * len(frames), 4 * len(frames)}
print("ended")
spark.stop()
"""


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    """There is no session of this test here."""
    return


@pytest.mark.soak
@pytest.mark.parametrize("session", ["classic", "connect"])
def test_secrets_are_in_no_plan_offset_log_event_log_progress_or_report(
    s3_endpoint: str, tmp_path: Path, session: str
) -> None:
    store = s3_store(s3_endpoint)
    for split in ("a", "b"):
        store.write(f"in/{split}.parquet", [0.0, 1.0, 3.0, 5.0, 7.0, 9.0])
    names = ("access_key", "secret_key", "session_token")
    secret = {f"storage.{name}": f"{SECRET}-{name}" for name in names}
    fixed = {name: value for name, value in store.options.items() if name not in secret}
    (tmp_path / "events").mkdir()
    (tmp_path / "options.json").write_text(json.dumps([fixed, secret, LOGINS, REFUSED]))
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "my_keys.py").write_text(_KEYS)
    (modules / "keys.json").write_text(json.dumps(secret))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(tmp_path), f"{store.uri}/in", session],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join([str(modules), str(ROOT)]),
        },
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.splitlines()[-1] == "ended"
    # Planner and tasks call it, each process once.
    callers = (modules / "calls").read_text().splitlines()
    assert len(callers) == len({*callers}) > 1
    written = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    for folder in ("events", "checkpoint", "out"):
        for file in (tmp_path / folder).rglob("*"):
            if file.is_file():
                written[str(file.relative_to(tmp_path))] = file.read_bytes()
    assert any(name.startswith("events") for name in written)
    assert any("offsets" in name for name in written)
    if session == "classic":
        # As whatever is no secret is found.
        assert any(b"shown-to-all" in written[name] for name in written if name.startswith("events"))
        assert written["stdout"].count(b"refused") >= len(REFUSED) - 1
        assert b" DEBUG " in written["stderr"]
    shown = [name for name, content in written.items() if SECRET.encode() in content]
    assert not shown, {name: _around(written[name]) for name in shown}


def _around(content: bytes) -> str:
    at = content.index(SECRET.encode())
    return content[max(0, at - 300) : at + 60].decode(errors="replace")
