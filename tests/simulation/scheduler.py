"""Simulated threads, of which one runs at a time: who goes on at each switch point is drawn from the seed.

A task runs until it comes to a switch point (`Scheduler.switch`: a lock, a disk operation, a look at the clock) or must
wait (`Scheduler.wait_until`). Tasks are greenlets: all run in one thread of the system, which need not wake another one
at each switch. The order is the same whenever the seed and the code are the same.

At each point where a task might hand over, there is a usual choice: to go on, or, where it cannot, the first task that
can. `Scheduler.choices` has those that differed, by task and number of the point in it: the same choices with the same
code are the same order again, and fewer of them are a simpler one.
"""

import contextlib
from functools import partial

from greenlet import getcurrent, greenlet

from tests.support.faults import Crash


class Killed(Crash):
    """The process ends here. Not an Exception: no handler of the engine survives it."""


class Deadlock(AssertionError):
    """Every task that is left waits for another."""


class Held(AssertionError):
    """A lock is held, and nobody will release it meanwhile."""


class TooManySteps(AssertionError):
    """The tasks do not come to an end."""


class Task:
    """A thread of the simulated process."""

    def __init__(self, name, run):
        self.name = name
        self.run = run
        self.waits_for = None  # cannot go on before this is true
        self.waits_at = ""
        self.points = 0  # where it might have handed over, so far
        self.error = None
        self.done = False


_running = [(None, None)]  # at the end the scheduler of the task that runs, None in a moment, and the task


def current():
    """The scheduler of the task that runs; None outside of tasks, and in a moment."""
    return _running[-1][0]


def current_task():
    """The task that runs; None outside of tasks."""
    return _running[-1][1]


def in_moment():
    """Whether the running task is in a moment."""
    scheduler, task = _running[-1]
    return scheduler is None and task is not None


@contextlib.contextmanager
def moment():
    """A moment of the running task, in which it looks at what others do: nobody else goes on, no time passes, and a
    lock that somebody holds raises Held."""
    _running.append((None, current_task()))
    try:
        yield
    finally:
        _running.pop()


class Scheduler:
    """Runs tasks to their end, or kills them all at a step. One use.

    `kill_at`: the step at which the process ends; None: never. `switching`: how probable a switch is at a point where
    the running task could go on. `given`: the choices to make instead of random ones. `trace` gets a line a step.
    """

    def __init__(self, source, *, kill_at=None, switching=0.3, most_steps=200_000, given=None, trace=None):
        self.steps = 0
        self.choices = {}
        self.killed = False
        self.on_kill = lambda: None
        self._random = source
        self._kill_at = kill_at
        self._switching = switching
        self._most_steps = most_steps
        self._given = given
        self._trace = trace
        self._tasks = []
        self._outside = getcurrent()
        self._next = None
        self._problem = None

    def spawn(self, name, run):
        """A task that will run; also called by a running one."""
        task = Task(name, run)
        task.thread = greenlet(partial(self._work, task), parent=self._outside)
        self._tasks.append(task)
        return task

    def run(self):
        """Until all tasks have ended. Raises Deadlock, TooManySteps, or the first error that a task ended with."""
        self._next = self._chosen(None)
        while self._next is not None:
            _running.append((self, self._next))
            try:
                self._next.thread.switch()
            finally:
                _running.pop()
        errors = [self._problem, *(task.error for task in self._tasks)]
        for error in errors:
            if error is not None and not isinstance(error, Killed):
                raise error

    def switch(self, where):
        """A switch point: another task may go on here. Raises Killed in every task once the process has ended."""
        task = self._step(where)
        task.points += 1
        if self._given is not None:
            switches = (task.name, task.points) in self._given
        else:
            switches = self._random.random() < self._switching
        if switches:
            self._pass_on(task)

    def pause(self, where):
        """Others come first, if there are any that can go on."""
        task = self._step(where)
        task.points += 1
        self._pass_on(task, rests=True)

    def wait_until(self, ready, where):
        """Waits; `ready` is asked whenever a task is to be chosen."""
        task = self._step(where)
        task.waits_at = where
        while not ready():
            task.waits_for = ready
            task.points += 1
            self._pass_on(task)
            task.waits_for = None

    def kill(self):
        """Ends the process now: every task gets Killed at its next switch point."""
        if not self.killed:
            self.killed = True
            self.on_kill()

    def _step(self, where):
        """Counts a step of the running task, which it returns."""
        self._check_killed()
        self.steps += 1
        if self._trace is not None:
            self._trace(f"{self.steps:6} {current_task().name:12} {where}")
        if self.steps > self._most_steps:
            self._problem = TooManySteps(f"after {self.steps} steps: {self._described()}")
        if self.steps == self._kill_at or self._problem is not None:
            self.kill()
        self._check_killed()
        return current_task()

    def _check_killed(self):
        if self.killed:
            raise Killed

    def _work(self, task):
        try:
            self._check_killed()
            task.run()
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            task.error = error
            if not isinstance(error, Killed):
                self.kill()
        task.done = True
        task.points += 1
        self._next = self._chosen(task)

    def _pass_on(self, task, *, rests=False):
        """Lets whoever is chosen go on; returns when the given task is chosen again."""
        self._next = self._chosen(task, rests=rests)
        if self._next is not task:
            self._outside.switch()
        self._check_killed()

    def _chosen(self, task, *, rests=False):
        """Who goes on after the given task, which `rests` or may go on; None when all have ended."""
        left = [other for other in self._tasks if not other.done]
        if not left:
            return None
        able = [other for other in left if self.killed or other.waits_for is None or other.waits_for()]
        if not able:
            self._problem = Deadlock(self._described())
            self.kill()
            able = left
        usual = task if task is not None and task in able and not rests else able[0]
        if rests and usual is task and len(able) > 1:
            usual = able[1]
        if len(able) == 1 or self.killed:
            return usual
        place = ("", 0) if task is None else (task.name, task.points)
        if self._given is not None:
            name = self._given.get(place)
            return next((other for other in able if other.name == name), usual)
        chosen = self._random.choice([other for other in able if other is not task] if rests else able)
        if chosen is not usual:
            self.choices[place] = chosen.name
        return chosen

    def _described(self):
        return "; ".join(f"{task.name} waits at {task.waits_at}" for task in self._tasks if not task.done)
