"""Which runs there are, and how they are done: one case after another, or in several processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from ramjet.lab.loop import simulate
from ramjet.lab.measure import Figures, figures
from ramjet.lab.misled import MISLED
from ramjet.lab.policies import BASELINES, Factory
from ramjet.lab.production import POLICIES
from ramjet.lab.workloads import REPLICAS, WORKLOADS, build


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run, by names: it travels to another process."""

    workload: str
    policy: str
    seed: int
    replicas: int | None = None
    """None: as many as the workload is meant for."""
    profile: str | None = None
    """None: those it is meant for."""


def policies() -> dict[str, Factory]:
    """Every policy by name: the product's own first, then the same told wrong facts, then the baselines."""
    return {**POLICIES, **MISLED, **BASELINES}


def run(case: Case) -> Figures:
    """Do one run; equal cases give equal figures.

    Raises:
        ValueError: a prompt is longer than a replica of the profile can take.
    """
    recipe = WORKLOADS[case.workload]
    profile = recipe.profile if case.profile is None else REPLICAS[case.profile]
    replicas = case.replicas or recipe.replicas
    requests = simulate(
        build(case.workload, case.seed), policies()[case.policy], case.seed, replicas=replicas, profile=profile
    )
    return figures(
        requests,
        workload=case.workload,
        policy=case.policy,
        seed=case.seed,
        replicas=replicas,
        profile=profile.name,
    )


def run_all(cases: Sequence[Case], *, processes: int) -> Iterator[tuple[int, Figures]]:
    """Do all runs, in any order; gives the place of each in `cases` and its figures, as they come.

    Raises:
        ValueError: as `run`; the others are given up.
    """
    if processes == 1 or len(cases) == 1:
        yield from ((place, run(case)) for place, case in enumerate(cases))
        return
    # New interpreters: a progress bar has a thread, and a process with threads should not be forked.
    pool = ProcessPoolExecutor(min(processes, len(cases)), mp_context=get_context("spawn"), initializer=_quiet)
    try:
        places = {pool.submit(run, case): place for place, case in enumerate(cases)}
        for done in as_completed(places):
            yield places[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _quiet() -> None:
    """Ctrl-C ends a worker without a word; the parent says what is to be said."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
