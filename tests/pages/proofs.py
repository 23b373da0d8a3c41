"""
Which test proves which row of a table, by the ids of both; and what else holds a table true.

A row without a test, and a test that is no longer there, are found by test_pages.py.
"""

from __future__ import annotations

KILL = "spark/test_kill.py"
REPLAY = "spark/test_replay.py"
CLUSTER = "faults/test_cluster.py"
CHAOS = "faults/test_chaos.py"
FAILPOINTS = "faults/test_failpoints.py"
LARGE = "conformance/test_receive.py"
RECEIVE = "conformance/test_receive.py"
LOOP = "conformance/test_peek_loop.py"
RECEIPTS = "conformance/test_receipts.py"
SEND = "conformance/test_send.py"
DELAYED = "conformance/test_delayed.py"
ZONES = "conformance/test_delayed.py"
FORWARD = "conformance/test_forward.py"
TOPICS = "conformance/test_subscriptions.py"
STREAM = "spark/test_stream.py"
WRITE = "spark/test_write.py"
CHANGES = "pages/test_changing_options.py::test"
GUIDE = "pages/test_guide_data.py::test"
QUEUES = "conformance/test_queues.py::test"
OPTIONS = "spark/test_options.py"
READ = "spark/test_read.py"
OPERATIONS = "pages/test_operations.py"
DBA = "pages/test_dba.py"
SPARK = "pages/test_spark_pages.py"
SETTINGS = "conformance/test_server_settings.py"
ROWS_AS_SENT = "conformance/test_wire.py"
KINDS = "conformance/test_tables.py"
STATE = "hostile/test_state.py"
RUNBOOKS = "pages/test_runbooks.py::test"
RUNNING = "pages/test_running.py::test"
ERRORS = "pages/test_troubleshooting.py::test"
SAYS = f"{ERRORS}_spark_says_what_the_page_says"

WENT_BACK = f"{RECEIPTS}::test_an_ack_ahead_of_the_stream_is_a_database_that_went_back"
READ_ONLY = f"{SETTINGS}::test_a_server_that_takes_no_writes_is_an_error_and_may_be_browsed"
GAP = f"{FAILPOINTS}::test_a_kill_in_any_gap_loses_nothing_and_repeats_nothing"
SHARED = f"{CLUSTER}::test_two_queries_share_a_queue_and_failed_attempts_see_the_same_rows"
EXECUTOR = f"{CLUSTER}::test_an_executor_killed_decommissioned_or_frozen_in_mid_task"
FROZEN = f"{CLUSTER}::test_an_executor_frozen_while_it_writes_its_receipt"
HARMED = f"{CHAOS}::test_nothing_is_lost_or_repeated_whatever_is_harmed"
ENDPOINTS = "spark/test_beside_the_transport.py"
BESIDE = f"{ENDPOINTS}::test_a_stream_between_endpoints_passes_every_message_on_once"
RIGHT = "conformance/test_rights.py::test_the_error_of_a_missing_right_has_the_grant_that_fixes_it"
TWO_DRIVERS = f"{LOOP}::test_two_drivers_on_one_checkpoint_the_first_ends"
LOST_FIRST = f"{REPLAY}::test_a_lost_first_entry_is_refused_while_the_query_has_its_name"
ROLLED_BACK = f"{REPLAY}::test_rolled_back_checkpoint_is_refused"
EXPIRED = f"{RECEIVE}::test_expired_messages_are_counted_and_gone"
POISON = f"{ROWS_AS_SENT}::test_poison_goes_to_the_error_queue_as_it_was_and_nothing_else_does"
WITH_RECEIPT = f"{SEND}::test_the_receipts_of_a_micro_batch_are_settled_by_the_commit_that_sends"
UNREACHED = f"{TOPICS}::test_a_subscriber_that_cannot_be_reached_stops_the_whole_batch"
UNDELIVERABLE = (
    "conformance/test_undeliverable.py::"
    "test_a_row_that_cannot_be_delivered_goes_to_the_error_queue_and_the_others_go_on"
)
WAITS = "pages/test_load.py::test_the_statements_of_the_page_wait_for_a_task_as_it_says"
WATCHED = f"{DBA}::test_the_queries_of_the_page_show_a_stream"
MIGRATED = f"{SPARK}::test_the_code_of_the_page_of_migration"
FAILED = "spark/test_functions_failed.py"
FAILED_PAGE = f"{SPARK}::test_the_code_of_the_page_of_failed_messages"
NET = f"{SPARK}::test_the_code_of_the_page_for_the_net_team"

