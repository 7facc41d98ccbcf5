"""From the configuration to the values that the parts are made of."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from ramjet.certificate import Certificate
from ramjet.config import ReplicaSettings, Settings, SourceSettings
from ramjet.core.admission import Terms
from ramjet.core.fleet import Fleet, Replica, Thresholds, rank_name
from ramjet.core.policies import (
    BalanceCost,
    CrowdingCost,
    LeaveCost,
    LongPromptRule,
    Policy,
    PrefillCost,
    QueueCost,
    Reading,
    SpreadLongRule,
)
from ramjet.core.pools import Pools
from ramjet.core.route import Cost, Rule
from ramjet.discovery.watch import Source
from ramjet.front.options import Options
from ramjet.peers.link import Place
from ramjet.watch.health import Probing
from ramjet.watch.kv_events import Publisher
from ramjet.watch.stats import Polling


def policy_of(settings: Settings) -> Policy:
    """The rules and costs that the configuration asks for."""
    routing, admission = settings.routing, settings.routing.admission
    reading = Reading(routing.prefill.linear_ms / 1e3, routing.prefill.quadratic_ms / 1e3)
    rules: list[Rule] = []
    if routing.long_prompt.enabled:
        rules.append(LongPromptRule(routing.long_prompt.bytes, frozenset(routing.long_prompt.replicas)))
    if routing.spread_long.enabled:
        rules.append(SpreadLongRule(routing.spread_long.tokens))
    costs: list[Cost] = [PrefillCost(reading), QueueCost(routing.request_s)]
    if routing.affinity.enabled:
        # What a conversation costs where it stays: without affinity none stays anywhere.
        costs += [
            CrowdingCost(),
            BalanceCost(routing.request_s),
            LeaveCost(routing.leave_s, routing.request_s),
        ]
    return Policy(
        rules=rules,
        costs=costs,
        affinity=routing.affinity.enabled,
        reading=reading,
        terms=Terms(mode=admission.mode, patience_s=admission.patience_s, max_hold_s=admission.max_hold_s),
        slice_s=routing.slices.seconds if routing.slices.enabled else None,
        long_tokens=routing.spread_long.tokens,
        living_s=routing.living_s,
        horizon_s=settings.beliefs.horizon_s,
        memory_bytes=settings.beliefs.memory_mb << 20,
    )


def fleet_of(settings: Settings) -> Fleet:
    """The replicas that the configuration names."""
    fleet = Fleet()
    for each in settings.replicas:
        for replica in replicas_of(each, settings):
            fleet.add(replica)
    return fleet


def replicas_of(each: ReplicaSettings, settings: Settings, reported_ranks: int | None = None) -> list[Replica]:
    """One replica, or its ranks, believed up until shown otherwise.

    Args:
        each: what the configuration says of it.
        settings: the configuration.
        reported_ranks: how many ranks it says it has, which counts where the configuration says nothing.
    """
    ranks = each.ranks or reported_ranks or 1
    pools, thresholds = pools_of(each), thresholds_of(settings)
    if ranks == 1:
        return [Replica(each.name, each.url, configured=pools, thresholds=thresholds)]
    return [
        Replica(rank_name(each.name, rank), each.url, rank, configured=pools, thresholds=thresholds)
        for rank in range(ranks)
    ]


def pools_of(each: ReplicaSettings) -> Pools:
    """What the configuration says of a replica's cache."""
    return Pools(
        tokens=each.pool_tokens,
        slots=each.snapshot_slots,
        per_path=each.snapshots_per_path,
        private=each.slots_per_request,
        chunk_tokens=each.chunk_tokens,
        grid_tokens=each.snapshot_grid_tokens,
        page_tokens=each.page_tokens,
        states_in_pool=each.states_in_pool,
        host=each.host_tier,
        reports_cached=each.reports_cached,
    )


def thresholds_of(settings: Settings) -> Thresholds:
    """What it takes to believe that a replica is down, or up again."""
    health = settings.health
    return Thresholds(health.failures, health.successes, health.delivering_s, health.wedged_s)


