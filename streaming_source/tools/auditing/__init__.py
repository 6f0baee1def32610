"""The rooms of an audit; `streaming_source.auditing` has the names that users import."""
