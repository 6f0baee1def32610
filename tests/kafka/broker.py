"""A real Apache Kafka of one node, started and stopped from Python, and mistreated where a test wants that."""

from __future__ import annotations

import base64
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.class_archives import KAFKA
from tests.kafka.artifacts import BROKER

__all__ = ["GUEST", "PASSWORD", "USER", "BrokerError", "KafkaBroker"]

USER, PASSWORD = "kim", "hunter2-kim"
"""Who may come in by the listener with SASL_SSL: by PLAIN, SCRAM-SHA-256, or any unsigned token of OAUTHBEARER."""
GUEST = "pat"
"""Who may come in by PLAIN with the same password, or by a token, and has no right but those that a test gives."""

_READY_S = 60
_STOP_S = 20
_TAIL_LINES = 40
# Below the range from which Linux takes the ports of outgoing connections. Inside it, a client that keeps calling a
# dead broker's port sooner or later is given that very port, is connected to itself, and the broker cannot come back.
_PORTS = range(20_000, 32_000)

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://localhost:{secure_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://localhost:{secure_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER
listener.name.sasl_ssl.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required user_{user}="{password}" \
    user_{guest}="{password}";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={modules}.scram.ScramLoginModule required;
listener.name.sasl_ssl.oauthbearer.sasl.jaas.config={modules}.oauthbearer.OAuthBearerLoginModule required \
    unsecuredLoginStringClaim_sub="{user}";
