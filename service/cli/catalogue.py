"""The commands by section of the help, each in the order in which one needs them.

A command is imported when it is run, completed or asked for its help: most of them load the
engine. So what the list of all says of each stands here again.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from keyword import iskeyword
from typing import Final

import click

__all__ = ["SECTIONS", "Commands"]

# By name: the module, and the first sentence of its help.
SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Tasks": {
        "enqueue": (
            "commands.tasks",
            "Add a task, and print its id: a call of a FUNCTION of the queue, or a PAYLOAD.",
        ),
        "claim": ("commands.tasks", "Take tasks under leases, and print lease and payload."),
        "complete": ("commands.settle", "Complete the task whose LEASE 'claim' has printed."),
        "nack": ("commands.settle", "Give a task back because it failed."),
        "release": ("commands.settle", "Give a task back without working on it."),
        "show": (
            "commands.tasks",
            "Show all that is known of a task: state, times, payload, result and attempts.",
        ),
        "find": (
            "commands.found",
            "List the tasks for which all that is given holds, or export them.",
        ),
        "act": (
            "commands.found",
            "Act on all tasks for which all that is given holds; without --yes count them.",
        ),
        "history": (
            "commands.history",
            "List tasks that have ended, those that were enqueued last first.",
        ),
        "cancel": ("commands.queues", "Cancel tasks that are ready, delayed, waiting or leased."),
        "retry": (
            "commands.queues",
            "Return dead letters to their queues, with a fresh set of attempts.",
        ),
        "discard": ("commands.queues", "Delete dead letters, one by one."),
        "workflow": ("commands.workflows", "List, show, cancel and redrive workflows."),
    },
    "Functions": {
        "functions": (
            "commands.functions",
            "List the functions that workers have published, with their policies.",
        ),
        "workers": (
            "commands.functions",
            "List live workers: what they serve, when they last beat, what they run now.",
        ),
        "cron": (
            "commands.functions",
            (
                "List cron functions with their next and last ticks; 'cron run STORE NAME' runs "
                "one now."
            ),
        ),
    },
    "Queues": {
        "ls": ("commands.queues", "List queues, or the tasks of one."),
        "stats": (
            "commands.stats",
            "Print counts by queue; of a running service also totals, commits and latencies.",
        ),
        "top": ("commands.stats", "Show queues and rates live, until Ctrl-C."),
        "peek": (
            "commands.queues",
            "List the next tasks that claims would get, in that order, without claiming them.",
        ),
        "dead": ("commands.queues", "List dead letters, oldest first, with their reasons."),
        "redrive": (
            "commands.queues",
            "Return all dead letters of a queue, with a fresh set of attempts.",
        ),
        "cancel-all": (
            "commands.queues",
            "Cancel the tasks of a queue that have not ended: ready, delayed, waiting, leased.",
        ),
        "purge": (
            "commands.queues",
            "Delete the tasks of a queue that are ready, delayed, waiting or dead.",
        ),
        "pause": (
            "commands.pauses",
            "Hand out no tasks of a queue until 'resume', restarts included.",
        ),
        "resume": ("commands.pauses", "Undo 'pause'; waiting claims are served at once."),
        "queue": ("commands.queue_settings", "Settings of a queue that are stored with it."),
    },
    "The store": {
        "init": ("maintenance.upkeep", "Create a store."),
        "serve": (
            "commands.serve",
            (
                "Open the store at PATH (created if need be) and serve it over HTTP, until "
                "SIGINT or SIGTERM."
            ),
        ),
        "cluster": ("commands.cluster", "Look after a cluster: several nodes with the same store."),
        "dashboard": (
            "commands.dashboard",
            (
                "Show the pages of STORE, which a service serves, on a port of 127.0.0.1, until "
                "interrupted."
            ),
        ),
        "worker": (
            "commands.worker",
            "Work for APP, a lodeq.worker.App in MODULE, until SIGTERM or SIGINT.",
        ),
        "verify": (
            "maintenance.upkeep",
            "Check every row against every rule, and read every payload.",
        ),
        "repair": ("maintenance.upkeep", "Make the rows of a store agree again."),
        "backup": (
            "maintenance.upkeep",
            "Make a checkpoint of a store at DEST, which must not exist; see 'restore'.",
        ),
        "restore": (
            "maintenance.upkeep",
            "Create a store from a checkpoint, and verify every file.",
        ),
        "compact": ("maintenance.upkeep", "Do all upkeep of a store, and rewrite its tables."),
    },
    "The data at large": {
        "snapshot": (
            "maintenance.snapshots",
            "Take a copy of every shard for others to read, and print its id.",
        ),
        "snapshots": (
            "maintenance.snapshots",
            "List the snapshots that are whole, oldest first; the last is the latest.",
        ),
        "release-snapshot": (
            "maintenance.snapshots",
            "Remove a snapshot, even one that is to be kept for longer.",
        ),
        "ingest": ("maintenance.ingest", "Take in the loads that wait in the inbox of STORE."),
        "forget-loads": (
            "maintenance.ingest",
            "Forget loads that ended long ago, and staged files that no load came of.",
        ),
        "forget": (
            "maintenance.forget",
            "Remove from STORE the results and dead letters that PLAN names.",
        ),
        "reshard": ("maintenance.reshard", "Change the number of shards of a STORE."),
    },
    "Other systems": {
        "import": ("maintenance.transfer", "Take the tasks of another queue over."),
        "export": (
            "maintenance.transfer",
            "Copy the waiting tasks of a queue, for others to read.",
        ),
        "segments": (
            "maintenance.segments",
            "Look into log files and segments, ours and others', check, save and repair them.",
        ),
    },
    "This machine": {
        "doctor": (
            "maintenance.doctor",
            (
                "Check whether PATH, and this machine, are fit for a store, and what an fsync "
                "costs here."
            ),
        ),
        "bench": (
            "commands.bench",
            (
                "Measure how many full cycles (enqueue, claim, complete) a second PATH's disk "
                "and this CPU do."
            ),
        ),
        "metrics": (
            "commands.metrics",
            "Print the dashboard for Grafana, or the alert rules for Prometheus.",
        ),
        "completion": ("commands.completion", "Print the completion script of a shell."),
    },
}


class Commands(MutableMapping[str, click.Command]):
    """All commands by name, each imported when it is looked up."""

    def __init__(self) -> None:
        self._commands: dict[str, str | click.Command] = {  # or its module, until then
            name: module for one in SECTIONS.values() for name, (module, _) in one.items()
        }

    def __getitem__(self, name: str) -> click.Command:
        found = self._commands[name]
        if isinstance(found, str):
            attribute = name.replace("-", "_") + ("_" if iskeyword(name) else "")
            command: click.Command = getattr(import_module(f".{found}", __package__), attribute)
            _leave_out_args(command)
            found = self._commands[name] = command
        return found

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


def _leave_out_args(command: click.Command) -> None:
    """Cut ``Args:`` from its help, and from those of a group's commands: options show the facts."""
    command.help = (command.help or "").partition("Args:\n")[0].rstrip()
    if isinstance(command, click.Group):
        for one in command.commands.values():
            _leave_out_args(one)
