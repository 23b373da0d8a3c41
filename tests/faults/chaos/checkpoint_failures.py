"""Harms to a checkpoint, while no one runs: the end of its logs, or its name, is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from .failures import Harm

if TYPE_CHECKING:
    from .failures import Scene


def commit_removed(scene: Scene) -> str | None:
    """The end of the commit log is lost: one batch, or two."""
    checkpoint = _checkpoint(scene)
    return _remove(scene, _last(checkpoint / "commits", scene.rng.choice([1, 2])))


def offset_removed(scene: Scene) -> str | None:
    """The last batch is lost from both logs."""
    checkpoint = _checkpoint(scene)
    offsets = _last(checkpoint / "offsets", 1)
    commits = [checkpoint / "commits" / path.name for path in offsets]
    return _remove(scene, offsets + [path for path in commits if path.exists()])


def metadata_removed(scene: Scene) -> str | None:
    """The query's id is lost: Spark refuses to start."""
    path = _checkpoint(scene) / "metadata"
    return _remove(scene, [path] if path.exists() else [])


def _checkpoint(scene: Scene) -> Path:
    return Path(scene.rng.choice(scene.driving.orders["streams"])["checkpoint"])


def _last(folder: Path, count: int) -> list[Path]:
    """The files of the highest batches; not the first batch's, for a log has a beginning."""
    batches = sorted((path for path in folder.glob("[0-9]*")), key=lambda path: int(path.name))
    return batches[1:][-count:]


def _remove(scene: Scene, paths: list[Path]) -> str | None:
    """Take files away, each with its checksum."""
    if not paths:
        return None
    every = [each for path in paths for each in (path.with_name(f".{path.name}.crc"), path)]
    shutil.copytree(
        paths[0].parents[1 if paths[0].name.isdigit() else 0],
        scene.driving.log.with_name(f"checkpoint-before-{scene.driving.starts}"),
        ignore=shutil.ignore_patterns("sources", "state"),
    )
    for path in every:
        if path.exists():
            scene.removed[path] = path.read_bytes()
            path.unlink()
    return ", ".join(f"{path.parent.name}/{path.name}" for path in paths)


WHEN_DEAD = {
    "commit removed": Harm(commit_removed, 3),
    "offset removed": Harm(offset_removed, 2),
    "metadata removed": Harm(metadata_removed, 1),
}
