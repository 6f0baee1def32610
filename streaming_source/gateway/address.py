"""Where a gateway is, and what opens it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["GatewayAddress"]


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """What a task needs to reach the gateway of its query. Picklable; its text does not show the token.

    Attributes
    ----------
    host, port
        Where it listens.
    query_id
        Of the run of the query: a planner that starts again has another one. 16 characters.
    token
        What every message has to carry.
    root_certificate
        PEM of the certificate that vouches for the gateway's own; None without TLS.
    max_message_bytes
        Larger messages are refused, so that they need not be sent.
    """

    host: str
    port: int
    query_id: str
    token: str = field(repr=False)
    root_certificate: bytes | None = field(default=None, repr=False)
    max_message_bytes: int = 1 << 20

    @property
    def uri(self) -> str:
        """For Arrow Flight: `grpc+tcp://127.0.0.1:4711`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'grpc+tcp' if self.root_certificate is None else 'grpc+tls'}://{host}:{self.port}"
