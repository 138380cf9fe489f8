"""Whole log directories as a stranger may have made them, against every command and a mount.

`mutations` changes a copy of a fixture by a seed, `commands` says how each command is called, `trial` runs some of them
on it as root or as another user and judges: no traceback, an exit code of the contract, no hang, bounded memory,
nothing outside touched or shown, nothing changed by what only reads, no control characters for a terminal.
`python -m tests.hostile --minutes 60` goes on with new seeds; `--seed N` repeats one.
"""
