"""
The errors of this package, by what they are about.

::

    SqlQueueError
    ├── BadInput             inputs: options, addresses, DataFrames; nothing was changed
    │   ├── BadOption · UnknownOption · MisplacedOption · OptionOfOtherSource
    │   ├── MissingOption · OptionsOfTable
    │   ├── BadAddress
    │   ├── BadFrame         a DataFrame's columns do not fit
    │   └── BadMessage       one row of a DataFrame does not fit
    ├── MissingPackage · MissingDelta · MissingDriver · UnsupportedVersion    installation
    ├── DatabaseFailure      the server rejected a statement, or did not answer
    │   ├── server           NotReachable · LoginRefused (and LoginUnclear, CertificateRefused)
    │   │                    CredentialsFailed · ServerNotVerified · DatabaseNotFound
    │   │                    ConnectionLost (and ReadOnly) · Deadlock · Cancelled · RightMissing
    │   │                    TimedOut (and LockTimedOut) · TimeZoneNotFound · ReceiptExists
    │   │                    ServerTooOld · DatabaseTooOld · StatementPooling
    │   │                    StatementFailed (and StatementRefused, ServerShort, LogFull)
    │   ├── queues           QueueNotFound · SchemaNotFound · NotAQueue
    │   │                    QueueNotWritable · QueueElsewhere · QueueUnquoted · MessageChanged
    │   │                    DestinationRefused (and DestinationOfOther)
    │   │                    DestinationLocked · DestinationChanged · MessageTooLarge · MoveRefused
    │   │                    DelayedQueueNotFound · SubscriptionsNotFound · SubscriptionsRefused
    │   │                    SubscriberUnreachable (and SubscriberLost)
    │   └── state            StateNotInstalled · StateTooOld · StateTooNew · StateOfOther
    │                        InstallBlocked
    ├── PayloadRefused · ReceiptSettled · ReceiptRefused · ReceiptMoveRefused  state
    ├── CheckpointFailure    checkpoint: it does not match the stream's row
    │   ├── CheckpointRolledBack · DatabaseRolledBack · ReceiptsMissing
    │   ├── StreamNotFound · StreamOfOtherQueue · StreamTakenOver
    │   └── BadOffset · BadPlan · StaleTask · CheckpointIncomplete
    └── ChunksMissing · NothingToSettle (and BatchClosed) · DispatchLogAhead    dispatch

Every message says what failed, where, what was found, and how to fix it.
The arguments stay in `args`, so that an error survives pickling between Spark's processes.
No argument may hold a password: callers redact the addresses of servers first.
"""

from __future__ import annotations

from sqlq_spark.errors.checkpoint import (
    BadOffset,
    BadPlan,
    CheckpointFailure,
    CheckpointIncomplete,
    CheckpointRolledBack,
    DatabaseRolledBack,
    ReceiptsMissing,
    StaleTask,
    StreamNotFound,
    StreamOfOtherQueue,
    StreamTakenOver,
)
from sqlq_spark.errors.dispatch import (
    BatchClosed,
    ChunksMissing,
    DispatchLogAhead,
    NothingToSettle,
)
from sqlq_spark.errors.inputs import (
    BadAddress,
    BadFrame,
    BadInput,
    BadMessage,
    BadOption,
    MisplacedOption,
    MissingOption,
    OptionOfOtherSource,
    OptionsOfTable,
    UnknownOption,
)
from sqlq_spark.errors.installation import (
    MissingDelta,
    MissingDriver,
    MissingPackage,
    UnsupportedVersion,
)
from sqlq_spark.errors.queues import (
    DelayedQueueNotFound,
    DestinationChanged,
    DestinationLocked,
    DestinationOfOther,
    DestinationRefused,
    MessageChanged,
    MessageTooLarge,
    MoveRefused,
    NotAQueue,
    QueueElsewhere,
    QueueNotFound,
    QueueNotWritable,
    QueueUnquoted,
    SchemaNotFound,
    SubscriberLost,
    SubscriberUnreachable,
    SubscriptionsNotFound,
    SubscriptionsRefused,
)
from sqlq_spark.errors.root import (
    DatabaseFailure,
    SqlQueueError,
)
from sqlq_spark.errors.server import (
    Cancelled,
    CertificateRefused,
    ConnectionLost,
    CredentialsFailed,
    DatabaseNotFound,
    DatabaseTooOld,
    Deadlock,
    LockTimedOut,
    LogFull,
    LoginRefused,
    LoginUnclear,
    NotReachable,
    ReadOnly,
    ReceiptExists,
    RightMissing,
    ServerNotVerified,
    ServerShort,
    ServerTooOld,
    StatementFailed,
    StatementPooling,
    StatementRefused,
    StateRightMissing,
    TimedOut,
    TimeZoneNotFound,
)
from sqlq_spark.errors.state import (
    InstallBlocked,
    PayloadRefused,
    ReceiptMoveRefused,
    ReceiptRefused,
    ReceiptSettled,
    StateNotInstalled,
    StateOfOther,
    StateTooNew,
    StateTooOld,
)

__all__ = [
    "BadAddress",
    "BadFrame",
    "BadInput",
    "BadMessage",
    "BadOffset",
    "BadOption",
    "BadPlan",
    "BatchClosed",
    "Cancelled",
    "CertificateRefused",
    "CheckpointFailure",
    "CheckpointIncomplete",
    "CheckpointRolledBack",
    "ChunksMissing",
    "ConnectionLost",
    "CredentialsFailed",
    "DatabaseFailure",
    "DatabaseNotFound",
    "DatabaseRolledBack",
    "DatabaseTooOld",
    "Deadlock",
    "DelayedQueueNotFound",
    "DestinationChanged",
    "DestinationLocked",
    "DestinationOfOther",
    "DestinationRefused",
    "DispatchLogAhead",
    "InstallBlocked",
    "LockTimedOut",
    "LogFull",
    "LoginRefused",
    "LoginUnclear",
    "MessageChanged",
    "MessageTooLarge",
    "MisplacedOption",
    "MissingDelta",
    "MissingDriver",
    "MissingOption",
    "MissingPackage",
    "MoveRefused",
    "NotAQueue",
    "NotReachable",
    "NothingToSettle",
    "OptionOfOtherSource",
    "OptionsOfTable",
    "PayloadRefused",
    "QueueElsewhere",
    "QueueNotFound",
    "QueueNotWritable",
    "QueueUnquoted",
    "ReadOnly",
    "ReceiptExists",
    "ReceiptMoveRefused",
    "ReceiptRefused",
    "ReceiptSettled",
    "ReceiptsMissing",
    "RightMissing",
    "SchemaNotFound",
    "ServerNotVerified",
    "ServerShort",
    "ServerTooOld",
    "SqlQueueError",
    "StaleTask",
    "StateNotInstalled",
    "StateOfOther",
    "StateRightMissing",
    "StateTooNew",
    "StateTooOld",
    "StatementFailed",
    "StatementPooling",
    "StatementRefused",
    "StreamNotFound",
    "StreamOfOtherQueue",
    "StreamTakenOver",
    "SubscriberLost",
    "SubscriberUnreachable",
    "SubscriptionsNotFound",
    "SubscriptionsRefused",
    "TimeZoneNotFound",
    "TimedOut",
    "UnknownOption",
    "UnsupportedVersion",
]

# Tracebacks, headers and pickles name the classes as users import them.
for _name in __all__:
    globals()[_name].__module__ = __name__
