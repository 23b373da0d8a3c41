"""Faults drawn by chance. The number in an id is the place among those of its package."""

from . import Fault

DRAWN = [
    Fault(
        id="errors-8",
        file="receive/task.py",
        place="accept_lost_files",
        old='files=f"{number}" if number >= received else',
        new='files=f"{number}" if not (number >= received) else',
        tests=["conformance/test_receipts.py::test_a_lost_first_entry_is_an_error_with_the_files"],
    ),
    Fault(
        id="wire-2",
        file="wire/flat_json.py",
        place="FlatObjects.__init__",
        old="is_quote[escapes[letters == QUOTE] + 1] = False",
        new="is_quote[escapes[letters == QUOTE] - 1] = False",
        tests=["test_flat_json.py::test_objects_of_texts_are_read_without_parsing_a_row"],
    ),
    Fault(
        id="wire-3",
        file="wire/sqlserver.py",
        place="SQLServerNames.print_address",
        old='bare = "@" not in address.table and not',
        new='bare = "@" not in address.table or not',
        tests=["test_address.py::test_an_address_of_sqlserver_for_a_user_and_in_a_message"],
    ),
    Fault(
        id="options-1",
        file="options/sink.py",
        place="_parse_undeliverable",
        old="return None if text.lower() == FAIL else",
        new="return None if not (text.lower() == FAIL) else",
        tests=["conformance/test_destinations.py::test_fail_stops_the_batch_as_before"],
    ),
    Fault(
        id="database-1",
        file="database/__init__.py",
        place="endpoint_zone",
        old="    if zone is None:",
        new="    if zone is not None:",
        tests=["conformance/test_delayed.py::test_what_endpoints_store_we_move_at_the_right_time"],
    ),
    Fault(
        id="database-7",
        file="options/names.py",
        place="other_password_variables",
        old="{*PASSWORD_VARIABLES} - {names.",
        new="{*PASSWORD_VARIABLES} & {names.",
        tests=["test_options.py::test_what_is_of_another_database_is_known"],
    ),
    Fault(
        id="database-9",
        file="database/sqlserver/errors.py",
        place="read_error",
        old="number = int(first[1]) if",
        new="number = int(first[2]) if",
        tests=["tds/test_drivers.py::test_every_error_of_the_server_is_classified"],
    ),
    Fault(
        id="database-12",
        file="options/connection.py",
        place="_fits",
        old='pattern.replace("[", "[[]")',
        new='pattern.replace("*", "[*]")',
        tests=["test_options.py::test_a_pattern_fits_part_by_part"],
    ),
    Fault(
        id="database-13",
        file="database/sqlserver/url.py",
        place="parameters",
        old='for part in query.split("&") if query else ():',
        new='for part in query.split("&") if not (query) else ():',
        tests=["test_sqlserver_url.py::test_a_url_is_read"],
    ),
    Fault(
        id="receive-2",
        file="receive/pace.py",
        place="_around",
        old="return [(turn + place) % queues for place in range(queues)]",
        new="return [(turn - place) % queues for place in range(queues)]",
        tests=["test_pace.py::test_a_batch_takes_what_waits_within_its_limits"],
    ),
    Fault(
        id="receive-3",
        file="receive/poison.py",
        place="divert_large",
        old="""    if not large:
        return LargeDiverted(diverted=0, expired=0)""",
        new="""    if large:
        return LargeDiverted(diverted=0, expired=0)""",
        tests=[
            "conformance/test_receive.py::test_large_messages_go_to_the_error_queue_and_the_others_are_received"
        ],
    ),
    Fault(
        id="receive-4",
        file="receive/driver.py",
        place="Memory.wait",
        old="        if self.waiting_since is None:\n",
        new="        if self.waiting_since is not None:\n",
        tests=[
            "conformance/test_peek_loop.py::test_too_few_in_all_queues_are_waited_for_but_not_too_long"
        ],
    ),
    Fault(
        id="receive-8",
        file="receive/forward.py",
        place="Forwarding.send",
        old="            if is_refused and self.task.options.error_address is None:",
        new="            if is_refused and self.task.options.error_address is not None:",
        tests=[
            (
                "hostile/test_destinations.py"
                "::test_a_trap_stops_a_stream_without_an_error_queue_with_a_clear_error"
            )
        ],
    ),
    Fault(
        id="send-1",
        file="send/chunk.py",
        place="split_delayed",
        old="if waiting is None:",
        new="if waiting is not None:",
        tests=["send/test_refused.py::test_what_the_rows_of_a_chunk_name"],
    ),
    Fault(
        id="send-2",
        file="send/dispatch.py",
        place="dispatch.send",
        old="if options.settles:",
        new="if not options.settles:",
        tests=[
            "conformance/test_send.py::test_the_receipts_of_a_micro_batch_are_settled_by_the_commit_that_sends"
        ],
    ),
    Fault(
        id="send-3",
        file="send/frame.py",
        place="Frame.reply_addresses",
        old="if texts.null_count == self.rows:",
        new="if texts.null_count != self.rows:",
        tests=["send/test_messages.py::test_a_reply_address_is_written_as_endpoints_read_it"],
    ),
    Fault(
        id="send-4",
        file="send/own_headers.py",
        place="OwnMaps.without",
        old="keep[places] = ~stated[self.parents[places]]",
        new="keep[places] = stated[self.parents[places]]",
        tests=[
            "send/test_messages.py::test_a_column_wins_over_the_header_and_the_header_over_the_default"
        ],
    ),
    Fault(
        id="datasource-1",
        file="datasource/__init__.py",
        place="DefaultSource.writer",
        old="        look_ahead(options)\n",
        new="",
        tests=["spark/test_write.py::test_a_missing_destination_is_found_before_a_task_runs"],
    ),
    Fault(
        id="datasource-4",
        file="spark_api.py",
        place="current_batch",
        old="number=None if number is None else int(number),",
        new="number=None if not (number is None) else int(number),",
        tests=["spark/test_write.py::test_a_stream_receives_and_publishes_in_one_commit"],
    ),
    Fault(
        id="functions-2",
        file="functions/expressions.py",
        place="table_of",
        old="F.regexp_extract(address, names.table_in_address, 1)",
        new="F.regexp_extract(address, names.table_in_address, 2)",
        tests=["spark/test_functions.py::test_the_endpoint_of_a_failure_is_named_as_its_queue"],
    ),
    Fault(
        id="admin-3",
        file="admin/return_to_source.py",
        place="Choice._in_time",
        old="if self.since is None and self.until is None:",
        new="if self.since is not None and self.until is None:",
        tests=["conformance/test_watch.py::test_a_choice_takes_what_fits_all_of_it"],
    ),
    Fault(
        id="admin-4",
        file="admin/stats.py",
        place="find_highest",
        old="return depth.last, sample.sent",
        new="return depth.last, None",
        tests=["conformance/test_watch.py::test_a_look_finds_since_when_the_lowest_waits"],
    ),
    Fault(
        id="admin-5",
        file="admin/return_to_source.py",
        place="cut_batches",
        old="if sum(map(len, waiting.values())) == most:",
        new="if sum(map(len, waiting.values())) == most + 1:",
        tests=["conformance/test_watch.py::test_batches_are_cut_by_number_and_weight"],
    ),
    Fault(
        id="admin-7",
        file="admin/stats.py",
        place="flow",
        old="if before is None or before.at is None or now.at is None:",
        new="if before is not None or now.at is None:",
        tests=["conformance/test_watch.py::test_what_came_and_went_between_two_looks_is_counted"],
    ),
    Fault(
        id="cli-1",
        file="admin/stats.py",
        place="QUEUE_COLUMNS",
        old='Column("due", "delayed.due"),',
        new='Column("due", "delayed.messages"),',
        tests=["cli/test_queues.py::test_all_queues_are_found_and_their_kind_is_shown"],
    ),
    Fault(
        id="cli-2",
        file="cli/messages.py",
        place="retry_command",
        old="""    if plan.messages:
        queues""",
        new="""    if not (plan.messages):
        queues""",
        tests=["cli/test_messages.py::test_failed_messages_return_to_the_queues_where_they_failed"],
    ),
    Fault(
        id="cli-3",
        file="cli/messages.py",
        place="receipts_show_command",
        old="""            if shared.as_json:
                screen.print_json(shown)""",
        new="""            if not shared.as_json:
                screen.print_json(shown)""",
        tests=["cli/test_messages.py::test_show_finds_a_message_by_either_of_its_ids"],
    ),
    Fault(
        id="cli-4",
        file="cli/messages.py",
        place="send_command",
        old="fits = file is None or source is None",
        new="fits = file is not None or source is None",
        tests=[
            "cli/test_every_command.py::test_what_fails_ends_by_its_exit_code_with_one_sentence"
        ],
    ),
    Fault(
        id="jobs-2",
        file="jobs/settings.py",
        place="_read_pairs",
        old='given = dict(each.split("=", 1) for each in given)',
        new='given = dict([*each.split("=", 1), "1"][:2] for each in given)',
        tests=["test_job.py::test_all_that_is_wrong_is_listed_at_once"],
    ),
    Fault(
        id="jobs-4",
        file="jobs/settings.py",
        place="load_settings",
        old="""        except BadSettings as error:
            wrong.append(str(error))""",
        new="""        except BadSettings as error:
            pass""",
        tests=["test_job.py::test_all_that_is_wrong_is_listed_at_once"],
    ),
    Fault(
        id="jobs-6",
        file="jobs/runner.py",
        place="Job.main",
        old='return FOUND_PROBLEMS if totals.get("found") else GOOD',
        new='return FOUND_PROBLEMS if not (totals.get("found")) else GOOD',
        tests=["test_job.py::test_the_totals_are_the_last_line"],
    ),
    Fault(
        id="jobs-8",
        file="jobs/bodies.py",
        place="parse",
        old="for each in names.values()}) < len(columns):",
        new="for each in names.values()}) > len(columns):",
        tests=["spark/test_jobs.py::test_a_schema_that_cannot_be_used_is_refused_at_the_start"],
    ),
    Fault(
        id="jobs-1",
        file="jobs/streams.py",
        place="spread",
        old="if given.max_concurrency is not None or given.cores is not None:",
        new="if not (given.max_concurrency is not None or given.cores is not None):",
        tests=["spark/test_jobs.py::test_a_job_receives_with_the_clusters_tasks"],
    ),
    Fault(
        id="demo-9",
        file="testing/embedded.py",
        place="_programs",
        old="if found is None or found.origin is None:",
        new="if not (found is None or found.origin is None):",
        tests=["test_demo.py::test_without_the_wheel_the_error_names_the_extra"],
    ),
    Fault(
        id="testing-5",
        file="testing/queues.py",
        place="Queue.send",
        old="            connection.load(self._address, rows)",
        new="            pass",
        tests=["test_testing.py::test_what_was_sent_waits_in_its_order"],
    ),
    Fault(
        id="postgresql-1",
        file="database/postgresql/delayed.sql",
        place="next_due",
        old="min(due)",
        new="max(due)",
        tests=["conformance/test_delayed.py::test_what_is_due_is_moved_in_the_order_of_due_times"],
    ),
    Fault(
        id="postgresql-6",
        file="database/postgresql/browse.sql",
        place="browse_headers",
        old="{page}",
        new="FROM {queue} AS q ORDER BY q.seq DESC LIMIT :messages::bigint",
        tests=["conformance/test_watch.py::test_failures_are_grouped_by_exception"],
    ),
    Fault(
        id="postgresql-9",
        file="database/postgresql/staging.sql",
        place="delete_old_sinks",
        old="AND dispatched <",
        new="OR dispatched <",
        tests=["conformance/test_send.py::test_an_abort_leaves_no_chunk"],
    ),
    Fault(
        id="sqlserver-2",
        file="database/sqlserver/receive.sql",
        place="receive",
        old="       AND NOT {too_large}",
        new="       OR NOT {too_large}",
        tests=["test_sqlserver.py::test_the_riskiest_statements_are_as_they_were_reviewed"],
    ),
    Fault(
        id="sqlserver-4",
        file="database/sqlserver/peek.sql",
        place="sample",
        old="""                  FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                 WHERE""",
        new="""                  FROM {queue} WITH (ROWLOCK, READCOMMITTEDLOCK)
                 WHERE""",
        tests=[
            "lock_model/test_shapes.py::test_a_statement_without_a_path_only_reads_and_skips_rows_of_queues"
        ],
    ),
    Fault(
        id="sqlserver-9",
        file="database/sqlserver/receive.sql",
        place="receive",
        old="(FORCESEEK, UPDLOCK, READPAST,",
        new="(FORCESEEK, READPAST,",
        tests=[
            "lock_model/test_shapes.py::test_the_tables_and_hints_of_a_path_are_those_of_its_statement"
        ],
    ),
]
