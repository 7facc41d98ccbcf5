"""The configuration: one model, filled from a YAML file, the environment and the command line, in rising order.

The model is the documentation: `config/ramjet.yaml` and `docs/configuration.md` are held against it by tests.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from ramjet.config_faults import ConfigError, Source, explain
from ramjet.config_file import read_yaml
from ramjet.core.fleet import whole_name

__all__ = [
    "ENV_PREFIX", "MOST_RANKS", "ConfigError", "ReplicaSettings", "Settings", "descriptions", "dump", "keys", "load",
    "rank_clash", "replica_url", "unknown_variables",
]  # fmt: skip

ENV_PREFIX = "RAMJET_"


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError("write it as HOST:PORT, for example 127.0.0.1:8000 or [::]:8000")
    return value


def replica_url(value: str) -> str:
    """A replica's URL in its one form: no trailing slash, and without the `/v1` that SDKs put at the end.

    Raises:
        ValueError: it is no URL of a replica; the message says what would be one.
    """
    try:
        parts = urlsplit(value)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        port_is_good = False
    if not port_is_good or parts.scheme not in {"http", "https"} or not parts.hostname or re.search(r"\s", value):
        raise ValueError("write it as http://HOST:PORT, for example http://10.0.0.7:30000")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("leave out user, password, query and fragment")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def _kv_endpoint(value: str) -> str:
    """Where KV events are published; only who has the extra can listen there.

    Raises:
        ValueError: it is no address to connect to, or pyzmq is not installed.
    """
    host, _, port = value.removeprefix("tcp://").rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= 65_535
    is_host = re.fullmatch(r"\{host\}|\[[0-9A-Fa-f:.]+\]|[\w.-]+", host, re.ASCII)
    if not value.startswith("tcp://") or not is_port or not is_host:
        raise ValueError("write it as tcp://HOST:PORT, for example tcp://10.0.0.7:5557; the engine's own * is no host")
    if find_spec("zmq") is None:
        raise ValueError("needs pyzmq, which is not installed: pip install 'ramjet-lb[kvevents]', or leave it out")
    return value


def _store_url(value: SecretStr) -> SecretStr:
    """Where the store is; only who has the extra can use one.

    Raises:
        ValueError: it is no URL of one, or the library is not installed.
    """
    try:
        parts = urlsplit(value.get_secret_value())
        is_good = parts.port is None or parts.port > 0
    except ValueError:
        is_good = False
    if not is_good or parts.scheme not in {"valkey", "valkeys", "redis", "rediss"} or not parts.hostname:
        raise ValueError(
            "write it as valkey://HOST:PORT or, over TLS, valkeys://HOST:PORT, for example valkey://10.0.0.5"
        )
    if find_spec("valkey") is None:
        raise ValueError("needs valkey, which is not installed: pip install 'ramjet-lb[valkey]', or leave it out")
    return value


def rank_clash(names: Iterable[str]) -> str | None:
    """What is wrong with replicas of these names: one is called as a rank of another is, or would be; None for nothing."""
    known = set(names)
    for name in sorted(known):
        whole = whole_name(name)
        if whole != name and whole in known:
            return f"the name {name} is that of a rank of {whole}; name one of the two otherwise"
    return None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


MOST_RANKS = 256
"""Of one replica; an engine that says more is not believed."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _PlaceSettings(_Part):
    name: Name = Field(description="its name in logs, metrics and headers; letters, digits, dot, dash, underscore")
    url: Annotated[str, AfterValidator(replica_url)] = Field(
        description="where it is; a base path is kept, a /v1 at the end is not"
    )