TYPED = "spark/test_typed.py::test"
ICEBERG = "compat/iceberg.py::"

BODIES = "pages/test_bodies.py::test"
OUTGOING = "spark/test_functions.py::test"
PAGES = "pages/test_pages.py::test"
JOBS = "pages/test_jobs_page.py::test"
SITE = "pages/test_site.py::test"
OLD_BATCHES = f"{REPLAY}::test_a_file_sink_skips_batches"
FUNCTIONS = "spark/test_functions.py::test_the_page_of_functions_lists_each_with_its_arguments"
COMMANDS = "cli/test_every_command.py::test_the_page_has_a_row_for_each_command_and_exit_code"
CODES = COMMANDS
FIGURES = "figures of a run of tests.bench, which no test repeats"
TRIED = "what ran once on a server that no test has"
VENDOR = "what the pages of a vendor say, with the date of the look-up"
PROSE = "prose: each row says what another table or page proves"

# page, table → row → tests
ROWS: dict[tuple[str, str], dict[str, str]] = {
    ("docs/pipelines.md", "refresh"): dict.fromkeys(
        ["refused", "all", "allowed", "receipts"], "compat/pipeline.py::refreshed"
    ),
    ("docs/sql.md", "sql-errors"): {
        "columns-options": (
            "pages/test_sql_page.py::"
            "test_spark_stores_the_options_of_a_table_and_passes_them_to_nobody"
        ),
        "delta": (
            "pages/test_sql_page.py::test_a_table_cannot_be_read_through_the_catalog_of_delta"
        ),
        **dict.fromkeys(
            [
                *("table-options", "create-as", "write-options", "overwrite", "delete"),
                *("function", "path", "stream"),
            ],
            "pages/test_sql_page.py::test_what_does_not_work_has_the_error_of_the_page",
        ),
    },
    ("README.md", "comparison"): {
        "deletes": MIGRATED,
        "killed": f"{KILL}::test_killed_around_a_write",
        "shared": BESIDE,
        "rate": "pages/test_pages.py::test_figures_that_are_repeated_are_those_of_the_bench",
    },
    ("docs/sqlqueue.md", "browse-reads"): {
        **dict.fromkeys(
            ["filter", "other-filter"], f"{READ}::test_a_browse_applies_filters_of_seq_and_queue"
        ),
        "limit": f"{READ}::test_a_limit_reads_pages_of_one_task_until_spark_has_its_rows",
        "columns": f"{READ}::test_a_schema_of_fewer_columns_is_read",
    },
    ("docs/sqlqueue.md", "promises"): {
        "task-dies": GAP,
        "executor-lost": EXECUTOR,
        "executor-freezes": FROZEN,
        "executor-decommissioned": EXECUTOR,
        "speculation": f"{CLUSTER}::test_a_speculative_attempt_ends_with_the_same_rows",
        "two-queries": SHARED,
        "driver-dies-before-sink": f"{REPLAY}::test_a_failed_batch_comes_again_word_for_word",
        "driver-dies-after-sink": f"{KILL}::test_killed_around_a_write",
        "driver-dies-after-commit": (
            f"{RECEIPTS}::test_an_ack_deletes_the_receipts_and_adds_up_what_they_held"
        ),
        "commit-answer-lost": (
            f"{RECEIVE}::test_a_session_lost_at_any_statement_of_a_task_is_answered_by_doing_it_again"
        ),
        "database-restarts": HARMED,
        "late-attempt": (
            f"{RECEIVE}::test_a_zombie_after_the_ack_is_stale_and_leaves_the_queue_alone"
        ),
        "iceberg": f"{ICEBERG}replays_are_recognised",
        "checkpoint-loses-last": f"{REPLAY}::test_lost_offset_gets_the_stored_plan",
        "checkpoint-loses-first": LOST_FIRST,
        "sources-lose-entries": f"{REPLAY}::test_a_lost_last_entry_of_two_sources_is_refused",
        "checkpoint-rolled-back": ROLLED_BACK,
        "checkpoint-copied": f"{REPLAY}::test_checkpoint_copied_to_a_second_query",
        "checkpoint-lost": f"{OPERATIONS}::test_checkpoint_lost",
        "sink-task-fails": f"{WRITE}::test_a_failed_task_sends_nothing",
        "sink-batch-replayed": f"{WRITE}::test_a_replayed_batch",
        "sink-atomic": WITH_RECEIPT,
        "mover-dies": f"{DELAYED}::test_movers_of_both_kinds_at_once_lose_and_double_nothing",
        "forward-fails": f"{FORWARD}::test_what_cannot_be_forwarded_goes_to_the_error_queue",
        "subscriber-missing": UNREACHED,
        "undeliverable": UNDELIVERABLE,
        "large-message": (
            f"{LARGE}::test_large_messages_go_to_the_error_queue_and_the_others_are_received"
        ),
        "poison-and-expired": f"{STREAM}::test_available_now_gets_past_expired_and_poisoned_rows",
    },
    ("docs/iceberg.md", "ways"): {
        "job": f"{ICEBERG}killed_job_goes_on",
        "sink": f"{ICEBERG}own_sink_recognises_a_batch",
        "look": f"{ICEBERG}code_of_the_page_runs",
        "bare": f"{ICEBERG}bare_function_repeats_a_batch",
    },
    ("docs/iceberg.md", "faults"): {
        "killed": f"{ICEBERG}killed_job_goes_on",
        "replayed": f"{ICEBERG}replays_are_recognised",
        "rolled-back": f"{ICEBERG}replays_are_recognised",
        "table-rolled-back": f"{ICEBERG}replays_are_recognised",
        "snapshot-expired": f"{ICEBERG}expired_snapshot_repeats_a_batch",
        "bare-function": f"{ICEBERG}bare_function_repeats_a_batch",
    },
    ("docs/sqlqueue.md", "triggers"): {
        "available-now": f"{STREAM}::test_available_now_ends_at_what_waited_at_the_start",
        "processing-time": f"{STREAM}::test_a_running_stream_takes_what_comes",
        "no-trigger": f"{LOOP}::test_an_empty_peek_leaves_the_database_alone_for_peek_delay",
    },
    ("docs/sqlqueue.md", "outbox"): {
        **dict.fromkeys(
            ["new", "key", "version"], f"{BODIES}_the_ids_of_the_page_are_those_of_the_sink"
        ),
        **dict.fromkeys(
            ["forwarded", "returned"], f"{OUTGOING}_a_forwarded_message_keeps_its_headers"
        ),
        "sent-again": f"{OUTGOING}_an_outgoing_message_is_of_the_same_conversation",
        "at-least-once": (
            "send/test_messages.py::test_a_seed_gives_a_retried_task_the_same_messages"
        ),
    },
    ("docs/diagrams.md", "kills-of-a-read"): {
        "plan-stored": f"{REPLAY}::test_lost_offset_gets_the_stored_plan",
        **dict.fromkeys(["not-committed", "committed"], GAP),
        "files": f"{REPLAY}::test_a_failed_batch_comes_again_word_for_word",
        "sink-has-it": f"{KILL}::test_killed_around_a_write",
        "spark-has-it": (
            f"{RECEIPTS}::test_an_ack_deletes_the_receipts_and_adds_up_what_they_held"
        ),
        "acknowledged": GAP,
    },
    ("docs/diagrams.md", "kills-of-a-write"): {
        **dict.fromkeys(["staging", "not-dispatched"], GAP),
        "dispatched": f"{WRITE}::test_a_replayed_batch",
    },
    ("docs/bodies.md", "json"): dict.fromkeys(
        [
            *("name", "name-wrong", "number-text", "text-number", "decimal", "decimal-text"),
            *("not-a-number", "enum", "enum-text", "timestamp", "microseconds", "timestamp-ntz"),
            *("timestamp-text", "date", "span", "interval", "guid", "bytes", "list", "null"),
            "null-written",
        ],
        f"{BODIES}_each_sql_of_the_page_gives_its_body",
    ),
    ("docs/bodies.md", "types"): dict.fromkeys(
        ["right", "interface-first", "twice", "blank"],
        f"{BODIES}_types_in_a_wrong_order_are_rejected_where_that_is_certain",
    ),
    ("docs/operations.md", "failures"): {
        "task-dies": GAP,
        "driver-dies": f"{KILL}::test_killed_around_a_write",
        "connection-breaks": (
            f"{LOOP}::test_a_session_lost_at_any_statement_of_the_driver_is_answered_by_doing_it_again"
        ),
        "server-down": f"{OPTIONS}::test_server_not_reachable",
        "no-connection": (f"{SETTINGS}::test_a_server_without_a_free_connection_is_waited_for"),
        "query-timeout": f"{RECEIVE}::test_a_wait_longer_than_query_timeout_ends",
        "cancelled": "test_postgresql.py::test_what_was_cancelled_did_not_time_out",
        "right-missing": RIGHT,
        "queue-dropped": f"{OPERATIONS}::test_a_dropped_queue",
        "option-table-missing": "conformance/test_send.py::"
        "test_a_table_that_an_option_names_is_looked_for_before_a_task_runs",
        "state-dropped": f"{OPERATIONS}::test_the_state_tables_are_dropped",
        "checkpoint-lost": f"{OPERATIONS}::test_checkpoint_lost",
        "checkpoint-rolled-back": ROLLED_BACK,
        "checkpoint-incomplete": LOST_FIRST,
        "database-rolled-back": WENT_BACK,
        "receipts-missing": (
            f"{RECEIPTS}::test_receipts_that_are_missing_are_an_error_if_an_option_asks_for_it"
        ),
        "read-only": READ_ONLY,
        "two-queries": TWO_DRIVERS,
        "endpoint-fails": f"{OPERATIONS}::test_messages_that_failed",
        "poison": f"{OPERATIONS}::test_poison",
        "large-message": f"{LARGE}::test_without_an_error_queue_nothing_is_taken",
        "payload-rewritten": (
            "hostile/test_payloads.py::test_a_forged_receipt_is_refused_by_its_task_and_by_a_return"
        ),
        "seq-used-up": f"{OPERATIONS}::test_the_seqs_come_to_an_end",
        "disk-full": HARMED,
        "plan-changed": "test_batch.py::test_an_offset_of_another_form_raises",
        "log-ahead": f"{STATE}::test_a_dispatch_log_that_is_ahead_is_an_error",
        "chunks-missing": f"{SEND}::test_a_missing_chunk_stops_the_whole_batch",
        "nothing-to-settle": (
            f"{SEND}::test_a_micro_batch_of_which_a_receipt_was_returned_sends_nothing"
        ),
        "credentials-fail": (
            "test_credentials.py::test_a_password_that_is_late_is_asked_for_again"
        ),
        "not-verified": "hostile/test_tls.py::test_a_server_that_is_not_verified_gets_nothing",
        "destination-refused": (
            "hostile/test_destinations.py::test_no_code_of_an_attacker_runs_by_a_forward_or_a_reply"
        ),
        "subscriber-missing": UNREACHED,
        "undeliverable": UNDELIVERABLE,
    },
    ("docs/dba.md", "settings"): {
        "pgbouncer": (
            "conformance/test_server_settings.py::test_between_transactions_only_whole_statements_are_sent"
        ),
        "pgbouncer-statement": f"{SETTINGS}::test_statement_pooling_is_refused",
        "several-hosts": (
            f"{SETTINGS}::test_a_server_that_is_gone_is_waited_for_where_others_were_there"
        ),
        "synchronous-standby": GAP,
        "standby-behind": (WENT_BACK),
        "read-only": (READ_ONLY),
        "asynchronous-commit": f"{SETTINGS}::test_what_was_received_outlives_a_crash",
        "local-commit": f"{SETTINGS}::test_a_commit_waits_for_synchronous_standbys",
        "login-settings": f"{SETTINGS}::test_what_a_login_sets_changes_nothing",
        "not-a-plain-table": f"{KINDS}::test_a_stream_on_what_is_no_plain_table_ends_at_once",
        "foreign-table": f"{KINDS}::test_a_queue_that_is_no_plain_table_is_found",
        "row-security": f"{KINDS}::test_row_security_is_found_and_no_grant_is_asked_for",
    },
    ("docs/guide/checkpoints.md", "checkpoints"): {
        "move": f"{RUNNING}_a_checkpoint_is_moved_and_shows_its_stream",
        "spark": TRIED,
        "copy": f"{REPLAY}::test_checkpoint_copied_to_a_second_query",
        "old": ROLLED_BACK,
        "lost": f"{OPERATIONS}::test_checkpoint_lost",
        "files": LOST_FIRST,
        "offset": f"{REPLAY}::test_lost_offset_gets_the_stored_plan",
        "commit": f"{REPLAY}::test_commit_removed_after_its_ack_is_refused",
        "other-queue": (
            "conformance/test_queues.py::test_a_checkpoint_that_shares_no_queue_is_refused"
        ),
        "database": WENT_BACK,
    },
    ("docs/guide/troubleshooting.md", "spark"): {
        **dict.fromkeys(["save-mode", "direct-query", "stream-action", "no-checkpoint"], SAYS),
        **dict.fromkeys(["continuous", "sources"], SAYS),
        **dict.fromkeys(["not-found", "worker-import", "no-python", "mismatch", "delta"], TRIED),
        **dict.fromkeys(["connect-packages", "connect-jvm", "worker-slow"], TRIED),
    },
    ("docs/load.md", "waits"): dict.fromkeys(["blocks", "waits", "free"], WAITS),
    ("docs/standby.md", "reports"): {
        "stream": f"{RECEIPTS}::test_a_plan_ahead_of_the_stream_is_a_database_that_went_back",
        "in-flight": f"{RECEIPTS}::test_what_a_takeover_lost_of_a_batch_that_is_there_is_no_error",
        "new": f"{RECEIPTS}::test_an_ack_by_a_driver_that_was_taken_over_is_refused",
        "sink": TRIED,
        "sender": TRIED,
    },
    ("docs/dba.md", "growth"): {
        "dead-rows": "conformance/test_checks.py::test_a_server_without_autovacuum_is_found",
        "receipts": "faults/test_leaks.py::test_nothing_grows_from_batch_to_batch",
        "staging": "faults/test_leaks.py::test_nothing_grows_from_batch_to_batch",
        "streams-and-log": "faults/test_leaks.py::test_nothing_grows_from_batch_to_batch",
        "trail": "cli/test_trail.py::test_purge_return_and_drop_leave_entries",
        "wal": "pages/test_pages.py::test_figures_that_are_repeated_are_those_of_the_bench",
        "seq": f"{OPERATIONS}::test_seq_nearly_used_up",
    },
    ("docs/upgrade.md", "versions"): dict.fromkeys(
        ["same", "older", "newer"],
        f"{RUNBOOKS}_releases_refuse_state_tables_of_another_version",
    ),
    ("docs/dotnet.md", "questions"): {
        "compete": (
            f"{RECEIVE}::test_with_competing_consumers_every_message_is_in_exactly_one_place"
        ),
        "locks": "pages/test_dba.py::test_no_transaction_is_open_while_spark_works",
        "readable": f"{ROWS_AS_SENT}::test_every_row_is_written_so_that_an_endpoint_reads_the_same",
        "tables-changed": f"{DBA}::test_what_the_page_removes_leaves_no_trace",
        "poison": POISON,
        "expired": EXPIRED,
        "delayed": f"{ZONES}::test_what_we_store_the_endpoint_moves_at_the_right_time",
        "stopped": BESIDE,
    },
    ("docs/dotnet.md", "visible"): {
        "sessions": WATCHED,
        "statements": WATCHED,
        "receipts": f"{OPERATIONS}::test_receipts_left",
        "sent": f"{WRITE}::test_a_frame_is_sent_with_the_headers_that_endpoints_need",
        "subscribers": NET,
    },
    ("docs/failed.md", "way"): {
        "poison": POISON,
        "later": f"{FAILED}::test_a_message_is_retried_by_the_real_queue_and_then_fails",
        "fail": f"{KILL}::test_killed_around_a_write",
        "look": f"{FAILED}::test_a_failed_message_looks_as_one_of_an_endpoint",
        "return": FAILED_PAGE,
        "acknowledge": f"{FAILED}::test_a_retry_is_acknowledged_as_by_an_endpoint",
    },
    ("docs/migration.md", "jdbc-losses"): {
        "late-commit": MIGRATED,
        "killed": f"{KILL}::test_killed_around_a_write",
        "competitor": BESIDE,
        "computed-again": f"{REPLAY}::test_reading_twice_receives_once",
        "expired": EXPIRED,
        "headers": "spark/test_read.py::test_messages_of_net_endpoints_become_columns",
    },
    ("docs/guide/changing-options.md", "read-changes"): {
        "same-database": f"{CHANGES}_another_name_of_the_server_continues",
        **dict.fromkeys(
            ["other-database", "state-schema"],
            f"{CHANGES}_another_database_or_state_schema_is_refused",
        ),
        "login": f"{STATE}::test_a_stream_goes_on_under_another_login_of_its_role",
        "other-login": (
            "hostile/test_domains.py::test_no_option_leads_a_team_to_the_state_of_another"
        ),
        "queue-added": f"{QUEUES}_a_queue_that_was_added_is_read_from_the_next_batch_on",
        "queue-removed": (
            f"{QUEUES}_of_a_queue_that_was_removed_only_what_was_received_is_handed_out"
        ),
        "queue-replaced": f"{QUEUES}_a_checkpoint_that_shares_no_queue_is_refused",
        "mode-none": f"{CHANGES}_without_receipts_the_open_batch_is_still_handed_out",
        "mode-receipts": f"{LOOP}::test_a_checkpoint_of_transaction_mode_none_begins_receipts",
        "columns": f"{CHANGES}_columns_may_change_and_the_open_batch_has_the_new_ones",
        "error-queue": f"{CHANGES}_an_error_queue_takes_what_comes_later",
        "larger": f"{CHANGES}_a_lower_limit_of_one_message_refuses_a_receipt",
        "purge": f"{LOOP}::test_purge_on_startup_leaves_what_was_received_before",
        **dict.fromkeys(
            ["limits", "others"],
            f"{CHANGES}_limits_and_other_options_hold_from_the_next_batch_on",
        ),
    },
    ("docs/guide/changing-options.md", "write-changes"): {
        "sink-login": f"{STATE}::test_a_sink_goes_on_under_another_login_of_its_role",
        **dict.fromkeys(
            ["sink-log", "sink-delivery", "sink-names", "sink-queue", "sink-others"],
            f"{CHANGES}_what_a_sink_does_with_a_batch_that_it_has_sent_before",
        ),
    },
    ("docs/guide/sinks.md", "sinks"): {
        **dict.fromkeys(
            ["delta", "append", "merge", "kafka", "jdbc", "other"],
            f"{GUIDE}_which_sinks_write_a_repeated_batch_twice",
        ),
        "iceberg": f"{ICEBERG}own_sink_recognises_a_batch",
        "parquet": f"{OLD_BATCHES}_of_a_new_checkpoint_in_an_old_folder",
        "this": f"{WRITE}::test_a_replayed_batch",
        "this-in-batch": f"{WRITE}::test_txn_version_inside_foreach_batch",
    },
    ("docs/guide/bodies.md", "schema-changes"): dict.fromkeys(
        ["added", "removed", "renamed", "wider", "type"],
        f"{GUIDE}_bodies_of_older_and_newer_types_are_parsed_as_the_page_says",
    ),
    ("docs/transactions.md", "kills"): {
        "before-commit": GAP,
        "after-commit": GAP,
        "after-sink": f"{KILL}::test_killed_around_a_write",
        "after-commit-log": GAP,
        "checkpoint-lost": f"{RECEIPTS}::test_a_settled_receipt_cannot_be_returned_but_dropped",
    },
}

