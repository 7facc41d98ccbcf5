"""Replicas by DNS, asked of a real dnsmasq: A, AAAA and SRV, asked again when the TTL is over, and what is no answer."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import dns.message
import dns.rcode
import dns.resolver
import pytest

from ramjet.discovery.dns import Dns
from tests.discovery.dns_server import DnsServer, dns_server, needs_dnsmasq
from tests.discovery.support import heard

pytestmark = needs_dnsmasq


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Who fails is asked again soon.
    """
    monkeypatch.setattr("ramjet.discovery.watch._LEAST_PAUSE_S", 0.05)
    monkeypatch.setattr("ramjet.discovery.watch._MOST_PAUSE_S", 0.1)


def source(server: DnsServer, **more: Any) -> Dns:
    given: dict[str, Any] = {
        "name": "glm", "host": "glm.test", "record": "A", "port": 30000, "url": "http://{host}:{port}",
        "resolver": server.resolver, "least_s": 0.05, "most_s": 30.0, "timeout_s": 2.0,
    }  # fmt: skip
    return Dns(**given | more)


def at(*numbers: int) -> dict[str, str]:
    return {f"127.0.0.{number}-30000": f"http://127.0.0.{number}:30000" for number in numbers}


async def test_an_address_is_a_replica(tmp_path: Path) -> None:
    """
    It comes and goes with its record, when the answer's time to live is over. An answer that is too long for a packet is
    fetched over TCP.
    """
    async with dns_server(tmp_path) as server:
        await server.write(glm=["127.0.0.1", "127.0.0.2"], other=["127.0.0.9"])
        async with heard(source(server)) as ear:
            await ear.says(at(1, 2))
            await server.write(glm=[f"127.0.0.{number}" for number in range(2, 200)])
            await ear.says(at(*range(2, 200)))
            await server.write(glm=["127.0.0.3"])
            await ear.says(at(3))
    assert ear.failures == []


async def test_ipv6(tmp_path: Path) -> None:
    """
    In brackets in the URL, and without colons in the name.
    """
    async with dns_server(tmp_path) as server:
        await server.write(glm=["::1", "fd00::7", "127.0.0.1"])
        async with heard(source(server, record="AAAA", url="http://{host}:{port}/glm")) as ear:
            await ear.says({"0--1-30000": "http://[::1]:30000/glm", "fd00--7-30000": "http://[fd00::7]:30000/glm"})


async def test_a_target_is_a_replica(tmp_path: Path) -> None:
    """
    SRV: named as the target is, without what all have in common, at its address and its port, whatever its family.
    """
    options = [f"--srv-host=_http._tcp.glm.test,{target},{port}" for target, port in (
        ("glm-0.glm.test", 30000), ("glm-0.glm.test", 30001), ("elsewhere.test", 80), ("gone.test", 80)
    )]  # fmt: skip
    async with dns_server(tmp_path, *options) as server:
        await server.write(**{"glm-0.glm": ["127.0.0.7"], "elsewhere": ["fd00::8"]})
        async with heard(source(server, host="_http._tcp.glm.test", record="SRV", port=None)) as ear:
            await ear.says(
                {
                    "glm-0-30000": "http://127.0.0.7:30000",
                    "glm-0-30001": "http://127.0.0.7:30001",
                    "elsewhere.test-80": "http://[fd00::8]:80",
                }
            )
            await server.write(**{"glm-0.glm": ["127.0.0.8"], "elsewhere": ["fd00::8"]})
            await ear.says(
                {
                    "glm-0-30000": "http://127.0.0.8:30000",
                    "glm-0-30001": "http://127.0.0.8:30001",
                    "elsewhere.test-80": "http://[fd00::8]:80",
                }
            )


async def test_it_is_asked_again_when_the_time_to_live_is_over(tmp_path: Path) -> None:
    """
    Not before, and not later than `most_s`, however long that time is.
    """
    for ttl_s, most_s, least in ((2, 30.0, 1.8), (600, 1.0, 0.9)):
        async with dns_server(tmp_path, ttl_s=ttl_s) as server:
            await server.write(glm=["127.0.0.1"])
            async with heard(source(server, most_s=most_s)) as ear:
                await ear.says(at(1))
                began = asyncio.get_running_loop().time()
                await server.write(glm=["127.0.0.1", "127.0.0.2"])
                await ear.says(at(1, 2))
                assert asyncio.get_running_loop().time() - began > least