class TemplateSettings(_Part):
    """What is true of a replica wherever it is."""

    engine: Literal["auto", "sglang", "vllm", "llamacpp", "openai"] = Field(
        default="auto", description="what it runs: sglang, vllm, llamacpp, openai for any other; auto = found out"
    )
    ranks: Annotated[int, Field(ge=1, le=MOST_RANKS)] | None = Field(
        default=None, description="data-parallel ranks, each with a cache of its own; null = as the engine says, else 1"
    )
    pool_tokens: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="tokens its KV cache holds, or one rank's; null = as the engine says"
    )
    page_tokens: Annotated[int, Field(gt=0)] | None = Field(
        default=None,
        description="tokens by which reuse is counted: SGLang's page, vLLM's block; null = as the engine says",
    )
    chunk_tokens: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="tokens that one forward reads: where snapshots lie; null = as the engine says"
    )
    snapshot_slots: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="state snapshots it holds, for hybrid models; null = as the engine says"
    )
    snapshots_per_path: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="most snapshots a conversation keeps; null = as the engine says"
    )
    snapshot_grid_tokens: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="snapshots lie at multiples of so many tokens; null = as the engine says"
    )
    slots_per_request: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="snapshot slots that a running request takes for itself; null = as the engine says"
    )
    states_in_pool: bool | None = Field(
        default=None,
        description="whether a hybrid model's states lie in the token pool, as with vLLM; null = as the engine says",
    )
    host_tier: bool | None = Field(
        default=None, description="whether it keeps copies in server memory; null = as the engine says"
    )
    reports_cached: bool | None = Field(
        default=None,
        description="whether its usage says how much was cached, so that saying nothing is 0; null = as the engine says",
    )
    api_key: SecretStr | None = Field(
        default=None, description="key that the replica asks for; it takes the place of the client's"
    )
    ask_usage: bool = Field(
        default=True, description="ask for usage on streams; off for an engine that refuses stream_options"
    )
    kv_events: Annotated[str, AfterValidator(_kv_endpoint)] | None = Field(
        default=None,
        description="where the engine publishes KV events (endpoint in its --kv-events-config), tcp://HOST:PORT, {host} for the url's; null = nobody listens",
    )
    kv_events_replay: Annotated[str, AfterValidator(_kv_endpoint)] | None = Field(
        default=None,
        description="where it sends events again that were missed (replay_endpoint), tcp://HOST:PORT; null = nowhere",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kv_events_replay is not None and self.kv_events is None:
            raise ValueError("kv_events_replay is given without kv_events; give both, or only kv_events, or neither")
        return self


class ReplicaSettings(TemplateSettings, _PlaceSettings):
    """One replica."""


def _pattern(value: str) -> str:
    """What becomes a replica's URL.

    Raises:
        ValueError: it would not; the message says what would.
    """
    try:
        fits = "{host}" in value and bool(replica_url(value.format(host="[::1]", port=1)))
    except (ValueError, LookupError, AttributeError):
        fits = False
    if not fits:
        raise ValueError("write it as http://{host}:{port}; a base path may follow")
    return value


def _server(value: str) -> str:
    host, _, port = value.rpartition(":")
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        is_server = port.isdigit() and 0 < int(port) <= 65_535 and host.startswith("[") == (":" in host)
    except ValueError:
        is_server = False
    if not is_server:
        raise ValueError(
            "write it as ADDRESS:PORT, for example 127.0.0.1:8600 or [::1]:53; names are what it is asked for"
        )
    return value


def _port(value: object) -> str:
    is_number = (type(value) is int or (isinstance(value, str) and value.isdigit())) and 0 < int(value) <= 65_535
    is_name = isinstance(value, str) and re.fullmatch(r"(?=[0-9-]*[a-z])[a-z0-9]([a-z0-9-]*[a-z0-9])?", value)
    if not (is_number or is_name):
        raise ValueError("give the port's name in the Service, or a number from 1 to 65535")
    return str(value)


Pattern = Annotated[str, AfterValidator(_pattern)]
PortNumber = Annotated[int, Field(ge=1, le=65_535)]


class FileSourceSettings(_Part):
    """A file that others write."""

    path: Path = Field(description="YAML or JSON: replicas as here, name and template may be left out")


class DnsSourceSettings(_Part):
    """A name that leads to all replicas."""

    host: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        description="the name that is asked for; of a Service, _PORT._tcp. before it for SRV"
    )
    record: Literal["A", "AAAA", "SRV"] = Field(
        default="A", description="A or AAAA = an address is a replica, SRV = a target is one, with its port"
    )
    port: PortNumber | None = Field(default=None, description="where replicas listen; needed for A and AAAA")
    url: Pattern = Field(default="http://{host}:{port}", description="what a replica's url is made of")
    resolver: Annotated[str, AfterValidator(_server)] | None = Field(
        default=None, description="who is asked, ADDRESS:PORT; null = as /etc/resolv.conf says"
    )
    least_s: Seconds = Field(default=1.0, description="s between two questions at least, however short the TTL")
    most_s: Seconds = Field(default=30.0, description="s between two questions at most, however long the TTL")
    timeout_s: Seconds = Field(default=5.0, description="s that an answer may take")

    @model_validator(mode="after")
    def _consistent(self) -> DnsSourceSettings:
        if self.record == "SRV" and self.port is not None:
            raise ValueError("port is given, and SRV records say it themselves; leave it out, or ask for A or AAAA")
        if self.record != "SRV" and self.port is None:
            raise ValueError(f"port is missing, and {self.record} records say none; give it, or ask for SRV")
        return self


