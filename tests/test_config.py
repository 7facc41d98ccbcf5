"""The configuration: which source wins, and that every mistake names its place, its value and the remedy."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.build import sources_of
from ramjet.config import ConfigError, Settings, descriptions, dump, keys, load, replica_url, unknown_variables
from ramjet.discovery.dns import Dns
from ramjet.discovery.file import File
from ramjet.discovery.kubernetes import Kubernetes

ONE = "replicas: [{name: a, url: 'http://10.0.0.7:30000'}]\n"
SOURCE = "discovery: {{sources: [{{name: a, {}}}]}}"
TWO = "replicas: [{name: a, url: 'http://10.0.0.7:30000'}, {name: b, url: 'http://10.0.0.8:30000'}]\n"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What the shell of whoever runs the tests has set is no part of them.
    """
    for name in [name for name in os.environ if name.upper().startswith("RAMJET_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ramjet.yaml"


def written(file: Path, text: str | bytes) -> Path:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def refused(file: Path, text: str | bytes, overrides: dict[str, Any] | None = None) -> str:
    """What the operator is told."""
    with pytest.raises(ConfigError) as error:
        load(written(file, text), overrides)
    return str(error.value)


# -- mistakes in the file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # Where it is, what was given, and what would be right.
        ("rooting: {}", ["rooting", "no such key", "did you mean routing?"]),
        ("routing: {long_promt: {}}", ["routing.long_promt", "did you mean routing.long_prompt?"]),
        ("limits: {body_byte: 1}", ["limits.body_byte", "did you mean limits.body_bytes?"]),
        ("xyz: 1", ["xyz", "no such key", "config/ramjet.yaml shows all keys"]),
        ("peers: {url: 'http://h:6379'}", ["peers.url", "valkey://HOST:PORT"]),
        ("peers: {url: 'valkey://h:0'}", ["peers.url", "valkey://HOST:PORT"]),
        ("{secret: long enough, peers: {url: 'valkey://', megabytes: 0}}", ["peers.url", "peers.megabytes"]),
        ("peers: {url: 'valkey://h'}", ["secret: Ramjets that share", "need the same one", "RAMJET_SECRET"]),
        ("replicas: [{name: a, url: 'http://h', pool_token: 1}]", ["replicas.0.pool_token", "replicas.pool_tokens?"]),
        ("replicas: [{name: a}]", ["replicas.0.url", "nothing given", "required", "where it is"]),
        ("replicas: [{url: 'http://h'}]", ["replicas.0.name", "nothing given", "its name in logs"]),
        ("replicas: [{name: 'a b', url: 'http://h'}]", ["replicas.0.name", "'a b' given", "letters, digits"]),
        ("replicas: {a: 'http://h'}", ["replicas", "a mapping given", "list"]),
        ("replicas: [{name: a, url: 'http://h', pool_tokens: 0}]", ["replicas.0.pool_tokens", "0 given", "than 0"]),
        ("replicas: [{name: a, url: 'http://h', kv_events: 'tcp://*:5557'}]", ["kv_events", "tcp://HOST:PORT", "* is no host"]),
        ("replicas: [{name: a, url: 'http://h', kv_events: '10.0.0.7:5557'}]", ["kv_events", "tcp://HOST:PORT"]),
        ("replicas: [{name: a, url: 'http://h', kv_events: 'tcp://h:0'}]", ["kv_events", "'tcp://h:0' given"]),
        ("replicas: [{name: a, url: 'http://h', kv_events: 'tcp://h:65536'}]", ["kv_events", "tcp://HOST:PORT"]),
        ("replicas: [{name: a, url: 'http://h', kv_events_replay: 'tcp://h:1'}]", ["replicas.0", "without kv_events"]),
        ("discovery: {sources: [{name: a}]}", ["discovery.sources.0", "give one of file, dns and kubernetes"]),
        (SOURCE.format("dns: {host: h, port: 1}, file: {path: p}"), ["discovery.sources.0", "give one of file, dns"]),
        (SOURCE.format("dns: {host: h}"), ["discovery.sources.0.dns", "port is missing, and A records say none"]),
        (SOURCE.format("dns: {host: h, record: SRV, port: 1}"), ["sources.0.dns", "SRV records say it themselves"]),
        (SOURCE.format("dns: {hst: h, port: 1}"), ["sources.0.dns.hst", "did you mean discovery.sources.dns.host?"]),
        (SOURCE.format("dns: {host: h, port: 1, url: 'http://h'}"), ["sources.0.dns.url", "write it as http://{host}:{port}"]),
        (SOURCE.format("dns: {host: h, port: 1, url: '{host}'}"), ["sources.0.dns.url", "write it as http://{host}:{port}"]),
        (SOURCE.format("dns: {host: h, port: 1, url: 'http://{host}:{x}'}"), ["sources.0.dns.url", "http://{host}:{port}"]),
        (SOURCE.format("dns: {host: h, port: 1, resolver: 'ns:53'}"), ["dns.resolver", "'ns:53' given", "ADDRESS:PORT"]),
        (SOURCE.format("kubernetes: {}"), ["discovery.sources.0.kubernetes", "give service or selector"]),
        (SOURCE.format("kubernetes: {service: s, port: 0}"), ["sources.0.kubernetes.port", "0 given", "from 1 to 65535"]),
        (SOURCE.format("kubernetes: {service: s, port: [1]}"), ["sources.0.kubernetes.port", "a list given", "name in the"]),
        (SOURCE.format("file: {path: p}, replica: {name: n}"), ["sources.0.replica.name", "no such key"]),
        (SOURCE.format("file: {path: p}, replica: {kv_events_replay: 'tcp://{host}:1'}".replace("{host}", "h")), ["without kv_events"]),
        ("discovery: {sources: [{name: a, file: {path: p}}, {name: a, file: {path: q}}]}", ["sources: the name a is given twice"]),
        (TWO.replace("name: b", "name: a"), ["replicas", "the name a is given twice", "its own"]),
        (TWO.replace("10.0.0.8", "10.0.0.7"), ["the url http://10.0.0.7:30000 is given twice", "its own"]),
        (TWO.replace("10.0.0.8:30000", "10.0.0.7:30000/v1/"), ["the url http://10.0.0.7:30000 is given twice"]),
        (ONE + "routing: {long_prompt: {replicas: [b]}}", ["routing.long_prompt.replicas", "named b", "known are a"]),
        (ONE + "routing: {long_prompt: {enabled: true}}", ["routing.long_prompt.replicas", "is empty", "disable it"]),
        ("routing: {request_s: -1}", ["routing.request_s", "-1 given", "greater than or equal to 0"]),
        ("routing: {long_prompt: {bytes: 600k}}", ["routing.long_prompt.bytes", "'600k' given", "integer"]),
        ("limits: {connect_s: 0}", ["limits.connect_s", "0 given", "greater than 0", "s to connect to a replica"]),
        ("limits: {connect_s: .inf}", ["limits.connect_s", "inf given", "finite"]),
        ("beliefs: {memory_mb: 1}", ["beliefs.memory_mb", "1 given", "equal to 8", "MiB"]),
        ("health: {path: health}", ["health.path", "'health' given", "'^/'"]),
        ("log: {level: loud}", ["log.level", "'loud' given", "debug, info, warning or error"]),
        ("allow_engine_admin: perhaps", ["allow_engine_admin", "'perhaps' given", "boolean"]),
        ("listen: 8000", ["listen", "8000 given", "where clients connect"]),
        ("listen: ':8000'", ["listen", "':8000' given", "HOST:PORT, for example 127.0.0.1:8000 or [::]:8000"]),
        ("admin: localhost", ["admin", "'localhost' given", "HOST:PORT"]),
        ("listen: 'h:65536'", ["listen", "'h:65536' given", "HOST:PORT"]),
        ("log: {level: info}\nlog: {format: json}", ["the key log is given twice", "line 2"]),
        ("log: {level: info, level: debug}", ["the key level is given twice", "line 1"]),
        ("[1, 2]", ["must be a mapping", "not a list"]),
        ("listen", ["must be a mapping", "not a str"]),
        ("1: 2", ["1: keys are words", "quotes"]),
        ("a: [", ["is not YAML", "line 1"]),
        (b"listen: \xff", ["is not YAML", "0xff"]),
        ("a: !!python/object/apply:os.system ['true']", ["is not YAML", "constructor for the tag"]),
    ],
)  # fmt: skip
def test_a_mistake_names_its_place_its_value_and_the_remedy(file: Path, text: str | bytes, told: list[str]) -> None:
    """
    Whoever reads the message at three in the morning knows what to change, and where.
    """
    message = refused(file, text)

    assert message.startswith(f"{file}: ")
    for part in told:
        assert part in message


