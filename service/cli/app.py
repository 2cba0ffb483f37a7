"""The command ``lodeq``: its groups, and how errors end it.

Exit codes: 0, nothing is wrong; 1, damage was found, or not all was done, or there was nothing;
2, it was not done, and stderr says why. An interrupt and a closed pipe end as the signals would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, Final

import click

from ... import __version__
from ...errors import LodeqError
from .commands.bench import bench
from .commands.completion import completion
from .commands.doctor import doctor
from .commands.metrics import metrics
from .commands.queues import cancel, dead, ls, pause, peek, purge, redrive, resume, retry
from .commands.serve import serve
from .commands.settle import complete, nack, release
from .commands.snapshots import release_snapshot, snapshot, snapshots
from .commands.stats import stats, top
from .commands.tasks import claim, enqueue, show
from .commands.upkeep import backup, compact, init, repair, restore, verify
from .commands.worker import worker
from .display import OutputError, discard_output, flush
from .maintenance.forget import forget
from .maintenance.ingest import forget_loads, ingest
from .maintenance.migrate_bodies import migrate
from .maintenance.reshard import reshard
from .maintenance.segments import segments
from .maintenance.transfer import export, import_
from .output import shown

__all__ = ["lodeq"]

_OUTPUT_FAILED: Final = 1
_INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141


class _Refused(click.ClickException):
    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {shown(self.message)}", file=file, err=True)


class _Family(click.Group):
    """The group of all commands. An error of ours, or of the system, becomes a single line."""

    def invoke(self, ctx: click.Context) -> Any:
        """See ``click.Group``."""
        try:
            result = self._invoked(ctx)
            flush()
        except BrokenPipeError:
            discard_output()
            ctx.exit(_PIPE_CLOSED)
        except OutputError as exc:  # what was done is not undone by it
            click.echo(
                f"error: stdout cannot be written, so the result is not shown: {exc.strerror}",
                err=True,
            )
            ctx.exit(_OUTPUT_FAILED)
        except UnicodeEncodeError as exc:
            raise _Refused(f"an argument is not UTF-8: {exc.object!r}") from exc
        except (LodeqError, OSError) as exc:
            raise _Refused(str(exc)) from exc
        except click.Abort as exc:  # of a question; its context says how that ended
            click.echo(err=True)
            if isinstance(exc.__context__, EOFError):
                raise _Refused("nothing was done") from exc
            ctx.exit(_INTERRUPTED)
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        return result

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command. Its help leaves out ``Args:``, whose facts its options show to users."""
        cmd.help = (cmd.help or "").partition("Args:\n")[0].rstrip()
        super().add_command(cmd, name)

    def _invoked(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            flush()
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands by section, each in the order in which one needs them."""
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(c.name or "", c.get_short_help_str(formatter.width)) for c in commands]
                )


_SECTIONS: Final[Mapping[str, tuple[click.Command, ...]]] = {
    "Tasks": (enqueue, claim, complete, nack, release, show, cancel, retry),
    "Queues": (ls, stats, top, peek, dead, redrive, purge, pause, resume),
    "The store": (init, serve, worker, verify, repair, backup, restore, compact),
    "The data at large": (
        snapshot,
        snapshots,
        release_snapshot,
        ingest,
        forget_loads,
        forget,
        reshard,
    ),
    "Other systems": (import_, export, segments),
    "This machine": (doctor, bench, metrics, completion),
}


@click.group("lodeq", cls=_Family)
@click.version_option(__version__, prog_name="lodeq")
def lodeq() -> None:
    """A durable task queue: work with a store, and look after it.

    STORE is the folder of a store, or the address of a service that has it open: unix://FILE or
    http://HOST:PORT. Commands that read work beside a running service.
    """


segments.add_command(migrate)
for _commands in _SECTIONS.values():
    for _command in _commands:
        lodeq.add_command(_command)