class KubernetesSourceSettings(_Part):
    """The EndpointSlices of a Service."""

    namespace: str | None = Field(default=None, description="where the Service is; null = where Ramjet runs itself")
    service: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="its name; or give selector instead"
    )
    selector: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="labels of EndpointSlices, as app=glm,tier=gpu; they have their Service's"
    )
    port: Annotated[str, BeforeValidator(_port)] | None = Field(
        default=None, description="name or number of the port; null = the only one there is"
    )
    url: Pattern = Field(default="http://{host}:{port}", description="what a replica's url is made of")
    kubeconfig: FilePath | None = Field(
        default=None, description="file that says how to reach the API server; null = the pod's service account"
    )
    timeout_s: Seconds = Field(default=10.0, description="s that a list may take, and a watch to begin")

    @model_validator(mode="after")
    def _consistent(self) -> KubernetesSourceSettings:
        if (self.service is None) == (self.selector is None):
            raise ValueError("give service or selector, one of the two")
        if self.kubeconfig is not None and self.namespace is None:
            raise ValueError("namespace is missing, and with kubeconfig Ramjet has none of its own; give it")
        if find_spec("kubernetes_asyncio") is None:
            raise ValueError("needs kubernetes_asyncio, which is not installed: pip install 'ramjet-lb[kubernetes]'")
        return self


class SourceSettings(_Part):
    """One place where replicas are found."""

    name: Name = Field(description="its name in logs and metrics")
    file: FileSourceSettings | None = Field(default=None, description="a file that others write; one of the three")
    dns: DnsSourceSettings | None = Field(
        default=None, description="a name that leads to all replicas; one of the three"
    )
    kubernetes: KubernetesSourceSettings | None = Field(
        default=None, description="the EndpointSlices of a Service; one of the three"
    )
    replica: TemplateSettings = Field(
        default=TemplateSettings(), description="what is true of each replica found: its keys but name and url"
    )

    @model_validator(mode="after")
    def _consistent(self) -> SourceSettings:
        if sum(kind is not None for kind in (self.file, self.dns, self.kubernetes)) != 1:
            raise ValueError("give one of file, dns and kubernetes; another source may have another")
        return self


class DiscoverySettings(_Part):
    """Replicas that come and go."""

    drain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=600.0, description="s in which a replica that is gone may finish what it runs, before it is let go"
    )
    sources: list[SourceSettings] = Field(default=[], description="where replicas are found, beside those listed")

    @model_validator(mode="after")
    def _consistent(self) -> DiscoverySettings:
        twice = [name for name, times in Counter(each.name for each in self.sources).items() if times > 1]
        if twice:
            raise ValueError(f"sources: the name {twice[0]} is given twice; each source needs its own")
        return self


class AffinitySettings(_Part):
    """Send each turn where its prefix is believed to be."""

    enabled: bool = Field(default=True, description="off = plain load balancing, to compare with")


class LongPromptSettings(_Part):
    """Keep long requests on some replicas."""

    enabled: bool = Field(
        default=False, description="off: two long conversations on one replica evict each other (seed)"
    )
    bytes: Annotated[int, Field(gt=0)] = Field(
        default=600_000, description="a request's body from this size on is long; about 150,000 tokens of ordinary text"
    )
    replicas: list[Name] = Field(
        default=[], description="where long requests may go; elsewhere only if none of these can serve"
    )


class SpreadLongSettings(_Part):
    """Send concurrent long conversations to different replicas."""

    enabled: bool = Field(default=True, description="while there are replicas to spread over")
    tokens: Annotated[int, Field(gt=0)] = Field(
        default=150_000, description="a conversation from this length on is long"
    )


class IdentitySettings(_Part):
    """What tells conversations apart, beside their prompts."""

    hints: bool = Field(
        default=True,
        description="weigh what clients say of whose a prompt is, together with the prompt; off = the prompt alone",
    )
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = Field(
        default=None, description="a header that names the conversation, asked before those of known agents"
    )


class PrefillSettings(_Part):
    """How long replicas take to read a prompt: linear_ms * n + quadratic_ms * n², n in tokens."""

    linear_ms: Annotated[float, Field(ge=0)] = Field(
        default=0.1655, description="ms a token; the seed's replicas: 20k in 3.3 s"
    )
    quadratic_ms: Annotated[float, Field(ge=0)] = Field(default=5.3e-8, description="ms a token squared; 313k in 57 s")