def test_every_mistake_is_told_at_once(file: Path) -> None:
    """
    One line for each, so that nobody starts five times.
    """
    message = refused(file, "listen: x\nlog: {level: loud}\nrooting: {}")

    assert [line.removeprefix(f"{file}: ").partition(":")[0] for line in message.splitlines()] == [
        "listen",
        "log.level",
        "rooting",
    ]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """
    A wrong path and a directory are no empty configuration.
    """
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    "text", ["? [1, 2]\n: 3", "? {a: 1}\n: 3", "a: " + "[" * 3_000], ids=["list key", "mapping key", "nested"]
)
def test_odd_yaml_is_refused_as_other_mistakes_are(file: Path, text: str) -> None:
    """
    Valid YAML that is no configuration ends in a message, not in a traceback.
    """
    assert refused(file, text).startswith(f"{file}: ")


@pytest.mark.parametrize("section", ["routing", "limits", "log", "beliefs", "health"])
def test_a_section_whose_keys_are_all_commented_out_is_empty(file: Path, section: str) -> None:
    """
    YAML reads it as null; the operator meant the defaults.
    """
    assert load(written(file, f"{section}:\n  # nothing here\n")) == Settings()


def test_what_is_meant_to_be_secret_is_never_shown(file: Path) -> None:
    """
    Neither the deployment's secret nor what stands under a key that Ramjet does not know.
    """
    for text in (
        SOURCE.format("file: {path: p}, replica: {api_key: [hunter2]}"),
        "secret: hunter2", "secret: {a: hunter2}", "secrt: hunter2", "admin_token: hunter2", "client_keys: [hunter2]",
        ONE.replace("}", ", api_key: [hunter2]}"), ONE.replace("}", ", apikey: hunter2}"),
    ):  # fmt: skip
        assert "hunter2" not in refused(file, text)