async def test_one_answer_that_leaves_one_out_proves_nothing(tmp_path: Path) -> None:
    """
    Servers that have different answers cached take turns; who is really gone is missing twice.
    """
    async with dns_server(tmp_path) as server:
        await server.write(glm=["127.0.0.1", "127.0.0.2"])
        async with heard(source(server)) as ear:
            await ear.says(at(1, 2))
            await server.write(glm=["127.0.0.1"])
            await ear.says(at(1))
    without = [len(word) for word in ear.words].index(1)
    assert [len(word) for word in ear.words[:without]] == [2] * without
    assert without >= 2


@pytest.mark.parametrize("record", ["A", "AAAA", "SRV"])
async def test_no_such_name_is_no_word(tmp_path: Path, record: str) -> None:
    """
    Neither is a name without such records: all gone at once, and a server that knows nothing yet, look the same.
    """
    async with dns_server(tmp_path) as server:
        given = {"record": record, "port": None if record == "SRV" else 30000}
        async with heard(source(server, **given)) as ear:
            assert await ear.fails("does not exist") is True
        await server.write(glm=["127.0.0.1" if record != "A" else "::1"])
        async with heard(source(server, **given)) as ear:
            assert await ear.fails("does not contain an answer") is True
    assert ear.words == []


async def test_targets_without_an_address_are_no_word(tmp_path: Path) -> None:
    """
    They are an empty answer, too.
    """
    async with dns_server(tmp_path, "--srv-host=_http._tcp.glm.test,gone.test,80") as server:
        async with heard(source(server, host="_http._tcp.glm.test", record="SRV", port=None)) as ear:
            assert await ear.fails("no target of _http._tcp.glm.test has an address") is True
    assert ear.words == []


async def test_what_was_known_is_known_again_after_an_outage(tmp_path: Path) -> None:
    """
    A name that is gone for a moment, a server that is gone, and one that says that it cannot.
    """
    async with dns_server(tmp_path) as server:
        await server.write(glm=["127.0.0.1", "127.0.0.2"])
        async with heard(source(server, timeout_s=0.5)) as ear:
            await ear.says(at(1, 2))
            await server.write()
            assert await ear.fails("does not exist") is True
            await server.stop()
            assert await ear.fails("lifetime expired") is False
            await server.write(glm=["127.0.0.2", "127.0.0.3"])
            await server.start()
            await ear.says(at(1, 2, 3))
            await ear.says(at(2, 3))
        async with heard(source(server, host="glm.elsewhere")) as ear:
            assert await ear.fails("REFUSED") is False


async def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    """
    After `timeout_s`, and asked again.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        server = DnsServer(tmp_path / "hosts", silent.getsockname()[1])
        async with heard(source(server, timeout_s=0.3)) as ear:
            assert await ear.fails("lifetime expired") is False
            assert await ear.fails("lifetime expired") is False


async def test_a_server_that_cannot_say_is_asked_again(tmp_path: Path) -> None:
    """
    SERVFAIL is no word, and neither is what is no answer at all.
    """
    answers: list[bytes] = []

    class Failing(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.DatagramTransport", transport)

        def datagram_received(self, data: bytes, addr: Any) -> None:
            answer = dns.message.make_response(dns.message.from_wire(data))
            answer.set_rcode(dns.rcode.SERVFAIL)
            answers.append(answer.to_wire())
            self.transport.sendto(b"?" * 40 if len(answers) % 2 else answers[-1], addr)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Failing, local_addr=("127.0.0.1", 0))
    server = DnsServer(tmp_path / "hosts", transport.get_extra_info("sockname")[1])
    try:
        async with heard(source(server, timeout_s=0.5)) as ear:
            assert await ear.fails("SERVFAIL") is False
            assert await ear.fails("SERVFAIL") is False
    finally:
        transport.close()
    assert ear.words == []


async def test_the_system_is_asked_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With its search list, as any pod's: a short name is enough.
    """
    async with dns_server(tmp_path) as server:
        await server.write(glm=["127.0.0.1"])
        conf = tmp_path / "resolv.conf"
        conf.write_text("nameserver 127.0.0.1\nsearch nowhere.test test\noptions ndots:5\n")
        read = dns.resolver.BaseResolver.read_resolv_conf

        def with_port(self: dns.resolver.BaseResolver, _: Any) -> None:
            read(self, str(conf))
            self.port = server.port  # a resolv.conf has none

        monkeypatch.setattr(dns.resolver.BaseResolver, "read_resolv_conf", with_port)
        async with heard(source(server, host="glm", resolver=None)) as ear:
            await ear.says(at(1))