class AdmissionSettings(_Part):
    """Hold back what would only make conversations evict each other."""

    mode: Literal["off", "observe", "enforce"] = Field(
        default="enforce", description="observe = place everything at once and count what would have been held"
    )
    patience_s: Seconds = Field(
        default=100.0, description="s of waiting from which those who wait go first, whatever it costs the others"
    )
    max_hold_s: Seconds = Field(default=600.0, description="s that a request is held at most; beyond it 429")
    comment_every_s: Seconds | None = Field(
        default=None, description="s between comments in a held stream, whose status is then 200; null = none are sent"
    )


class SliceSettings(_Part):
    """Have a long prompt read in slices, so that short turns slip in between. Experimental."""

    enabled: bool = Field(default=False, description="on: each slice is a request of its own that asks for one token")
    seconds: Seconds = Field(default=3.0, description="s of reading that one slice adds")


class RoutingSettings(_Part):
    """What decides where a request goes. Costs are in seconds of waiting."""

    affinity: AffinitySettings = AffinitySettings()
    long_prompt: LongPromptSettings = LongPromptSettings()
    spread_long: SpreadLongSettings = SpreadLongSettings()
    identity: IdentitySettings = IdentitySettings()
    admission: AdmissionSettings = AdmissionSettings()
    slices: SliceSettings = SliceSettings()
    prefill: PrefillSettings = PrefillSettings()
    request_s: Annotated[float, Field(ge=0)] = Field(
        default=0.1, description="s that a request in flight costs the next one, beside its reading"
    )
    leave_s: Annotated[float, Field(ge=0)] = Field(
        default=2.0, description="s that a conversation must gain before it leaves the replica that holds it"
    )
    living_s: Seconds = Field(default=300.0, description="s after its last turn that a conversation counts as alive")


class BeliefSettings(_Part):
    """What Ramjet remembers of prompts: hashes, never text."""

    memory_mb: Annotated[int, Field(ge=8)] = Field(
        default=256, description="MiB for all of it, one bound for the process; about 2.5 KB a conversation of 50 KB"
    )
    horizon_s: Seconds = Field(
        default=3_600.0, description="s after which a replica is no longer believed to hold a prompt"
    )


class LimitSettings(_Part):
    """Sizes and times after which Ramjet gives up. There is no limit on a request's total time."""

    body_bytes: Annotated[int, Field(gt=0)] = Field(default=64 << 20, description="largest request body; beyond it 413")
    header_bytes: Annotated[int, Field(ge=4096)] = Field(
        default=64 << 10, description="all of a request's headers; beyond it 431"
    )
    in_flight: Annotated[int, Field(ge=1)] = Field(
        default=2_048, description="requests under way at once; beyond it 429 with Retry-After"
    )
    held_bytes: Annotated[int, Field(gt=0)] = Field(
        default=1 << 30, description="request bodies held at once, in all; beyond it 429 with Retry-After"
    )
    client_idle_s: Seconds = Field(
        default=75.0, description="s in which a client must have sent a whole head, also between two requests"
    )
    body_gap_s: Seconds = Field(default=30.0, description="s between two pieces of a request's body; beyond it 408")
    connect_s: Seconds = Field(default=5.0, description="s to connect to a replica")
    first_byte_s: Seconds = Field(
        default=1_800.0, description="s to the answer's first byte; a long prompt takes minutes"
    )
    gap_s: Seconds = Field(default=300.0, description="s between two bytes of an answer")
    idle_s: Seconds = Field(
        default=4.0, description="s an unused connection to a replica is kept; engines close after 5"
    )
    drain_s: Seconds = Field(default=600.0, description="s that running answers get after SIGTERM")


class HealthSettings(_Part):
    """Active probes."""

    path: Annotated[str, Field(pattern=r"^/")] = Field(
        default="/health", description="what is fetched; SGLang generates a token there unless told otherwise"
    )
    interval_s: Seconds = Field(default=3.0, description="s between probes of a replica")
    timeout_s: Seconds = Field(default=5.0, description="s a probe may take; busy engines are slow to answer")
    delivering_s: Annotated[float, Field(ge=0)] = Field(
        default=10.0, description="s since its last byte of an answer in which bad probes do not take a replica out"
    )
    wedged_s: Seconds = Field(
        default=600.0,
        description="s without a byte for any of its requests after which a replica is out, whatever it says",
    )
    failures: Annotated[int, Field(ge=1)] = Field(
        default=3, description="bad probes in a row before it is down; refused is at once"
    )
    successes: Annotated[int, Field(ge=1)] = Field(
        default=2, description="good probes in a row before it is tried again"
    )


