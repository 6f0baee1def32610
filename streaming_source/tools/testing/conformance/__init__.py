"""The suite that every connector should pass, in parts; `streaming_source.testing.conformance` has all of it."""
