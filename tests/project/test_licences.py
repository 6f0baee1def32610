"""What the extras bring may be used beside the project under licences that set no condition on a user's own code."""

from __future__ import annotations

from tests.project.licences import licence_of, needed, refused


def test_each_library_that_a_query_may_need_has_a_licence_that_is_allowed() -> None:
    assert {"pyarrow", "deltalake", "pyiceberg", "confluent-kafka"} <= {each.metadata["Name"] for each in needed()}
    assert all(licence_of(each) for each in needed())
    assert refused() == []