class StatsSettings(_Part):
    """What engines are asked about themselves: what they are, and what they are doing."""

    enabled: bool = Field(default=True, description="off = only the file says what replicas are; others are not seen")
    interval_s: Seconds = Field(default=1.0, description="s between two questions to a replica, a page each")
    timeout_s: Seconds = Field(default=2.0, description="s that an answer may take")
    facts_s: Seconds = Field(default=60.0, description="s between two looks at what it is, which restarts change")


class TlsSettings(_Part):
    """TLS on the port for clients; both or neither."""

    certificate: FilePath | None = Field(default=None, description="PEM file with the certificate and its chain")
    key: FilePath | None = Field(default=None, description="PEM file with the certificate's private key")


class LogSettings(_Part):
    """One line for each request, on standard error."""

    format: Literal["json", "console"] = Field(default="json", description="json or console")
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )


class JournalSettings(_Part):
    """Every finished request in a file, hashes and never text."""

    enabled: bool = Field(default=True, description="off = nothing is kept but the log")
    path: Path | None = Field(
        default=None, description="the file; null = journal.db in the state directory, where the secret is"
    )
    days: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=30.0, description="days after which requests are let go"
    )
    megabytes: Annotated[int, Field(ge=1)] = Field(
        default=2_048, description="MiB of file from which on the oldest are let go"
    )


class PeerSettings(_Part):
    """Other Ramjets before the same replicas, and the store through which they share what they know."""

    url: Annotated[SecretStr, AfterValidator(_store_url)] | None = Field(
        default=None, description="a Valkey or Redis, as valkey://USER:PASSWORD@HOST:PORT; null = this Ramjet is alone"
    )
    megabytes: Annotated[int, Field(ge=1)] = Field(
        default=64, description="MiB that what is shared takes in the store, at most"
    )


