"""What this package uses of Spark, on an older version than the one that is installed."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import util
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)

from sqlq_spark import spark_api

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture
def oldest(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load a second copy of the module, as Spark 4.0 does, which lacks these parts of pyspark."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")
    spec = util.spec_from_file_location("spark_api_of_4_0", spark_api.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_a_stand_in_is_built_as_the_class_of_a_newer_spark(oldest: ModuleType) -> None:
    """Each stand-in takes the arguments that the class of the installed Spark takes."""
    stand_ins = {name: getattr(oldest, name) for name in spark_api.__all__}

    assert all(stand_in.__module__ == oldest.__name__ for stand_in in stand_ins.values())
    for name, stand_in in stand_ins.items():
        newer = inspect.signature(getattr(spark_api, name)).parameters
        assert [*inspect.signature(stand_in).parameters] == [*newer], name


def test_a_stand_in_does_what_the_package_asks_of_it(oldest: ModuleType) -> None:
    """The limit of a read is built, and a reader and a writer have the stand-ins as parents."""

    class Reader(DataSourceStreamReader, oldest.SupportsTriggerAvailableNow):  # type: ignore[misc, name-defined]
        pass

    class Writer(oldest.DataSourceStreamArrowWriter):  # type: ignore[misc, name-defined]
        pass

    limit = oldest.ReadMaxRows(100_000)

    assert isinstance(limit, oldest.ReadLimit)
    assert limit.max_rows == 100_000
    assert Reader.__abstractmethods__ == DataSourceStreamReader.__abstractmethods__
    assert issubclass(Writer, DataSourceArrowWriter)
    assert issubclass(Writer, DataSourceStreamWriter)
    assert oldest.DRAINS_AT_ONCE is False


_TASK = """
import gc, weakref
from sqlq_spark.datasource import browse, stream, write
from sqlq_spark.spark_api import spare_modules

class Node:
    pass

spare_modules()
spared = gc.get_freeze_count()
spare_modules()
node = Node()
node.itself = node
seen = weakref.ref(node)
del node
gc.collect()
print(spared > 10_000, gc.get_freeze_count() == spared, seen() is None)
"""


def test_later_collections_leave_modules_out_and_still_find_cycles() -> None:
    """What is alive at the first call is spared, and nothing more at later calls."""
    done = subprocess.run(
        [sys.executable, "-c", _TASK], check=True, stdout=subprocess.PIPE, text=True
    )

    assert done.stdout.split() == ["True"] * 3
