"""
Which test proves which row: failures of docs/guarantees.md, attacks of docs/security.md.

A row has one owner, the test that shows most of what the row says. Others may show a part of it.
"""

from __future__ import annotations

REPLAY = "spark/test_replay.py::test"
CLUSTER = "faults/test_lost_executors_and_two_queries.py::test"
RECEIVE = "conformance/test_receive.py::test"
MESSAGES = "hostile/test_messages.py::test"
WRITE = "spark/test_write.py::test"
KILL = "faults/test_failpoints.py::test_a_kill_in_any_gap_loses_nothing_and_repeats_nothing"
WATCH = "conformance/test_watch.py::test"
TAKEN = "hostile/test_taken.py::test"
POISON = "conformance/test_poison.py::test"

# row of the table of docs/security.md → its test
ATTACKS = {
    "large-headers": f"{MESSAGES}_a_million_bytes_of_tiny_headers_are_moved_unread",
    "frozen-end": (
        "conformance/test_peek_loop.py::"
        "test_a_row_far_above_the_sequence_does_not_make_a_run_endless"
    ),
    "refused-row": "test_server_language.py::test_an_error_is_the_same_in_each_language",
    "line-breaks": "test_errors.py::test_no_fact_of_an_error_writes_a_line_of_its_own",
    "statement-name": "cli/test_queues.py::test_no_name_becomes_a_statement_of_a_fix",
    "taken-seqs": f"{TAKEN}_rows_at_the_next_seqs_stop_no_stream",
    "held-seqs": f"{TAKEN}_seqs_of_an_open_transaction_stop_no_stream",
    "held-ids": f"{TAKEN}_an_open_transaction_with_the_id_stops_no_stream",
    "poison-jam": f"{POISON}_poison_gets_headers_that_can_be_read",
    "poison-again": f"{POISON}_a_row_that_says_it_is_poison_goes_there_too",
    "forged-retry": "spark/test_functions.py::test_messages_that_cannot_be_sent_on_raise_an_error",
    "slow-patterns": "spark/test_triage.py::test_a_digest_of_hostile_text_is_quick",
    "long-traces": "spark/test_triage.py::test_a_digest_reads_the_beginning_of_a_text",
    "long-failures": f"{WATCH}_a_return_holds_a_page",
    "many-failures": f"{WATCH}_a_return_keeps_no_text_that_a_sender_chose",
    "poison-retry": "cli/test_messages.py::test_copies_and_poison_are_not_returned",
    "full-subscriptions": (
        "conformance/test_subscriptions.py::test_rows_of_other_topics_are_not_read"
    ),
    "many-topics": "conformance/test_subscriptions.py::test_what_is_known_of_topics_is_bounded",
    "locked-subscriptions": (
        "conformance/test_subscriptions.py::test_a_locked_table_stops_no_publisher_for_a_minute"
    ),
    "forged-offset": "test_pace.py::test_an_offset_of_another_form_raises",
    "many-tables": (
        "hostile/test_code_of_others.py::test_a_look_costs_the_same_with_many_tables_of_others"
    ),
}
PROOFS = {
    "task-dies": KILL,
    "executor-lost": f"{CLUSTER}_an_executor_killed_decommissioned_or_frozen_in_mid_task",
    "executor-freezes": f"{CLUSTER}_an_executor_killed_decommissioned_or_frozen_in_mid_task",
    "executor-decommissioned": f"{CLUSTER}_an_executor_killed_decommissioned_or_frozen_in_mid_task",
    "speculation": f"{CLUSTER}_a_speculative_attempt_ends_with_the_same_rows",
    "two-queries": f"{CLUSTER}_two_queries_share_a_queue_and_failed_attempts_see_the_same_rows",
    "driver-dies-before-sink": f"{REPLAY}_a_failed_batch_comes_again_word_for_word",
    "driver-dies-after-sink": "spark/test_kill.py::test_killed_around_a_write",
    "iceberg": "compat/iceberg.py::iceberg_recognises_replays",
    "driver-dies-after-commit": KILL,
    "commit-answer-lost": (f"{RECEIVE}_a_session_lost_at_any_statement_of_a_task_is_done_again"),
    "database-restarts": (
        "conformance/test_server_settings.py::test_a_server_that_restarts_is_waited_for_longer"
    ),
    "late-attempt": f"{RECEIVE}_a_zombie_after_the_ack_is_stale_and_leaves_the_queue_alone",
    "checkpoint-loses-last": f"{REPLAY}_lost_offset_gets_the_stored_plan",
    "checkpoint-loses-first": (
        f"{REPLAY}_a_lost_first_entry_is_refused_while_the_query_has_its_name"
    ),
    "sources-lose-entries": f"{REPLAY}_a_lost_last_entry_of_two_sources_is_refused",
    "checkpoint-rolled-back": f"{REPLAY}_rolled_back_checkpoint_is_refused",
    "checkpoint-copied": f"{REPLAY}_checkpoint_copied_to_a_second_query",
    "checkpoint-lost": "pages/test_runbooks.py::test_checkpoint_lost",
    "sink-task-fails": f"{WRITE}_a_failed_task_sends_nothing",
    "sink-batch-replayed": f"{WRITE}_a_replayed_batch",
    "sink-atomic": (
        "conformance/test_send.py::"
        "test_the_receipts_of_a_micro_batch_are_settled_by_the_commit_that_sends"
    ),
    "mover-dies": KILL,
    "forward-fails": (
        "conformance/test_destinations.py::test_what_cannot_be_forwarded_goes_to_the_error_queue"
    ),
    "subscriber-missing": (
        "conformance/test_subscriptions.py::"
        "test_a_subscriber_that_cannot_be_reached_stops_the_whole_batch"
    ),
    "undeliverable": (
        "conformance/test_destinations.py::"
        "test_a_row_that_cannot_be_delivered_goes_to_the_error_queue_and_the_others_go_on"
    ),
    "large-message": (
        "conformance/test_receive.py::"
        "test_large_messages_go_to_the_error_queue_and_the_others_are_received"
    ),
    "poison-and-expired": f"{POISON}_poison_goes_to_the_error_queue_and_nothing_else_does",
}
