"""The command ``lodeq``: its groups, and how errors end it.

Exit codes: 0, nothing is wrong; 1, damage was found, or not all was done, or there was nothing;
2, it was not done, and stderr says why. An interrupt and a closed pipe end as the signals would.
"""

from __future__ import annotations

from typing import IO, Any, Final

import click

from ... import __version__
from ...errors import AccessDeniedError, LodeqError
from ..shared.build import BUILD
from ..shared.failure_text import failure_text
from .catalogue import SECTIONS, Commands
from .output import OutputError, discard_output, flush, shown

__all__ = ["lodeq"]

_OUTPUT_FAILED: Final = 1
_INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141


class _Refused(click.ClickException):
    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {shown(self.message)}", file=file, err=True)


def _say_not_shown(exc: OSError) -> None:
    click.echo(
        f"error: stdout cannot be written, so the result is not shown: {exc.strerror}", err=True
    )


class _Family(click.Group):
    """The group of all commands. An error of ours, or of the system, becomes a single line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """See ``click.Group``. The help of the group itself is printed before ``invoke``."""
        try:
            return super().main(*args, **kwargs)
        except OutputError as exc:
            _say_not_shown(exc)
            raise SystemExit(_OUTPUT_FAILED) from exc

    def invoke(self, ctx: click.Context) -> Any:
        """See ``click.Group``."""
        try:
            result = self._invoked(ctx)
            flush()
        except BrokenPipeError:
            discard_output()
            ctx.exit(_PIPE_CLOSED)
        except OutputError as exc:  # what was done is not undone by it
            _say_not_shown(exc)
            ctx.exit(_OUTPUT_FAILED)
        except UnicodeEncodeError as exc:
            raise _Refused(f"an argument is not UTF-8: {exc.object!r}") from exc
        except AccessDeniedError as exc:
            cure = "; give a token that has it in LODEQ_TOKEN" if exc.scope else ""
            raise _Refused(f"{exc}{cure}") from exc
        except LodeqError as exc:
            raise _Refused(failure_text(exc)) from exc
        except OSError as exc:
            raise _Refused(str(exc)) from exc
        except click.Abort as exc:  # of a question; its context says how that ended
            click.echo(err=True)
            if isinstance(exc.__context__, EOFError):
                raise _Refused("nothing was done") from exc
            ctx.exit(_INTERRUPTED)
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        return result

    def _invoked(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            flush()
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands by section, each in the order in which one needs them."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name, click.Command(name, help=told).get_short_help_str(formatter.width))
                        for name, (_, told) in commands.items()
                    ]
                )


@click.group("lodeq", cls=_Family, commands=Commands())
@click.version_option(f"{__version__} ({BUILD})", prog_name="lodeq")
def lodeq() -> None:
    """A durable task queue: work with a store, and look after it.

    STORE is the folder of a store, the address of a service that has it open (unix://FILE or
    http://HOST:PORT), or a cluster, by some of its nodes (lodeq://HOST:PORT,HOST:PORT). Commands
    that read work beside a running service.
    """
