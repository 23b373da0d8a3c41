"""
Which test proves which row of a table, by the row's first cell; and what else holds a table true.

A row without a test, and a test that is no longer there, are found by test_pages.py.
"""

from __future__ import annotations

KILL = "spark/test_kill.py"
REPLAY = "spark/test_replay.py"
CLUSTER = "faults/test_cluster.py"
CHAOS = "faults/test_chaos.py"
FAILPOINTS = "faults/test_failpoints.py"
RECEIVE = "conformance/test_receive.py"
READER = "conformance/test_reader.py"
RECEIPTS = "conformance/test_receipts.py"
SEND = "conformance/test_send.py"
DELAYED = "conformance/test_delayed.py"
ZONES = "conformance/test_delayed_zones.py"
FORWARD = "conformance/test_forward.py"
TOPICS = "conformance/test_subscriptions.py"
STREAM = "spark/test_stream.py"
WRITE = "spark/test_write.py"
OPTIONS = "spark/test_options.py"
OPERATIONS = "pages/test_operations.py"
DBA = "pages/test_dba.py"
SPARK = "pages/test_spark_pages.py"
SETTINGS = "conformance/test_server_settings.py"
KINDS = "conformance/test_table_kinds.py"

WENT_BACK = f"{RECEIPTS}::test_an_ack_ahead_of_the_reader_is_a_database_that_went_back"
READ_ONLY = f"{SETTINGS}::test_a_server_that_takes_no_writes_is_told_and_may_be_browsed"
GAP = f"{FAILPOINTS}::test_a_kill_in_any_gap_loses_nothing_and_repeats_nothing"
HARMED = f"{CHAOS}::test_nothing_is_lost_or_repeated_whatever_is_harmed"
PEERS = "spark/test_beside_the_transport.py"
BESIDE = f"{PEERS}::test_a_stream_between_endpoints_passes_every_message_on_once"
RIGHT = "conformance/test_rights.py::test_a_missing_right_is_told_with_the_grant_that_mends_it"
TWO_DRIVERS = f"{READER}::test_two_drivers_on_one_checkpoint_the_first_is_told"
ROLLED_BACK = f"{REPLAY}::test_rolled_back_checkpoint_is_refused"
EXPIRED = f"{RECEIVE}::test_expired_messages_are_counted_and_gone"
POISON = f"{RECEIVE}::test_poison_is_moved_to_the_error_queue_as_it_was"
WITH_RECEIPT = f"{SEND}::test_the_receipts_of_a_micro_batch_are_settled_by_the_commit_that_sends"
UNREACHED = f"{TOPICS}::test_a_subscriber_that_cannot_be_reached_stops_the_whole_batch"
WATCHED = f"{DBA}::test_what_the_page_watches_by_is_seen"
MIGRATED = f"{SPARK}::test_the_code_of_the_page_of_migration"
NET = f"{SPARK}::test_the_code_of_the_page_for_the_net_team"

