"""The kit for tests of connectors; `streaming_source.testing` has the names that users import."""
