"""Settings that a span is played under: the replicas there are, what Ramjet is told of them, and how it decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ramjet.build import fleet_of, policy_of
from ramjet.config import ConfigError, ReplicaSettings, Settings, load
from ramjet.core.cache import HostTier, SlotSpec, Snapshots
from ramjet.core.fleet import Fleet, Replica, whole_name
from ramjet.core.policies import Policy
from ramjet.core.pools import Pools
from ramjet.lab.policies import BASELINES
from ramjet.lab.workloads import paged
from ramjet.plan.speed import Speed
from ramjet.sim.profile import ATTENTION, GLM, SLOTS_EACH, Profile, Timing

ENDLESS_TOKENS = 1 << 30
"""A token pool of which nobody says how large it is."""
FACTS = ("tokens", "slots", "per_path", "chunk_tokens", "running", "host_tier", "host_tokens", "host_slots")
"""What can be said of a replica, by the names of `--try`."""
RAMJET = "ramjet"
_ROUTING = ("routing.", "beliefs.")


class SettingsError(ValueError):
    """Settings that cannot be used; the message names the place, the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One replica; None is unknown."""

    name: str
    url: str
    tokens: int | None = None
    """Its token pool; unknown: it never fills."""
    slots: int | None = None
    """Its snapshot pool; unknown: its model has none."""
    per_path: int | None = None
    """Most snapshots of one conversation; None: no cap."""
    chunk_tokens: int | None = None
    running: int | None = None
    """Requests that it lets run at a time; None: what the profile says, and with slots a fifth of them."""
    host_tier: bool = False
    host_tokens: int | None = None
    host_slots: int | None = None
    told: frozenset[str] = frozenset(FACTS)
    """Facts of which Ramjet is told. It may not know what is true."""

    def pools(self) -> Pools:
        """What Ramjet is told."""
        known = {name: getattr(self, name) for name in ("tokens", "slots", "chunk_tokens") if name in self.told}
        per_path = self.per_path if {"slots", "per_path"} & self.told else None
        return Pools(**known, per_path=per_path, host=self.host_tier if "host_tier" in self.told else None)

    def profile(self, base: Profile | None, timing: Timing, page_tokens: int | None) -> Profile:
        """The simulated replica.

        Args:
            base: whose habits it has; None: SGLang's, with snapshots where there are slots.
            timing: how fast it is.
            page_tokens: what its cache works in; None: what the base does.

        Raises:
            SettingsError: there is no such replica.
        """
        found = base or (ATTENTION if self.slots is None else GLM)
        cache, running = found.cache, found.max_running
        if isinstance(cache, SlotSpec):
            unusable = [name for name in ("per_path", "host_tokens", "host_slots") if getattr(self, name) is not None]
            if unusable or self.host_tier:
                raise SettingsError(f"profile {found.name} has neither snapshots nor a host tier: leave out {unusable}")
            count = cache.slots if self.slots is None else self.slots
            each = cache.slot_tokens if self.tokens is None else self.tokens // count
            cache, running = replace(cache, slots=count, slot_tokens=each), count
        else:
            states = cache.snapshots
            if self.slots is not None:
                known = states if states is not None and states.slots is not None else Snapshots()
                states = replace(known, slots=self.slots, per_path=self.per_path)
                running = max(1, self.slots // SLOTS_EACH)
            elif self.per_path is not None:
                raise SettingsError("per_path caps snapshots, and nothing says how many there are: give slots too")
            tokens = self.tokens
            if tokens is None:
                tokens = ENDLESS_TOKENS if base is None else cache.pool_tokens
            cache = replace(cache, pool_tokens=tokens, snapshots=states, host=self._host(found, states))
        cache = replace(cache, chunk_tokens=self.chunk_tokens or cache.chunk_tokens)
        made = replace(found, cache=cache, max_running=self.running or running, timing=timing)
        return made if page_tokens is None else paged(made)

    def _host(self, base: Profile, states: Snapshots | None) -> HostTier | None:
        if not self.host_tier:
            return None
        known = base.default_host or HostTier(tokens=0)
        tokens = known.tokens if self.host_tokens is None else self.host_tokens
        slots = known.slots if self.host_slots is None else self.host_slots
        return replace(known, tokens=tokens, slots=None if states is None else slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that a replay depends on beside the span."""

    name: str
    replicas: tuple[Facts, ...]
    policy: Policy
    speed: Speed = field(default_factory=Speed)
    base: Profile | None = None
    rival: str | None = None
    """Another router's rule that decides, of the laboratory's; None: Ramjet does."""

    def fleet(self, play: int = 0) -> Fleet:
        """The replicas as Ramjet knows them. Ties between them, which its hashes break, fall otherwise in other plays."""
        fleet = Fleet()
        for each in self.replicas:
            fleet.add(Replica(each.name, f"{each.url}/{play}" if play else each.url, configured=each.pools()))
        return fleet

    def profiles(self, page_tokens: int | None = None) -> list[Profile]:
        """The replicas as they are.

        Raises:
            SettingsError: there is no such replica.
        """
        return [each.profile(self.base, self.speed.of(each.name), page_tokens) for each in self.replicas]


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Makes setups: what held then, and the same with changes."""

    names: Sequence[str]
    """Replicas that the journal names."""
    config: Path | None = None
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Facts that the journal has, by replica."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Facts by flag, of all replicas alike."""
    routing: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the configuration, dotted, and their values."""
    speed: Speed = field(default_factory=Speed)
    base: Profile | None = None

    def make(self, name: str, changes: Mapping[str, Any] | None = None) -> Setup:
        """The setup that held then, changed.

        Args:
            name: what it is called.
            changes: facts, `replicas`, and dotted keys of the configuration.

        Raises:
            SettingsError: a name or a value that there is not.
        """
        changes = changes or {}
        for key in changes:
            if key not in {*FACTS, "replicas", "policy"} and not key.startswith(_ROUTING):
                raise SettingsError(
                    f"{key}: no such setting; there are replicas, {', '.join(FACTS)}, policy, and the keys of the "
                    "configuration that begin with routing. or beliefs."
                )
        rival = changes.get("policy", RAMJET)
        if rival != RAMJET and rival not in BASELINES:
            raise SettingsError(f"policy: no {rival!r}; there are {RAMJET}, {', '.join(BASELINES)}")
        settings = self._settings({key: value for key, value in changes.items() if key.startswith(_ROUTING)})
        facts = self._facts(settings, {key: value for key, value in changes.items() if key in FACTS})
        count = changes.get("replicas", self.given.get("replicas", len(facts)))
        if not isinstance(count, int) or count < 1:
            raise SettingsError(f"replicas: {count} given: how many there are, at least 1")
        setup = Setup(
            name=name,
            replicas=tuple(_as_many(facts, count)),
            policy=policy_of(settings),
            speed=self.speed,
            base=self.base,
            rival=None if rival == RAMJET else rival,
        )
        setup.profiles()
        return setup

    def _settings(self, changes: Mapping[str, Any]) -> Settings:
        overrides: dict[str, Any] = {}
        for key, value in {**self.routing, **changes}.items():
            *sections, last = key.split(".")
            place = overrides
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
        if self.config is None:
            overrides["replicas"] = [{"name": name, "url": f"http://{name}"} for name in self.names]
        try:
            return load(self.config, overrides)
        except ConfigError as error:
            raise SettingsError(str(error)) from None

    def _facts(self, settings: Settings, changes: Mapping[str, Any]) -> list[Facts]:
        found = []
        configured = {each.name: each for each in settings.replicas}
        for name in self.names or [each.name for each in fleet_of(settings)] or ["replica-1"]:
            each = configured.get(name, configured.get(whole_name(name)))
            file = {} if each is None else _facts_of(each)
            known = self.known.get(name, file)
            # Where nobody says what Ramjet was told, it was told what is true.
            told = frozenset(known) if known or self.known else frozenset(FACTS)
            flags = {key: value for key, value in self.given.items() if key in FACTS}
            values = {**known, **file, **flags, **changes}
            url = f"http://{name}"
            if each is not None:
                rank = name.removeprefix(each.name).removeprefix(".")
                url = f"{each.url}#{rank}" if rank else each.url
            found.append(Facts(name=name, url=url, told=told, **_checked(values)))
        return found


def _facts_of(each: ReplicaSettings) -> dict[str, Any]:
    """What a configuration says of a replica."""
    said = {
        "tokens": each.pool_tokens,
        "slots": each.snapshot_slots,
        "per_path": each.snapshots_per_path,
        "chunk_tokens": each.chunk_tokens,
    }
    return {name: value for name, value in said.items() if value is not None}


def _checked(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for key, value in values.items():
        if key == "host_tier":
            if not isinstance(value, bool):
                raise SettingsError(f"host_tier: {value} given: on or off")
        elif value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise SettingsError(f"{key}: {value} given: a whole number from 1 on, or null for none")
    return values


def _as_many(facts: Sequence[Facts], count: int) -> Iterable[Facts]:
    """The first so many, and more like the first where there are not enough."""
    yield from facts[:count]
    for number in range(len(facts) + 1, count + 1):
        yield replace(facts[0], name=f"more-{number}", url=f"http://more-{number}")


def parse(text: str) -> dict[str, Any]:
    """`slots=56,routing.admission.mode=off` as names and values; values are as in the configuration file.

    Raises:
        SettingsError: it is not of that form.
    """
    found: dict[str, Any] = {}
    for part in _parts(text):
        key, equals, value = part.partition("=")
        if not (equals and key.strip() and value.strip()):
            raise SettingsError(f"{part}: write it as KEY=VALUE, for example slots=56 or routing.admission.mode=off")
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError:
            raise SettingsError(f"{part}: {value} is no value that a configuration file could have") from None
        # YAML 1.1 takes off for false, and the mode of admission is a word.
        is_word = key.strip() == "routing.admission.mode"
        found[key.strip()] = value.strip() if is_word else read
    return found


def _parts(text: str) -> list[str]:
    """Cut at commas, but not inside of a list."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def usual(setup: Setup) -> list[str]:
    """What is worth trying where nobody says: a cap for hybrid models, one replica more, each rule the other way."""
    facts, policy = setup.replicas, setup.policy
    tries = []
    if any(each.slots is not None and (each.per_path is None or each.per_path > 2) for each in facts):
        tries.append("per_path=2")
    if any(each.slots is not None and not each.host_tier for each in facts):
        tries.append("host_tier=on")
    tries.append(f"replicas={len(facts) + 1}")
    if len(facts) > 1:
        spreads = any(rule.name == "spread_long" for rule in policy.rules)
        tries.append(f"routing.spread_long.enabled={str(not spreads).lower()}")
    tries.append("routing.admission.mode=" + ("off" if policy.terms.mode == "enforce" else "enforce"))
    return tries