# page, heading → row → tests
ROWS: dict[tuple[str, str], dict[str, str]] = {
    ("docs/sqlqueue.md", "What is promised"): {
        "task, executor or Python worker, at any point": GAP,
        "an executor, killed or lost in mid-task": (
            f"{CLUSTER}::test_an_executor_killed_in_mid_task"
        ),
        "an executor that freezes and comes back": (
            f"{CLUSTER}::test_a_frozen_executor_that_comes_back"
        ),
        "an executor that is decommissioned": (
            f"{CLUSTER}::test_an_executor_decommissioned_in_mid_task"
        ),
        "speculation: two attempts of a task at once": (
            f"{CLUSTER}::test_a_speculative_attempt_ends_with_the_same_rows"
        ),
        "two queries on one queue, each with its checkpoint": (
            f"{CLUSTER}::test_two_queries_share_a_queue"
        ),
        "driver or JVM, before the sink has the batch": (
            f"{REPLAY}::test_a_failed_batch_comes_again_word_for_word"
        ),
        "… after the sink has it, before Spark's commit log": (
            f"{KILL}::test_killed_around_a_write_to_delta"
        ),
        "… after the commit log": (
            f"{RECEIPTS}::test_an_ack_forgets_the_receipts_and_adds_up_what_they_held"
        ),
        "a commit whose answer is lost": (
            f"{RECEIVE}::test_a_session_lost_at_any_statement_of_a_task_is_answered_by_doing_it_again"
        ),
        "the database, restarted": HARMED,
        "an attempt that was given up and comes back": (
            f"{RECEIVE}::test_a_zombie_after_the_ack_is_stale_and_leaves_the_queue_alone"
        ),
        "the last entries of the checkpoint are lost, not its first": (
            f"{REPLAY}::test_lost_offset_gets_the_stored_plan"
        ),
        "… its first too, or with two sources in one query": (
            f"{REPLAY}::test_lost_offset_of_the_first_batch_leaves_an_orphan"
        ),
        "the checkpoint is rolled back": ROLLED_BACK,
        "a second query starts on a copy of the checkpoint": (
            f"{REPLAY}::test_checkpoint_copied_to_a_second_query"
        ),
        "the whole checkpoint is lost": f"{OPERATIONS}::test_checkpoint_lost",
        "the sink: a failed task or job": f"{WRITE}::test_a_failed_task_sends_nothing",
        "the sink: a replayed batch": f"{WRITE}::test_a_replayed_batch",
        "… with `sendsAtomicWithReceive`": WITH_RECEIPT,
        "a mover of delayed messages, at any point": (
            f"{DELAYED}::test_movers_of_both_kinds_at_once_lose_and_double_nothing"
        ),
        "a message cannot be forwarded": (
            f"{FORWARD}::test_what_cannot_be_forwarded_goes_to_the_error_queue"
        ),
        "the sink: a subscriber's queue is missing": UNREACHED,
        "poison, expired messages, NULL bodies": (
            f"{STREAM}::test_available_now_gets_past_expired_and_poisoned_rows"
        ),
    },
    ("docs/sqlqueue.md", "Triggers and limits"): {
        "`availableNow=True`": f"{STREAM}::test_available_now_ends_at_what_waited_at_the_start",
        '`processingTime="10 seconds"`': f"{STREAM}::test_a_running_stream_takes_what_comes",
        "none given": (f"{READER}::test_an_empty_peek_leaves_the_database_alone_for_peek_delay"),
    },
    ("docs/operations.md", "Which failure leads to what"): {
        "a task, executor or worker dies": GAP,
        "the driver dies": f"{KILL}::test_killed_around_a_write_to_delta",
        "a connection breaks, a deadlock": (
            f"{READER}::test_a_session_lost_at_any_statement_of_the_driver_is_answered_by_doing_it_again"
        ),
        "the server is down for longer": f"{OPTIONS}::test_server_not_reachable",
        "a statement or a lock takes longer than `queryTimeout`": (
            f"{RECEIVE}::test_a_wait_longer_than_query_timeout_ends"
        ),
        "a DBA cancels a statement": (
            "test_postgresql.py::test_what_was_cancelled_did_not_time_out"
        ),
        "a right is missing": RIGHT,
        "the queue's table is dropped": f"{OPERATIONS}::test_a_dropped_queue",
        "the state tables are dropped": f"{OPERATIONS}::test_the_state_tables_are_dropped",
        "the checkpoint is lost": f"{OPERATIONS}::test_checkpoint_lost",
        "the checkpoint is rolled back": ROLLED_BACK,
        "a standby takes over that was behind, or a backup is restored": WENT_BACK,
        "the server is read-only: a standby, or a full disk": READ_ONLY,
        "a second query runs on the checkpoint": TWO_DRIVERS,
        "an endpoint cannot handle a message": f"{OPERATIONS}::test_messages_that_failed",
        "headers that cannot be read": f"{OPERATIONS}::test_poison",
        "the seqs come to an end": f"{OPERATIONS}::test_the_seqs_come_to_an_end",
        "the server's disk is full": HARMED,
        "a subscriber's queue is missing": UNREACHED,
    },
    ("docs/dba.md", "Poolers, standbys and settings"): {
        "PgBouncer, `pool_mode=session` or `transaction`": (
            "conformance/test_poolers.py::test_between_transactions_only_whole_statements_are_sent"
        ),
        "PgBouncer, `pool_mode=statement`": f"{SETTINGS}::test_statement_pooling_is_refused",
        "several hosts and `target_session_attrs=read-write` in the url": (
            f"{SETTINGS}::test_a_server_that_is_gone_is_waited_for_where_others_were_there"
        ),
        "a synchronous standby that takes over": GAP,
        "a standby that was behind when it took over, a backup": (WENT_BACK),
        "a standby, `default_transaction_read_only`": (READ_ONLY),
        "`synchronous_commit=off`": f"{SETTINGS}::test_what_was_received_outlives_a_crash",
        "isolation, `search_path`, `lock_timeout`, `bytea_output`, styles, time zone, "
        "`standard_conforming_strings` of a login": (
            f"{SETTINGS}::test_what_a_login_sets_changes_nothing"
        ),
        "a queue that is partitioned, inherited from, a view": (
            f"{KINDS}::test_a_stream_on_what_is_no_plain_table_ends_at_once"
        ),
        "a queue that is a foreign table": (
            f"{KINDS}::test_a_queue_that_is_no_plain_table_is_found"
        ),
        "row security on a queue": (
            f"{KINDS}::test_row_security_is_found_and_no_grant_is_asked_for"
        ),
    },
    ("docs/dba.md", "What grows"): {
        "a queue's dead rows": (
            "conformance/test_checks.py::test_a_server_without_autovacuum_is_found"
        ),
        "`receipt`, `receipt_page`": "faults/test_leaks.py::test_nothing_grows_from_batch_to_batch",
        "`outbox`, `outbox_page`": "faults/test_leaks.py::test_nothing_grows_from_batch_to_batch",
        "`reader`, `dispatched`": "faults/test_leaks.py::test_nothing_grows_from_batch_to_batch",
        "WAL": "pages/test_pages.py::test_figures_that_are_told_twice_are_the_same",
        "`Seq`": f"{OPERATIONS}::test_seq_nearly_used_up",
    },
    ("docs/dotnet.md", "What you will notice"): {
        "do endpoints and Spark compete for a queue?": (
            f"{RECEIVE}::test_with_competing_consumers_every_message_is_in_exactly_one_place"
        ),
        "does Spark hold rows or locks while it computes?": (
            "pages/test_dba.py::test_no_transaction_is_open_while_spark_works"
        ),
        "can a .NET endpoint read what Spark sends?": (
            f"{SEND}::test_the_peer_receives_what_we_send"
        ),
        "are tables changed?": f"{DBA}::test_what_the_page_removes_leaves_no_trace",
        "what of poison?": POISON,
        "what of expired messages?": EXPIRED,
        "what of delayed messages?": (
            f"{ZONES}::test_what_we_store_the_peer_moves_at_the_right_time"
        ),
        "what if Spark is stopped?": BESIDE,
    },
    ("docs/dotnet.md", "What you can see"): {
        "sessions": WATCHED,
        "statements": WATCHED,
        "messages that left a queue and are not in the table yet": (
            f"{OPERATIONS}::test_receipts_left"
        ),
        "messages sent by Spark": f"{WRITE}::test_a_frame_is_sent_with_the_headers_that_peers_need",
        "who is subscribed": NET,
    },
    ("docs/migration.md", "From a hand-written JDBC read"): {
        "a sender commits a lower `seq` after the read and before the delete": MIGRATED,
        "the job is killed between write and delete": (
            f"{KILL}::test_killed_around_a_write_to_delta"
        ),
        "an endpoint, or a second run, consumes the queue too": BESIDE,
        "a task or a frame is computed again": f"{REPLAY}::test_reading_twice_receives_once",
        "messages expire": EXPIRED,
        "headers": "spark/test_read.py::test_messages_of_net_endpoints_become_columns",
    },
    ("docs/transactions.md", "When it fails"): {
        "before a task's commit": GAP,
        "after it, before the sink has the batch": GAP,
        "after the sink has the batch, before Spark's commit log": (
            f"{KILL}::test_sink_killed_around_its_dispatch"
        ),
        "after the commit log": GAP,
        "checkpoint lost, an operator returns the receipts": (
            f"{RECEIPTS}::test_a_settled_receipt_cannot_be_returned_but_dropped"
        ),
    },
}