def test_sources_are_as_they_are_given(file: Path) -> None:
    """
    With their defaults, a key of their replicas masked; whoever has a source needs no replica, and may name one to come.
    """
    text = """
discovery:
  drain_s: 5
  sources:
    - {name: k, kubernetes: {service: glm, port: 30000}, replica: {api_key: hunter2, kv_events: "tcp://{host}:5557"}}
    - {name: l, kubernetes: {selector: "app=glm", port: http}}
    - {name: s, dns: {host: _http._tcp.glm, record: SRV, resolver: "[::1]:53"}}
    - {name: f, file: {path: replicas.yaml}}
replicas: [{name: a, url: "http://h"}]
routing: {long_prompt: {replicas: [glm-0]}}
"""
    settings = load(written(file, text))
    k, labels, s, f = sources_of(settings)

    assert isinstance(k, Kubernetes)
    assert (k.name, k.service, k.port, k.namespace, k.url) == ("k", "glm", 30000, None, "http://{host}:{port}")
    assert isinstance(labels, Kubernetes)
    assert (labels.selector, labels.port) == ("app=glm", "http")
    assert s == Dns(
        name="s", host="_http._tcp.glm", record="SRV", port=None, url="http://{host}:{port}", resolver=("::1", 53),
        least_s=1.0, most_s=30.0, timeout_s=5.0,
    )  # fmt: skip
    assert f == File(name="f", path=Path("replicas.yaml"))
    assert "hunter2" not in dump(settings)


