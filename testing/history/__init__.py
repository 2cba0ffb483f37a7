"""The history checker: a recorder of operations, a model of tasks, and the rules."""