COMMANDS = "test_commandline_page.py::test_the_page_has_a_row_for_each_command"
CODES = "test_commandline_page.py::test_the_page_has_a_row_for_each_exit_code"
FIGURES = "figures of a run of tests.bench, which no test repeats"
TRIED = "what ran once on a server that no test has"
PROSE = "prose: each row says what another table or page proves"

# page, heading, which one below it → the test that holds it, or what it is
WHOLE: dict[tuple[str, str, int], str] = {
    ("README.md", "Speed", 0): FIGURES,
    ("README.md", "More", 0): "pages/test_pages.py::test_every_link_leads_somewhere",
    ("docs/commandline.md", "Command line", 0): COMMANDS,
    ("docs/commandline.md", "For programs", 0): CODES,
    ("CONTRIBUTING.md", "Suites", 0): "pages/test_pages.py::test_the_suites_are_there",
    ("docs/dba.md", "Tables", 0): f"{DBA}::test_the_page_names_the_tables_that_are_installed",
    (
        "docs/dba.md",
        "Locks",
        0,
    ): f"{DBA}::test_the_modes_on_the_page_are_those_that_the_server_shows",
    ("docs/dba.md", "Locks", 1): f"{DBA}::test_the_locks_of_statements_are_those_of_their_comments",
    ("docs/dba.md", "PostgreSQL versions", 0): TRIED,
    (
        "docs/dba.md",
        "Rights",
        0,
    ): f"{DBA}::test_the_rights_on_the_page_are_those_that_the_script_grants",
    ("docs/dotnet.md", "Hear what Spark publishes", 0): (
        "pages/test_pages.py::test_options_are_called_what_they_are_called"
    ),
    ("docs/functions.md", "What a message says", 0): (
        "spark/test_functions.py::test_the_page_of_functions_lists_each_with_its_arguments"
    ),
    ("docs/functions.md", "What a message says", 1): FIGURES,
    ("docs/functions.md", "What a message causes", 0): (
        "spark/test_functions.py::test_the_page_of_functions_lists_each_with_its_arguments"
    ),
    ("docs/growth.md", "What limits at a hundred cores", 0): FIGURES,
    ("docs/jobs.md", "Jobs", 0): (
        "pages/test_jobs_page.py::test_the_page_lists_the_jobs_that_are_there"
    ),
    ("docs/jobs.md", "Run one", 0): (
        "pages/test_jobs_page.py::test_the_exit_codes_are_those_of_the_frame"
    ),
    ("docs/migration.md", "From a hand-written JDBC read", 1): (
        "pages/test_pages.py::test_options_are_called_what_they_are_called"
    ),
    ("docs/migration.md", "From an endpoint that copies to a lake", 0): (
        "pages/test_pages.py::test_options_are_called_what_they_are_called"
    ),
    ("docs/security.md", "Who can do what", 0): PROSE,
    ("docs/security.md", "TLS", 0): "pages/test_pages.py::test_the_modes_of_tls_are_libpqs",
    ("docs/sqlqueue.md", "Columns of a read", 0): (
        "pages/test_pages.py::test_the_columns_of_a_read_are_the_formats"
    ),
    ("docs/sqlqueue.md", "Columns of a write", 0): (
        "pages/test_pages.py::test_the_columns_of_a_write_are_those_that_are_taken"
    ),
    (
        "docs/sqlqueue.md",
        "Options of a read",
        0,
    ): "test_readme.py::test_the_tables_name_every_option",
    (
        "docs/sqlqueue.md",
        "Options of a write",
        0,
    ): "test_readme.py::test_the_tables_name_every_option",
    ("docs/sqlqueue.md", "Metrics", 0): (
        f"{SPARK}::test_the_progress_on_the_page_has_the_keys_of_a_real_one"
    ),
    ("docs/sqlserver.md", "Connect", 0): (
        "pages/test_pages.py::test_the_parameters_of_a_sql_server_url_are_known"
    ),
    ("docs/sqlserver.md", "Tables as they are found", 0): (
        "test_sqlserver_session.py::test_characters_that_a_varchar_cannot_hold_are_refused"
    ),
    ("docs/sqlserver.md", "Rights", 0): (
        "test_sqlserver.py::test_the_script_gives_the_rights_that_the_wire_lists"
    ),
    ("docs/sqlserver.md", "Tried on Babelfish", 0): TRIED,
    ("docs/transactions.md", "Transaction modes", 0): PROSE,
}