def options_of(settings: Settings, replicas: Iterable[ReplicaSettings], seed: int) -> Options:
    """The proxy's limits, switches and keys, for the replicas there are now."""
    limits = settings.limits
    return Options(
        body_bytes=limits.body_bytes,
        header_bytes=limits.header_bytes,
        in_flight=limits.in_flight,
        held_bytes=limits.held_bytes,
        body_gap_s=limits.body_gap_s,
        first_byte_s=limits.first_byte_s,
        gap_s=limits.gap_s,
        comment_every_s=settings.routing.admission.comment_every_s,
        allow_engine_admin=settings.allow_engine_admin,
        ask_usage=frozenset(each.name for each in replicas if each.ask_usage),
        client_keys=frozenset(key.get_secret_value() for key in settings.client_keys),
        replica_keys=_keys(replicas),
        hints=settings.routing.identity.hints,
        hint_header=settings.routing.identity.header,
        seed=seed,
    )


def probing_of(settings: Settings, replicas: Iterable[ReplicaSettings]) -> Probing:
    """How replicas are probed."""
    health = settings.health
    return Probing(path=health.path, interval_s=health.interval_s, timeout_s=health.timeout_s, keys=_keys(replicas))


def polling_of(settings: Settings, replicas: Iterable[ReplicaSettings]) -> Polling:
    """How engines are asked."""
    stats, replicas = settings.stats, list(replicas)
    return Polling(
        enabled=stats.enabled,
        interval_s=stats.interval_s,
        timeout_s=stats.timeout_s,
        facts_s=stats.facts_s,
        keys=_keys(replicas),
        engines={each.name: each.engine for each in replicas},
    )


def publishers_of(replicas: Iterable[ReplicaSettings]) -> dict[str, Publisher]:
    """Where the replicas' KV events are published, for those that are to be listened to."""

    def filled(endpoint: str, each: ReplicaSettings) -> str:
        host = urlsplit(each.url).hostname or ""
        return endpoint.replace("{host}", f"[{host}]" if ":" in host else host)

    return {
        each.name: Publisher(
            filled(each.kv_events, each),
            None if each.kv_events_replay is None else filled(each.kv_events_replay, each),
        )
        for each in replicas
        if each.kv_events is not None
    }


def sources_of(settings: Settings) -> list[Source]:
    """Where replicas are found."""
    return [_source_of(each) for each in settings.discovery.sources]


def _source_of(each: SourceSettings) -> Source:
    # Most have none, and start without.
    from ramjet.discovery import dns, file, kubernetes  # noqa: PLC0415

    if each.file is not None:
        return file.File(name=each.name, path=each.file.path)
    if each.dns is not None:
        host, _, port = (each.dns.resolver or "").rpartition(":")
        resolver = (host.strip("[]"), int(port)) if host else None
        return dns.Dns(name=each.name, resolver=resolver, **each.dns.model_dump(exclude={"resolver"}))
    assert each.kubernetes is not None, "a source is one of the three"
    named = each.kubernetes.port
    number = int(named) if named is not None and named.isdigit() else named
    return kubernetes.Kubernetes(name=each.name, port=number, **each.kubernetes.model_dump(exclude={"port"}))


def place_of(settings: Settings) -> Place | None:
    """The store that is shared with peers; None where there is none."""
    peers = settings.peers
    if peers.url is None:
        return None
    return Place(url=peers.url.get_secret_value(), megabytes=peers.megabytes, keep_s=settings.beliefs.horizon_s)


def tls_of(settings: Settings) -> Certificate | None:
    """TLS for the port that clients connect to; None where none is asked for.

    Raises:
        OSError: certificate and key cannot be used (ssl.SSLError is one).
    """
    certificate, key = settings.tls.certificate, settings.tls.key
    return None if certificate is None or key is None else Certificate(certificate, key)


def _keys(replicas: Iterable[ReplicaSettings]) -> dict[str, str]:
    return {each.name: each.api_key.get_secret_value() for each in replicas if each.api_key is not None}
