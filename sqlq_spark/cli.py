"""
The command line `sqlqueue`: what an operator, a DBA or a newcomer does without Spark.

Exit codes: 0; 1 something was found (a lost message, a receipt that cannot be returned); 2 usage or
bad input; 3 the database; 130 Ctrl-C. What went wrong is one sentence on standard error.
Names, headers and bodies come from strangers: they are shown without markup or control characters.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from sqlq_spark import __version__, inspect, install, lines, operate
from sqlq_spark import script as scripts
from sqlq_spark.errors import BadInput, BadOption, MissingPackage, SqlQueueError
from sqlq_spark.headers import ENCLOSED_MESSAGE_TYPES, TIME_SENT
from sqlq_spark.options import NAMED, SinkOptions, SourceOptions
from sqlq_spark.sessions import Session
