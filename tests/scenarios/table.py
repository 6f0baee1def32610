"""What went wrong with idleness and alignment elsewhere, and the tests that show how it goes here.

Issues are Flink's; what was never filed has a name. A scenario whose test stood elsewhere already is not written twice.
"""

from __future__ import annotations

__all__ = ["DECIDED", "TESTS"]

_COMBINE = "tests/coordinator/test_combining.py"
_DRIFT = "tests/alignment/test_drift.py"
_GENERATORS = "tests/coordinator/test_generators.py"
_IDLENESS = "tests/coordinator/test_idle_clock.py"
_PLANNER = "tests/alignment/test_planner.py"
_STRATEGY = "tests/alignment/test_strategy.py"
_ALIGNMENT = "tests/coordinator/test_alignment.py"
_COORDINATOR = "tests/coordinator/test_coordinator.py"
_EXCHANGE = "tests/coordinator/test_group_exchange.py"
_BASE = "tests/reader/test_base.py"
_PAUSING = "tests/coordinator/test_one_client.py"
_ORDERS = "tests/files/test_layout_orders.py"
_AGAIN = "tests/faults/test_read_again.py"
_SUITE = "streaming_source/tools/testing/conformance/reading.py"
_GROUPS = "tests/scenarios/test_groups.py"
_SPLITS = "tests/scenarios/test_idleness.py"
_UNION = "tests/kafka/test_history_then_live.py"

