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
from ramjet.lab.policies import BASELINES, Factory, Policy, ReplicaFacts
from ramjet.lab.production import POLICIES, Production
from ramjet.lab.routers import DELAY_S, Routers
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
    routers: int = 1
    """Among how many the requests are dealt."""
    delay_s: float | None = DELAY_S
    """How old what they tell one another is when it arrives; None: they tell nothing."""

    @property
    def label(self) -> str:
        """The policy, and by how many it is played."""
        if self.routers == 1:
            return self.policy
        return f"{self.policy}, {self.routers} routers{' apart' if self.delay_s is None else ''}"


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
    factory = policies()[case.policy]
    if case.routers > 1:
        factory = _dealt(factory, case)
    requests = simulate(build(case.workload, case.seed), factory, case.seed, replicas=replicas, profile=profile)
    return figures(
        requests,
        workload=case.workload,
        policy=case.label,
        seed=case.seed,
        replicas=replicas,
        profile=profile.name,
    )


def _dealt(factory: Factory, case: Case) -> Factory:
    """The same policy in several routers."""

    def make(facts: list[ReplicaFacts], seed: int) -> Policy:
        members = [each for _ in range(case.routers) if isinstance(each := factory(facts, seed), Production)]
        if not members:
            raise ValueError(f"policy {case.policy} is played by one router alone; take ramjet, or a kind of it")
        for each in members:
            each.heads = members[0].heads  # messages say so, to whichever router
        return Routers(members, case.delay_s)

    return make


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