# -- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["10.0.0.7:30000", "ftp://h", "http://", "http://:30000", "http://h:0", "http://h:65536", "http://h:x", "h", "",
     "http://[::1", "http://a b:1", "http://@h:1"],
)  # fmt: skip
def test_what_is_no_url_of_a_replica_is_refused(file: Path, url: str) -> None:
    """
    At the start, and with an example, not at the first request.
    """
    message = refused(file, f"replicas: [{{name: a, url: {url!r}}}]")

    assert message.startswith(f"{file}: replicas.0.url: ")
    assert " given: " in message


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@h:1",
        "http://hunter2@h:1",
        "http://user:p@hunter2@h:1",
        "http://user:p/hunter2@h:1",
        "user:hunter2@h:1",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_shown(file: Path, url: str) -> None:
    """
    The message may end in a log that others read.
    """
    for text in (f"replicas: [{{name: a, url: '{url}'}}]", f"replicas: ['{url}']"):
        message = refused(file, text)
        assert "hunter2" not in message
        assert "***@h:1" in message


@pytest.mark.parametrize("url", ["http://h?x=1", "http://h/#f", "http://h/v1?x"])
def test_a_replica_has_no_query_and_no_fragment(file: Path, url: str) -> None:
    """
    Paths are put behind it.
    """
    assert "leave out" in refused(file, f"replicas: [{{name: a, url: '{url}'}}]")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:30000", "http://h:30000"),
        ("http://h:30000/", "http://h:30000"),
        ("http://h:30000/v1", "http://h:30000"),
        ("http://h:30000/v1/", "http://h:30000"),
        ("http://h:30000//", "http://h:30000"),
        ("https://h/glm/v1", "https://h/glm"),
        ("https://h/glm/", "https://h/glm"),
        ("http://h/v10", "http://h/v10"),
        ("http://[::1]:30000", "http://[::1]:30000"),
        ("HTTP://h", "http://h"),
    ],
)
def test_a_url_has_one_form(given: str, url: str) -> None:
    """
    No slash at its end, and not the /v1 that SDKs are given; a base path stays.
    """
    assert replica_url(given) == url
    assert replica_url(url) == url


@given(st.text() | st.text().map(lambda text: f"http://{text}"))
def test_any_text_is_a_url_or_a_value_error(text: str) -> None:
    """
    What comes out once comes out again.
    """
    try:
        url = replica_url(text)
    except ValueError:
        return
    assert replica_url(url) == url


# -- sources ----------------------------------------------------------------------------------------------------------


def test_without_a_file_everything_has_its_default() -> None:
    """
    The seed's: affinity on, the long-prompt rule off, loopback for what has no door.
    """
    settings = load()

    assert settings == Settings()
    assert settings.routing.affinity.enabled
    assert not settings.routing.long_prompt.enabled
    assert settings.routing.long_prompt.bytes == 600_000
    assert settings.admin == "127.0.0.1:9090"
    assert not settings.allow_engine_admin


def test_an_empty_file_is_no_file(file: Path) -> None:
    """
    Also one with comments alone.
    """
    assert load(written(file, "")) == load(written(file, "# nothing\n")) == Settings()


@pytest.mark.parametrize(
    ("setting", "key", "expected"),
    [
        ("RAMJET_LISTEN=127.0.0.1:1", "listen", "127.0.0.1:1"),
        ("RAMJET_ALLOW_ENGINE_ADMIN=true", "allow_engine_admin", True),
        ("RAMJET_ROUTING__REQUEST_S=0.5", "routing.request_s", 0.5),
        ("RAMJET_ROUTING__AFFINITY__ENABLED=0", "routing.affinity.enabled", False),
        ('RAMJET_ROUTING__LONG_PROMPT__REPLICAS=["a"]', "routing.long_prompt.replicas", ["a"]),
        ('RAMJET_ROUTING__LONG_PROMPT={"bytes": 7}', "routing.long_prompt.bytes", 7),
        ('RAMJET_ROUTING={"long_prompt": {"bytes": 7}}', "routing.long_prompt.bytes", 7),
        ("RAMJET_BELIEFS__MEMORY_MB=512", "beliefs.memory_mb", 512),
        ("RAMJET_LOG__LEVEL=debug", "log.level", "debug"),
    ],
)
def test_a_variable_wins_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, setting: str, key: str, expected: object
) -> None:
    """
    Two underscores go one level down, and a whole section may be given as JSON; what it does not name stays.
    """
    variable, _, value = setting.partition("=")
    monkeypatch.setenv(variable, value)
    written(file, ONE + "listen: 'h:2'\nrouting: {living_s: 77, long_prompt: {bytes: 1}}\nbeliefs: {horizon_s: 88}\n")

    settings = load(file)

    found: Any = settings
    for step in key.split("."):
        found = getattr(found, step)
    assert found == expected
    assert (settings.routing.living_s, settings.beliefs.horizon_s, settings.replicas[0].name) == (77, 88, "a")


