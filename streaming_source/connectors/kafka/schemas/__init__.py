"""Values whose schemas a registry keeps: Avro and Protobuf."""

__all__: list[str] = []