class Settings(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, case_sensitive=False
    )

    listen: Annotated[str, AfterValidator(_address)] = Field(
        default="0.0.0.0:8000", description="where clients connect"
    )
    admin: Annotated[str, AfterValidator(_address)] = Field(
        default="127.0.0.1:9090", description="metrics, health and the replicas' administration"
    )
    replicas: list[ReplicaSettings] = Field(default=[], description="the model copies to spread over")
    discovery: DiscoverySettings = DiscoverySettings()
    routing: RoutingSettings = RoutingSettings()
    beliefs: BeliefSettings = BeliefSettings()
    limits: LimitSettings = LimitSettings()
    health: HealthSettings = HealthSettings()
    stats: StatsSettings = StatsSettings()
    tls: TlsSettings = TlsSettings()
    log: LogSettings = LogSettings()
    journal: JournalSettings = JournalSettings()
    peers: PeerSettings = PeerSettings()
    client_keys: list[Annotated[SecretStr, Field(min_length=8)]] = Field(
        default=[], description="keys of which clients must show one; empty = anybody, and their own key is passed on"
    )
    admin_token: Annotated[SecretStr, Field(min_length=8)] | None = Field(
        default=None, description="what changes on the admin port ask for; needed unless that is on a loopback address"
    )
    allow_engine_admin: bool = Field(
        default=False, description="let clients reach the engines' own administration (flush, weights, profiling)"
    )
    secret: Annotated[SecretStr, Field(min_length=8)] | None = Field(
        default=None,
        description="seeds all hashes, the same on every Ramjet of a deployment; null = made once and kept",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        for what, values in (
            ("name", [replica.name for replica in self.replicas]),
            ("url", [replica.url for replica in self.replicas]),
        ):
            twice = [value for value, times in Counter(values).items() if times > 1]
            if twice:
                raise ValueError(f"replicas: the {what} {twice[0]} is given twice; each replica needs its own")
        clash = rank_clash(replica.name for replica in self.replicas)
        if clash is not None:
            raise ValueError(f"replicas: {clash}")
        rule = self.routing.long_prompt
        known = [replica.name for replica in self.replicas]
        # Whoever is found has a name that nobody knows yet.
        for name in rule.replicas if self.replicas and not self.discovery.sources else ():
            if name not in known:
                raise ValueError(
                    f"routing.long_prompt.replicas: no replica is named {name}; known are {', '.join(known)}"
                )
        if (self.tls.certificate is None) != (self.tls.key is None):
            raise ValueError("tls.key: certificate and key go together; give both or neither")
        if self.peers.url is not None and self.secret is None:
            raise ValueError("secret: Ramjets that share what they know need the same one; set it (RAMJET_SECRET)")
        if rule.enabled and not rule.replicas:
            raise ValueError(
                "routing.long_prompt.replicas: is empty; name the replicas for long requests, or disable it"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only: `load` has merged the file, the environment and the command line into them."""
        return (init_settings,)


class Environment(EnvSettingsSource):
    """The environment without variables that mean nothing, which are worth a warning and no refusal to start."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        known = _variables()
        return {name: value for name, value in super()._load_env_vars().items() if name.upper() in known}


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the configuration.

    Args:
        path: a YAML file; None for none.
        overrides: what the command line says, nested as the file is; it wins over the environment and the file.
            Replicas are added to those of the file, or replace the one of the same name.

    Raises:
        ConfigError: with the place, the value and the remedy.
    """
    try:
        values = _without_empty_sections(read_yaml(path)) if path is not None else {}
        values = _merge(values, Environment(Settings)())
        values = _merge(values, _with_replicas(values, overrides or {}))
        return Settings(**values)
    except ValidationError as error:
        set_here = {key: name for name, key in _variables().items() if name in os.environ}
        source = Source(path, overrides or {}, set_here)
        raise ConfigError(explain(error, source, descriptions())) from None
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        name = field[1] if field else "environment"
        raise ConfigError(f"{ENV_PREFIX}{name.upper()}: {name}: is not JSON, as lists and mappings must be") from None
    except ConfigError:
        raise
    except (ValueError, TypeError, ArithmeticError, RecursionError, AttributeError) as error:
        # YAML can write values that Python's own types refuse to be: a date that does not exist, a number too long.
        raise ConfigError(f"{path}: holds a value that cannot be used: {error}") from None


def unknown_variables(environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str | None]]:
    """`RAMJET_*` variables that mean nothing, each with the known one that is nearest."""
    known = _variables()
    for name in environ:
        if name.startswith(ENV_PREFIX) and name not in known:
            yield name, next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)


def _variables() -> dict[str, str]:
    """Every variable that means something, and the key it sets; a whole section may be given as JSON."""
    names = {}
    for key in keys():
        steps = key.split(".")
        for depth in range(1, len(steps) + 1):
            names[ENV_PREFIX + "__".join(steps[:depth]).upper()] = ".".join(steps[:depth])
    return names


def keys(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """Every key of the configuration, dotted; those of one replica are not among them."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def descriptions(model: type[BaseModel] = Settings, prefix: str = "") -> dict[str, str]:
    """What every key means, those of a replica under `replicas.`, those of a source under `discovery.sources.`."""
    meanings: dict[str, str] = {}
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        if section is not None:
            meanings |= descriptions(section, f"{prefix}{name}.")
        if section is None or field.description is not None:
            meanings[prefix + name] = field.description or ""
    if model is Settings:
        meanings |= descriptions(ReplicaSettings, "replicas.")
        meanings |= descriptions(SourceSettings, "discovery.sources.")
    return meanings


def _section(kind: Any) -> type[BaseModel] | None:
    """The section that a key stands for, be it one that may be left out; None where it is a value."""
    given = [each for each in get_args(kind) if each is not NoneType] if NoneType in get_args(kind) else [kind]
    is_section = len(given) == 1 and isinstance(given[0], type) and issubclass(given[0], BaseModel)
    return given[0] if is_section else None


def dump(settings: Settings) -> str:
    """The effective configuration as YAML, secrets masked."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _with_replicas(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """The overrides with the other replicas put back: naming one more is no reason to lose the rest."""
    given, listed = overrides.get("replicas"), values.get("replicas")
    if not given or not isinstance(listed, list):
        return overrides
    names = {replica["name"] for replica in given}
    kept = [replica for replica in listed if not (isinstance(replica, dict) and replica.get("name") in names)]
    return {**overrides, "replicas": [*kept, *given]}


def _without_empty_sections(values: dict[str, Any]) -> dict[str, Any]:
    """A section whose keys are all commented out says nothing, and that is not an error."""
    sections = {
        name
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    return {key: value for key, value in values.items() if value is not None or key not in sections}