def test_replicas_may_come_from_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    As a JSON list, in the file's place.
    """
    monkeypatch.setenv("RAMJET_REPLICAS", '[{"name": "e", "url": "http://e/v1"}]')

    assert [(each.name, each.url) for each in load(written(file, ONE)).replicas] == [("e", "http://e")]


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("RAMJET_LISTEN", "x", ["listen", "'x' given", "HOST:PORT"]),
        ("RAMJET_LISTEN", "", ["listen", "'' given", "HOST:PORT"]),
        ("RAMJET_ROUTING__REQUEST_S", "fast", ["routing.request_s", "'fast' given", "number"]),
        ("RAMJET_ROUTING__AFFINITY__ENABLED", "perhaps", ["routing.affinity.enabled", "'perhaps' given", "boolean"]),
        ("RAMJET_ROUTING", '{"requst_s": 1}', ["routing.requst_s", "did you mean routing.request_s?"]),
        ("RAMJET_REPLICAS", '[{"name": "e"}]', ["replicas.0.url", "nothing given"]),
        ("RAMJET_ROUTING", "{bad", ["routing", "JSON"]),
        ("RAMJET_REPLICAS", "http://h:1", ["replicas", "JSON"]),
        ("RAMJET_ROUTING__LONG_PROMPT__REPLICAS", '["z"]', ["routing.long_prompt.replicas", "known are a"]),
        ("RAMJET_ROUTING__LONG_PROMPT__ENABLED", "true", ["routing.long_prompt.replicas", "is empty"]),
    ],
)
def test_a_bad_value_in_the_environment_names_the_variable(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: list[str]
) -> None:
    """
    Nobody searches the file for what the file does not say.
    """
    monkeypatch.setenv(variable, value)

    message = refused(file, ONE)

    for part in (variable, *told):
        assert part in message


def test_a_secret_in_the_environment_is_not_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Too short to be one, and still nobody's business.
    """
    monkeypatch.setenv("RAMJET_SECRET", "hunter2")

    message = refused(file, ONE)

    assert message.startswith("RAMJET_SECRET: secret: *** given")
    assert "hunter2" not in message


def test_an_unknown_variable_is_told_and_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An old or mistyped name, or one that belongs to something else, is worth a warning with the nearest known one.
    """
    environ = {
        "RAMJET_LISTEN": "h:1",
        "RAMJET_LISTN": "h:1",
        "RAMJET_ROUTING__LONG_PROMT__ENABLED": "true",
        "RAMJET_ROUTING__LONG_PROMPT": "{}",
        "RAMJET_" + "Q" * 40: "1",
        "PATH": "/bin",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert load().listen == "h:1"
    assert dict(unknown_variables(environ)) == {
        "RAMJET_LISTN": "RAMJET_LISTEN",
        "RAMJET_ROUTING__LONG_PROMT__ENABLED": "RAMJET_ROUTING__LONG_PROMPT__ENABLED",
        "RAMJET_" + "Q" * 40: None,
    }


@pytest.mark.parametrize("key", list(keys()))
def test_every_key_has_its_variable(key: str) -> None:
    """
    None of them would be reported as unknown.
    """
    assert not list(unknown_variables({f"RAMJET_{key.upper().replace('.', '__')}": "x"}))


def test_the_command_line_wins_over_everything(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Then the environment, then the file.
    """
    monkeypatch.setenv("RAMJET_LISTEN", "env:1")
    monkeypatch.setenv("RAMJET_ADMIN", "env:2")
    monkeypatch.setenv("RAMJET_LOG__LEVEL", "debug")
    written(file, ONE + "listen: 'file:1'\nadmin: 'file:2'\nlog: {level: error, format: console}\n")

    settings = load(file, {"listen": "cli:1", "log": {"level": "warning"}})

    assert (settings.listen, settings.admin) == ("cli:1", "env:2")
    assert (settings.log.level, settings.log.format) == ("warning", "console")