# page → table → the test that holds it, or what it is
PARTS: dict[str, dict[str, str]] = {
    "README.md": {"links": f"{PAGES}_every_link_leads_somewhere"},
    "CONTRIBUTING.md": {"suites": f"{PAGES}_the_suites_are_there"},
    "docs/bodies.md": {
        "xml": f"{BODIES}_the_python_of_the_page_gives_what_it_says",
        "body-headers": PROSE,
    },
    "docs/commandline.md": {"commands": COMMANDS, "exit-codes": CODES},
    "docs/dba.md": {
        "state-tables": f"{DBA}::test_the_page_names_the_tables_that_are_installed",
        "locks": f"{DBA}::test_the_modes_on_the_page_are_those_that_the_server_shows",
        "statement-locks": f"{DBA}::test_the_locks_of_statements_are_those_of_their_comments",
        "versions": TRIED,
        "pages": f"{PAGES}_every_link_leads_somewhere",
        "rights": f"{DBA}::test_the_rights_on_the_page_are_those_that_the_script_grants",
    },
    "docs/dotnet.md": {
        "publish-settings": f"{PAGES}_options_have_their_names",
        "endpoint-versions": TRIED,
        "service-control": PROSE,
    },
    "docs/failed.md": {
        "failure-headers": FAILED_PAGE,
        "acknowledging-jobs": f"{JOBS}_the_jobs_that_acknowledge_have_the_setting",
    },
    "docs/diagrams.md": {"receipt-moves": f"{SITE}_the_moves_of_a_receipt_are_explained"},
    "docs/emergency.md": {"by-hand": f"{RUNBOOKS}_what_may_be_deleted_by_hand"},
    "docs/guide/databricks.md": dict.fromkeys(["compute", "principal", "schedules"], PROSE),
    "docs/guide/monitoring.md": {
        "alerts": f"{RUNNING}_a_listener_sends_what_the_table_of_alerts_names",
        "database-alerts": PROSE,
    },
    "docs/guide/troubleshooting.md": {
        "symptoms": PROSE,
        **dict.fromkeys(
            ["installation", "inputs", "server", "queues", "checkpoint", "dispatch", "state"],
            f"{ERRORS}_each_error_has_a_row_with_the_text_that_it_prints",
        ),
    },
    "docs/for-the-dba.md": dict.fromkeys(["approve", "run", "happens"], PROSE),
    "docs/for-the-dotnet-team.md": dict.fromkeys(
        ["changes", "owners", "to-spark", "from-spark", "together"], PROSE
    ),
    "docs/guide/versions.md": dict.fromkeys(["environments", "compatibility"], PROSE),
    "docs/retention.md": {"places": PROSE},
    "docs/pipelines.md": {"ran": TRIED},
    "docs/sql.md": {"sql-passwords": PROSE},
    "docs/restore.md": {
        "where": PROSE,
        "reports": f"{RUNBOOKS}_after_a_restore_a_stream_raises_and_continues",
        "tried": TRIED,
    },
    "docs/standby.md": {"window": TRIED, "commits": TRIED, "tried": TRIED},
    "docs/functions.md": {"header-functions": FUNCTIONS, "outgoing": FUNCTIONS, "cost": FIGURES},
    "docs/guide/kafka.md": {
        "kafka-columns": PROSE,
        "kafka-options": f"{PAGES}_options_have_their_names",
    },
    "docs/guide/read-and-write.md": {
        "common-options": f"{GUIDE}_the_defaults_of_the_common_options_are_those_of_the_reference",
    },
    "docs/guide/sizing.md": {"symptoms": PROSE, "latency": PROSE},
    "docs/growth.md": {"speed": FIGURES, "limits": FIGURES},
    "docs/iceberg.md": {"limits": PROSE},
    "docs/jobs.md": {
        "typed": f"{TYPED}_bodies_become_columns_or_go_to_the_error_queue",
        "jobs": f"{JOBS}_the_page_lists_the_jobs_that_are_there",
        "exit-codes": f"{JOBS}_the_exit_codes_are_those_of_the_frame",
        "sizes": f"{JOBS}_the_rule_of_sizes_is_that_of_the_code",
        "targets": f"{JOBS}_the_targets_are_those_of_the_bundle",
    },
    "docs/load.md": {
        **dict.fromkeys(["wal", "vacuum"], FIGURES),
        "statements": TRIED,
        "connections": PROSE,
    },
    "docs/migration.md": {
        "jdbc-options": f"{PAGES}_options_have_their_names",
        "endpoint-parts": f"{PAGES}_options_have_their_names",
    },
    "docs/operations.md": {
        "new-checkpoint": f"{OLD_BATCHES}_of_a_new_checkpoint_in_an_old_folder",
        "backlog": f"{OPERATIONS}::test_backlog_grows",
    },
    "docs/security.md": {
        **dict.fromkeys(["trust", "who", "rules", "destination-answers", "limits"], PROSE),
        "credentials": f"{PAGES}_the_services_of_credentials_have_extras",
        "tls": f"{PAGES}_the_modes_of_tls_are_libpqs",
    },
    "docs/sqlqueue.md": {
        "terms": PROSE,
        "read-columns": f"{PAGES}_the_columns_of_a_read_are_the_formats",
        "write-columns": f"{PAGES}_the_columns_of_a_write_are_those_that_are_known",
        "read-options": "test_readme.py::test_the_tables_name_every_option",
        "sender-headers": (
            "spark/test_write.py::test_a_message_names_the_query_or_the_application_as_its_sender"
        ),
        "write-options": "test_readme.py::test_the_tables_name_every_option",
        "metrics": f"{SPARK}::test_the_progress_on_the_page_has_the_keys_of_a_real_one",
    },
    "docs/sqlserver.md": {
        "server-features": PROSE,
        "url-parameters": f"{PAGES}_the_parameters_of_a_sql_server_url_are_known",
        "existing-tables": (
            "test_sqlserver.py::test_characters_that_a_varchar_cannot_hold_are_refused"
        ),
        "rights": "test_sqlserver.py::test_the_script_gives_the_rights_that_the_wire_lists",
        "errors": "tds/test_drivers.py::test_an_error_is_classified_wherever_it_comes",
        "checked": f"{PAGES}_the_list_of_what_was_checked_names_the_checks_of_selftest",
    },
    "docs/testing.md": {
        "fixtures": "test_testing.py::test_the_page_lists_the_fixtures_and_functions",
        "testing-functions": "test_testing.py::test_the_page_lists_the_fixtures_and_functions",
    },
    "docs/transactions.md": {"modes": PROSE},
    "docs/versions.md": {
        "environments": (
            "test_versions.py::test_the_page_lists_the_environments_of_the_compatibility_run"
        ),
        "differences": PROSE,
        "runtimes": PROSE,
        "databricks-networks": VENDOR,
        "speed": FIGURES,
    },
}
WHOLE = {(page, each): held for page, parts in PARTS.items() for each, held in parts.items()}
