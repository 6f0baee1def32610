"""From readers at work on executors to their planner, and back: reports of event times, and source events.

The planner listens with a `GatewayServer`; its `GatewayAddress` travels to the tasks inside Spark's own partitions;
there a `GatewayClient`, one for each worker process, sends. Loss is no error: what does not arrive is waited for by
nobody, and the watermark stays where it was.
"""

from streaming_source.gateway.client import GatewayClient, TaskMessages
from streaming_source.gateway.messages import GatewayAddress, Refusal
from streaming_source.gateway.server import GatewayListener, GatewayServer

__all__ = ["GatewayAddress", "GatewayClient", "GatewayListener", "GatewayServer", "Refusal", "TaskMessages"]