# Who comes in without a login, or by the name of `USER`, may do all; everyone else what a test lets them do.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{user}
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
# A broker that was killed may come back once its session is over; the default is 9 s.
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=200
# Records of any date are taken and kept.
log.retention.ms=-1
log.message.timestamp.after.max.ms=9223372036854775807
# Compaction, retention and deletion happen while a test waits.
log.initial.task.delay.ms=100
log.retention.check.interval.ms=200
log.cleaner.backoff.ms=100
log.segment.delete.delay.ms=100
# One small partition costs no 10 MiB of index.
log.index.size.max.bytes=1048576
"""

_LOG4J = """\
Configuration:
  Appenders:
    Console: {name: out, PatternLayout: {pattern: "%d{HH:mm:ss.SSS} %p %c{1} %m%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: {ref: out}}
"""


class BrokerError(Exception):
    """The broker did not do what it was told; the message ends with the last lines of its output."""


class KafkaBroker:
    """One node in KRaft mode on 127.0.0.1, on ports of its own, with its data in one folder.

    It dies with this process, however that ends.

    Parameters
    ----------
    folder : Path
        An empty folder for its data, its configuration and its output.
    jars : sequence of Path
        Kafka's jars; see `tests.kafka.artifacts`.
    heap_mib : int
        Java heap.
    port : int, optional
        Port for clients; a free one if not given.
    """

    def __init__(self, folder: Path, jars: Sequence[Path], *, heap_mib: int = 384, port: int | None = None) -> None:
        self._folder = folder
        self._classpath = os.pathsep.join(map(str, jars))
        self._heap_mib = heap_mib
        self._given_port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._cluster = ""
        self.bootstrap = ""
        self.secure_bootstrap = ""

    @classmethod
    def from_cache(cls, folder: Path, **options: int) -> KafkaBroker:
        """Take the jars from the cache, or resolve them.

        Raises
        ------
        ArtifactsMissingError
            They cannot be had.
        """
        return cls(folder, BROKER.jars(), **options)

    @property
    def output(self) -> Path:
        """What the broker printed, over all its starts."""
        return self._folder / "output.log"

    @property
    def certificate(self) -> Path:
        """PEM: what clients of the secure listener trust."""
        return self._folder / "certificate.pem"

    def shorten(self, topic: str, partition: int, end: int) -> None:
        """Let it lose the last records of a log, and start again, as after the election of an unclean leader.

        Each of these records must have been written in a batch of its own.
        """
        self.stop()
        folder = self._data / f"{topic}-{partition}"
        (log,) = folder.glob("*.log")
        data, at = log.read_bytes(), 0
        # Of each batch: its first offset, and how many bytes follow.
        while at < len(data) and struct.unpack_from(">q", data, at)[0] < end:
            at += 12 + struct.unpack_from(">i", data, at + 8)[0]
        log.write_bytes(data[:at])
        for name in ("*.index", "*.timeindex", "*.snapshot"):
            for derived in folder.glob(name):
                derived.unlink()
        # It looks through its logs when it starts.
        (self._data / ".kafka_cleanshutdown").unlink(missing_ok=True)
        for name in ("recovery-point", "replication"):
            (self._data / f"{name}-offset-checkpoint").write_text("0\n0\n")
        self.start()

    def has_compacted(self, topic: str, partition: int) -> bool:
        """Whether the cleaner has been through all segments of a partition but the newest, which it leaves as it is."""
        newest = max(int(segment.stem) for segment in (self._data / f"{topic}-{partition}").glob("*.log"))
        # A version, how many lines follow, and these: topic, partition, first offset that was not cleaned.
        checkpoint = self._data / "cleaner-offset-checkpoint"
        cleaned = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
        found = {(name, int(number)): int(offset) for name, number, offset in map(str.split, cleaned)}
        return found.get((topic, partition), 0) >= newest

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def is_running(self) -> bool:
        """Whether its process is there; a paused one is."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it answers; again on the same port and data if it ran before.

        Raises
        ------
        BrokerError
            It ended, or did not answer in time.
        """
        assert not self.is_running, "it is running already"
        if not self.bootstrap:
            self._format()
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._folder / "server.properties"), f"-Xmx{self._heap_mib}m"),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us; we decide when it stops
            )
        # Ends when our end of the pipe closes, so also when we are killed.
        self._guard = subprocess.Popen(
            ["sh", "-c", f"read _; kill -9 {self._process.pid} 2>/dev/null"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it in order; does nothing if it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def run_tool(self, main: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 60) -> str:
        """Run one of Kafka's Java programs by its class name, and return what it printed.

        Raises
        ------
        BrokerError
            It ended with an error.
        """
        done = subprocess.run(
            self._java(main, *arguments),
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
        )
        printed = done.stdout.decode(errors="replace")
        if done.returncode:
            raise BrokerError(f"{main} ended with {done.returncode}:\n{printed}")
        return printed

    def tail(self) -> str:
        """Return the last lines of its output."""
        if not self.output.exists():
            return ""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-_TAIL_LINES:])

    def _java(self, main: str, *arguments: str) -> list[str]:
        java = (
            shutil.which("java", path=os.path.join(os.environ["JAVA_HOME"], "bin"))
            if os.environ.get("JAVA_HOME")
            else "java"
        )
        options = [argument for argument in arguments if argument.startswith("-X")] or ["-Xmx128m"]
        rest = [argument for argument in arguments if not argument.startswith("-X")]
        return [
            java or "java",
            *options,
            "-XX:+UseSerialGC",
            *([f"-XX:SharedArchiveFile={KAFKA}"] if KAFKA.exists() else []),
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.yaml'}",
            "-cp",
            self._classpath,
            main,
            *rest,
        ]

    def _format(self) -> None:
        port, secure_port, controller_port = self._given_port or _free_port(), _free_port(), _free_port()
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "log4j2.yaml").write_text(_LOG4J)
        properties = self._folder / "server.properties"
        properties.write_text(
            _PROPERTIES.format(
                port=port,
                secure_port=secure_port,
                controller_port=controller_port,
                data=self._data,
                keystore=self._keystore(),
                modules="org.apache.kafka.common.security",
                user=USER,
                guest=GUEST,
                password=PASSWORD,
            )
        )
        # A zero in front: an id that begins with a dash would be taken for an option.
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        scram = f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"
        self.run_tool(
            "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(properties), "-S", scram
        )
        self._cluster = cluster
        self.bootstrap, self.secure_bootstrap = f"127.0.0.1:{port}", f"localhost:{secure_port}"

    def _keystore(self) -> Path:
        """A key and its own certificate for `localhost`, in PEM."""
        key, store = self._folder / "key.pem", self._folder / "keystore.pem"
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
        name = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run([*command.split(), *name], check=True, capture_output=True)
        store.write_bytes(key.read_bytes() + self.certificate.read_bytes())
        return store

    def _await_ready(self) -> None:
        assert self._process is not None
        # Every attempt that fails would be logged to stderr by the client; the last one is reported here.
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0})
        limit = time.monotonic() + _READY_S
        while True:
            if self._process.poll() is not None:
                raise BrokerError(f"Kafka ended with {self._process.returncode}:\n{self.tail()}")
            found: object
            try:
                # By its name: another may have the port, and answer while ours is on its way to find that out.
                if (found := admin.list_topics(timeout=1).cluster_id) == self._cluster:
                    return
            except KafkaException as error:
                found = error
            if time.monotonic() > limit:
                raise BrokerError(f"Kafka did not answer in {_READY_S} s ({found}):\n{self.tail()}")

    def _end(self, by: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(by)
            self._process.send_signal(signal.SIGCONT)  # one that is paused could not end
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._guard is not None:
            # Before its pipe closes: the number of a process that is gone may be another's by then.
            self._guard.kill()
            self._guard.wait()
            assert self._guard.stdin is not None
            self._guard.stdin.close()
        self._process = self._guard = None


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise BrokerError(f"no free port among 100 tried of {_PORTS.start} to {_PORTS.stop - 1}")
