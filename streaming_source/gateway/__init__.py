"""Messages between readers on executors and their planner: reports of event times, and source events.

The planner listens with a `GatewayServer`; Spark's partitions carry its `GatewayAddress` to the tasks; a
`GatewayClient`, one for each worker process, sends their messages. Loss is no error: no component waits for a lost
message, and the watermark does not advance.
"""

from streaming_source.gateway.client import GatewayClient, TaskMessages
from streaming_source.gateway.messages import GatewayAddress, Refusal
from streaming_source.gateway.server import GatewayListener, GatewayServer

__all__ = ["GatewayAddress", "GatewayClient", "GatewayListener", "GatewayServer", "Refusal", "TaskMessages"]