TESTS: dict[str, tuple[str, ...]] = {
    # ---- idleness and combination ----
    "FLINK-40504": (
        f"{_SPLITS}::test_a_split_that_comes_back_counts_at_once_although_the_watermark_stands_still",
        f"{_COMBINE}::test_the_first_record_after_all_were_idle_ends_idleness_without_an_advance",
        f"{_GENERATORS}::test_a_watermark_that_does_not_advance_still_ends_idleness",
    ),
    "FLINK-22926": (f"{_SPLITS}::test_a_split_that_is_new_to_an_idle_source_makes_it_active",),
    "FLINK-39586": (
        f"{_SPLITS}::test_a_source_whose_last_split_has_ended_holds_nobody_and_counts_again_with_the_next_one",
        f"{_COMBINE}::test_mx_22_a_set_that_lost_its_last_split_is_idle",
        f"{_UNION}::test_flink_39586_a_partition_without_records_behind_the_history_holds_nothing",
    ),
    "FLINK-40094": (
        f"{_UNION}::test_flink_40094_a_history_without_records_is_let_go_before_its_splits_are",
        f"{_SPLITS}::test_a_source_whose_last_split_has_ended_holds_nobody_and_counts_again_with_the_next_one",
        f"{_COMBINE}::test_mx_18_removing_the_slowest_split_releases_what_it_held_at_once",
    ),
    "FLINK-39979": (
        f"{_COMBINE}::test_mx_22_a_set_that_lost_its_last_split_is_idle",
        f"{_UNION}::test_flink_39979_a_topic_without_any_record_holds_what_follows_the_cut",
    ),
    "FLINK-39514": (
        f"{_UNION}::test_flink_39514_a_partition_that_comes_during_the_history_is_read_from_the_cut",
        f"{_BASE}::test_a_reader_without_splits_ends_when_none_will_come",
        f"{_BASE}::test_a_reader_is_available_while_it_has_a_batch_in_hand_and_when_one_comes",
    ),
    "FLINK-40503": (
        f"{_IDLENESS}::test_idle_comes_within_one_interval_after_the_timeout",
        f"{_COORDINATOR}::"
        "test_a_split_is_idle_when_the_time_has_passed_between_its_last_record_and_a_look_that_found_nothing",
    ),
    "FLINK-38454": (
        f"{_SPLITS}::test_who_went_idle_last_makes_no_difference",
        f"{_COMBINE}::test_mx_06_two_immediate_outputs_all_idle_give_the_maximum_in_any_order",
    ),
    "FLINK-40475": (
        f"{_SPLITS}::test_the_minimum_follows_every_change_of_a_status",
        f"{_COMBINE}::test_vl_08_a_split_that_catches_up_again_is_waited_for",
    ),
    "FLINK-38477": (
        f"{_SPLITS}::test_what_has_ended_does_not_end_time_for_what_is_idle",
        f"{_COMBINE}::test_finished_splits_beside_idle_ones_never_give_the_end_of_time",
    ),
    "FLINK-35886": (
        f"{_SPLITS}::test_the_only_split_of_a_source_waits_for_the_group_without_being_idle",
        f"{_ALIGNMENT}::test_sp_02_a_split_whose_records_wait_is_not_idle_however_long_a_micro_batch_takes",
        f"{_ALIGNMENT}::test_sp_04_a_split_that_is_ahead_waits_and_is_not_taken_for_idle",
        f"{_ALIGNMENT}::test_sp_10_each_split_in_work_tells_how_far_it_is_and_none_that_is_finished",
        f"{_PAUSING}::test_a_split_that_is_let_go_and_comes_back_is_read_from_where_it_is_then",
    ),
    "FLINK-36751": (f"{_SPLITS}::test_the_only_split_of_a_source_waits_for_the_group_without_being_idle",),
    "FLINK-34252": (f"{_SPLITS}::test_records_that_move_no_watermark_keep_a_split_from_being_idle",),
    "FLINK-28975": (f"{_COMBINE}::test_ot_16_the_only_split_decides_alone_whether_the_set_is_idle",),
    "FLINK-23767": (f"{_SPLITS}::test_a_source_that_never_had_a_split_says_nothing_however_long",),
    "FLINK-32828": (f"{_SPLITS}::test_restored_splits_hold_the_watermark_before_their_first_record",),
    "FLINK-26018": (
        f"{_SPLITS}::test_splits_of_which_nothing_came_yet_hold_the_watermark_from_the_start",
        f"{_SPLITS}::test_restored_splits_hold_the_watermark_before_their_first_record",
        f"{_COMBINE}::test_ot_12_splits_restored_together_leak_no_watermark_above_the_slowest",
    ),
    "FLINK-18523": (f"{_SPLITS}::test_while_all_are_idle_the_watermark_does_not_follow_the_wall_clock",),
    "FLINK-8001": (
        f"{_SPLITS}::test_only_a_bounded_source_that_has_read_all_ends_time",
        f"{_SPLITS}::test_a_source_that_never_had_a_split_says_nothing_however_long",
        f"{_COMBINE}::test_an_unbounded_source_does_not_end_by_its_splits_finishing",
    ),
    "FLINK-7721": (f"{_SPLITS}::test_a_source_that_never_had_a_split_says_nothing_however_long",),
    "a clock at zero": (f"{_IDLENESS}::test_id_12_a_clock_that_reads_zero_is_an_instant_like_any_other",),
    "files that are older than those before them": (
        f"{_ORDERS}::test_by_event_time_every_record_is_read_once_and_none_is_late",
        f"{_ORDERS}::test_no_more_files_than_needed_are_in_work_and_the_others_hold_the_watermark",
        f"{_PLANNER}::test_an_unread_split_holds_the_watermark_just_below_its_first_time",
    ),
    # ---- alignment ----
    "FLINK-40505": (
        f"{_GROUPS}::test_a_source_that_starts_again_is_where_its_checkpoint_was_before_it_is_asked_for_more",
        f"{_GROUPS}::test_a_source_whose_micro_batch_takes_ten_minutes_is_not_taken_for_dead",
        f"{_EXCHANGE}::test_a_process_that_is_killed_does_not_hold_the_others_back",
        f"{_EXCHANGE}::test_a_source_that_hangs_holds_the_others_for_its_lease_and_no_longer",
    ),
    "FLINK-37399": (f"{_GROUPS}::test_a_backlog_of_two_queries_moves_on_by_far_more_than_a_drift_an_interval",),
    "FLINK-37670": (
        f"{_GROUPS}::test_with_no_more_splits_to_come_limits_still_do",
        f"{_ALIGNMENT}::test_co_10_with_no_more_splits_alignment_goes_on_and_all_records_come",
    ),
    "FLINK-35157": (f"{_GROUPS}::test_a_source_that_is_finished_leaves_the_others_alone",),
    "FLINK-32414": (f"{_GROUPS}::test_a_source_that_has_no_splits_yet_holds_nobody",),
    "FLINK-32496": (
        f"{_GROUPS}::test_an_idle_source_is_not_held_by_what_it_said_itself",
        f"{_GROUPS}::test_a_limit_goes_down_with_who_comes_back_behind",
    ),
    "FLINK-31632": (
        f"{_DRIFT}::test_a_watermark_of_min_counts_and_one_of_max_does_not_overflow",
        f"{_PLANNER}::test_the_ends_of_time_saturate",
    ),
    "FLINK-39073": (
        f"{_ALIGNMENT}::test_sp_08_an_idle_split_beyond_the_limit_is_idle_and_paused_with_its_next_record",
    ),
    "FLINK-40093": (f"{_ALIGNMENT}::test_sp_06_from_active_over_paused_and_idle_and_back",),
    "FLINK-32316": (f"{_GROUPS}::test_there_is_one_renewal_an_interval_however_often_the_planner_goes_back",),
    "FLINK-32362": (f"{_GROUPS}::test_an_exchange_that_fails_is_not_the_last_one",),
    "FLINK-32411": (f"{_GROUPS}::test_a_planner_that_was_closed_reports_no_more",),
    "FLINK-35088": (
        f"{_DRIFT}::test_what_breaks_a_rule_is_refused",
        f"{_STRATEGY}::test_what_breaks_a_rule_is_refused_at_construction_by_name",
    ),
    "one name for two sources": (f"{_GROUPS}::test_sources_of_one_name_do_not_speak_for_each_other",),
    "a reader that cannot pause": (
        f"{_PAUSING}::test_a_reader_of_several_splits_that_cannot_pause_is_refused_before_it_fetches_unless_that_is_allowed",
        "tests/spark/test_reading_ahead.py::test_a_client_that_cannot_pause_is_refused_unless_its_splits_may_run_ahead",
    ),
    "unaligned splits taken for idle": (
        f"{_PAUSING}::test_a_reader_of_several_splits_that_cannot_pause_is_refused_before_it_fetches_unless_that_is_allowed",
        f"{_ALIGNMENT}::test_sp_02_a_split_whose_records_wait_is_not_idle_however_long_a_micro_batch_takes",
    ),
    "a pause before its split": (
        f"{_PAUSING}::test_a_split_that_is_resumed_is_fetched_though_the_fetch_under_way_blocks",
    ),
    "FLINK-39728": (f"{_PAUSING}::test_a_split_that_is_let_go_and_comes_back_is_read_from_where_it_is_then",),
    "speculative execution": (f"{_AGAIN}::test_a_batch_is_the_same_to_the_byte_when_it_is_read_again",),
    "a limit that goes down": (f"{_GROUPS}::test_a_limit_goes_down_with_who_comes_back_behind",),
    "splits in any order": (
        f"{_PLANNER}::test_splits_that_join_when_it_is_their_turn_are_all_read_and_none_of_their_records_is_late",
    ),
    "FLINK-39238": (f"{_SUITE}::test_splits_that_are_far_ahead_lose_nothing_and_starve_nobody",),
    "FLINK-37410": (f"{_ALIGNMENT}::test_sp_10_each_split_in_work_tells_how_far_it_is_and_none_that_is_finished",),
}
"""By issue: the tests, as `path::name`."""

DECIDED: dict[str, str] = {
    "FLINK-18934": "an idle source holds nobody in its group; Spark's minimum over the sources of a query has no word "
    "for idle, and stays where the idle source is",
    "FLINK-22881": "a status that toggles costs a change of the offset, and no record between operators",
    "FLINK-23011": "the order in which splits bring something plays no part in a plan, so results do not depend on it",
    "alignment behind the source": "what was read cannot be held back any more: only a source is aligned, and any "
    "source can be",
    "FLINK-32420": "a member is a source of one application, not one of its many readers: each hears all the others, "
    "which are few",
    "FLINK-33306": "about an autoscaler: numbers of rows and of readers are the user's here",
}
"""By issue: how it was decided where there is nothing to show."""