def test_replicas_of_the_command_line_are_added_to_the_files(file: Path) -> None:
    """
    One of the same name takes the other's place; naming one more is no reason to lose the rest.
    """
    given = [{"name": "b", "url": "http://new"}, {"name": "c", "url": "http://c/v1/"}]

    settings = load(written(file, TWO), {"replicas": given})

    assert {each.name: each.url for each in settings.replicas} == {
        "a": "http://10.0.0.7:30000",
        "b": "http://new",
        "c": "http://c",
    }


def test_a_bad_value_on_the_command_line_is_not_blamed_on_a_variable(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The variable's own value was good, and it did not count.
    """
    monkeypatch.setenv("RAMJET_LISTEN", "good:1")

    message = refused(file, ONE, {"listen": "bad"})

    assert "'bad' given" in message
    assert "RAMJET_LISTEN" not in message


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_dump_is_a_configuration_with_secrets_masked(file: Path) -> None:
    """
    What `--print-config` shows can be read back, and holds no secret.
    """
    settings = load(written(file, TWO + "secret: hunter2hunter2\nrouting: {living_s: 77}\n"))

    shown = dump(settings)

    assert "hunter2" not in shown
    assert "hunter2" not in repr(settings)
    assert load(written(file, shown)).model_dump(exclude={"secret"}) == settings.model_dump(exclude={"secret"})


def test_no_key_is_without_a_meaning() -> None:
    """
    The model is the documentation.
    """
    meanings = descriptions()

    assert all(meanings.values())
    assert set(keys()) <= set(meanings)
    assert {"replicas.name", "replicas.url", "replicas.pool_tokens", "replicas.ask_usage"} <= set(meanings)


# -- an extra that is not there -------------------------------------------------------------------------------------------


def test_kv_events_without_the_library_say_how_to_get_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With it the address is taken as it stands; IPv6 too.
    """
    text = "replicas: [{name: a, url: 'http://h', kv_events: 'tcp://[::1]:5557', kv_events_replay: 'tcp://h.x:5558'}]"
    (replica,) = load(written(file, text)).replicas
    assert (replica.kv_events, replica.kv_events_replay) == ("tcp://[::1]:5557", "tcp://h.x:5558")

    monkeypatch.setitem(sys.modules, "zmq", None)  # as where it was never installed

    told = refused(file, text)
    assert "replicas.0.kv_events: 'tcp://[::1]:5557' given: needs pyzmq" in told
    assert "pip install 'ramjet-lb[kvevents]'" in told


def test_a_source_in_kubernetes_without_the_library_says_how_to_get_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    At the start, and not when the first replica is looked for.
    """
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)  # as where it was never installed

    told = refused(file, SOURCE.format("kubernetes: {service: glm}"))
    assert "discovery.sources.0.kubernetes: a mapping given: needs kubernetes_asyncio" in told
    assert "pip install 'ramjet-lb[kubernetes]'" in told


def test_a_store_without_the_library_says_how_to_get_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Redis' own names for it do as well; a password in the URL is shown by nobody.
    """
    text = "{secret: long enough, peers: {url: 'redis://me:hidden@h:6380/1'}}"
    settings = load(written(file, text))
    assert settings.peers.url is not None
    assert settings.peers.url.get_secret_value() == "redis://me:hidden@h:6380/1"
    assert "hidden" not in dump(settings) + str(settings)

    monkeypatch.setitem(sys.modules, "valkey", None)

    told = refused(file, text)
    assert "peers.url: '***@h:6380/1' given: needs valkey, which is not installed" in told
    assert "pip install 'ramjet-lb[valkey]'" in told
