"""Which headers pass through, and which end here."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from ramjet.front.marks import request_id_of
from ramjet.http1.connection import Answer, Connection
from ramjet.proxy.headers import to_client, to_replica

HOP_BY_HOP = (
    "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "TE", "Trailer",
    "Transfer-Encoding", "Upgrade",
)  # fmt: skip


OURS = {"x-ramjet-replica", "x-ramjet-reason", "date"}


def fields(given: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in given]


def read(lines: bytes) -> CIMultiDict[str]:
    """What lines say."""
    assert not lines or lines.endswith(b"\r\n")
    pairs = (line.split(": ", 1) for line in lines.decode().split("\r\n")[:-1])
    return CIMultiDict([(name, value) for name, value in pairs])


def sent(*given: tuple[str, str], plain: bool = False) -> CIMultiDict[str]:
    return read(to_replica(fields(given), "r-1", plain=plain))


def answered(*given: tuple[str, str], as_it_came: bool = True, status: int = 200) -> CIMultiDict[str]:
    """What passes of an answer's head; what Ramjet adds is left out."""
    head = to_client(Answer(Connection(), status, b"OK", fields(given)), "glm-1", "home", as_it_came=as_it_came)
    said = read(head.lines)
    assert (said.pop("x-ramjet-replica"), said.pop("x-ramjet-reason")) == ("glm-1", "home")
    assert said.pop("date")
    assert head.is_sized is ("content-length" in said)
    return said


@pytest.mark.parametrize("name", HOP_BY_HOP)
@pytest.mark.parametrize("spell", [str, str.lower, str.upper])
def test_what_belongs_to_one_connection_does_not_pass(name: str, spell: type[str]) -> None:
    """
    RFC 9110's hop-by-hop headers end here in both directions, however they are spelled.
    """
    assert spell(name) not in sent((spell(name), "x"), ("Accept", "a"))
    assert spell(name) not in answered((spell(name), "x"), ("Content-Type", "a"))


@pytest.mark.parametrize("value", ["X-Secret", "x-secret", "close, X-Secret ,TE", "keep-alive,x-secret"])
def test_what_the_connection_header_names_does_not_pass(value: str) -> None:
    """
    A sender may mark any header as meant for the next hop only.
    """
    kept = sent(("Connection", value), ("X-Secret", "s"), ("X-Kept", "k"))

    assert "X-Secret" not in kept
    assert kept["X-Kept"] == "k"
    assert "X-Secret" not in answered(("Connection", value), ("X-Secret", "s"))


def test_the_length_stays_whatever_the_connection_header_names() -> None:
    """
    Without it nobody would know where the answer ends.
    """
    kept = answered(("Connection", "Content-Length"), ("Content-Length", "5"))

    assert list(kept.items()) == [("Content-Length", "5")]


def test_a_connection_header_may_be_given_twice() -> None:
    """
    Both are read.
    """
    kept = answered(("Connection", "X-One"), ("X-One", "1"), ("Connection", "X-Two"), ("X-Two", "2"), ("X-Three", "3"))

    assert list(kept.items()) == [("X-Three", "3")]


@pytest.mark.parametrize("name", ["x-ramjet-probe", "X-Ramjet-Replica", "X-RAMJET-ANYTHING", "x-ramjet-"])
def test_our_own_headers_are_ours(name: str) -> None:
    """
    An engine is not told about Ramjet, and may not speak in its name.
    """
    assert name not in sent((name, "1"))
    assert name not in answered((name, "1"))
    assert "x-ramjetlike" in sent(("x-ramjetlike", "1"))


def test_repeated_headers_keep_their_values_and_their_order() -> None:
    """
    Cookies are set one by one.
    """
    cookies = [("Set-Cookie", "a=1"), ("Vary", "Accept"), ("Set-Cookie", "b=2")]

    assert list(answered(*cookies).items()) == cookies
    assert sent(("X-A", "1"), ("X-A", "2")).getall("X-A") == ["1", "2"]


def test_what_clients_authorise_themselves_with_passes() -> None:
    """
    Keys are the engine's to check.
    """
    given = (("Authorization", "Bearer k"), ("x-api-key", "k"), ("anthropic-version", "2023-06-01"), ("Cookie", "c"))

    kept = sent(*given)

    assert [(name, kept[name]) for name, _ in given] == list(given)


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Expect"])
def test_what_describes_the_connection_to_us_is_made_anew(name: str) -> None:
    """
    The request to the replica has its own host and its own length.
    """
    assert name not in sent((name, "1"))


def test_compression_is_not_offered_where_the_answer_is_looked_into() -> None:
    """
    An answer that can be read is worth more than a small one; elsewhere the client's offer passes.
    """
    assert "Accept-Encoding" not in sent(("Accept-Encoding", "gzip"), plain=True)
    assert sent(("Accept-Encoding", "gzip"), plain=False)["Accept-Encoding"] == "gzip"


def test_the_length_of_an_answer_passes_only_where_its_bytes_do() -> None:
    """
    Where a chunk may be taken out, no length is promised.
    """
    assert answered(("Content-Length", "9"))["Content-Length"] == "9"
    assert "Content-Length" not in answered(("Content-Length", "9"), as_it_came=False)


def test_a_request_has_one_id_on_its_whole_way() -> None:
    """
    The replica gets the id that is logged, and its own does not come back.
    """
    assert sent(("X-Request-Id", "theirs"), ("X-Request-Id", "again")).getall("x-request-id") == ["r-1"]
    assert "X-Request-Id" not in answered(("X-Request-Id", "engine's"))


def test_values_pass_as_the_bytes_that_came() -> None:
    """
    Whatever their encoding: nobody here reads them.
    """
    given = [(b"x-name", "Ren\u00e9".encode()), (b"x-old", b"Ren\xe9")]

    head = to_client(Answer(Connection(), 200, b"OK", given), "glm-1", "home")

    assert head.lines.startswith(b"x-name: Ren\xc3\xa9\r\nx-old: Ren\xe9\r\n")
    assert to_replica(given, "r-1", plain=True).startswith(b"x-name: Ren\xc3\xa9\r\nx-old: Ren\xe9\r\n")


def test_an_answer_says_when_it_was_made() -> None:
    """
    As its replica said; only where that has no clock, Ramjet says it.
    """
    dated = Answer(Connection(), 200, b"OK", [(b"Date", b"then")])
    undated = Answer(Connection(), 200, b"OK", [])

    assert to_client(dated, "r", "home").lines.lower().count(b"date:") == 1
    assert re.search(rb"date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n", to_client(undated, "r", "home").lines)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_has_no_length(status: int) -> None:
    assert "Content-Length" not in answered(("Content-Length", "9"), status=status)


@pytest.mark.parametrize("given", ["r-1", "a" * 128, "A.b_c:d-9", "0af7651916cd43dd8448eb211c80319c"])
def test_a_sane_request_id_is_kept(given: str) -> None:
    """
    Clients find their request in the log by the id they gave it.
    """
    assert request_id_of(CIMultiDict({"X-Request-ID": given})) == given


@pytest.mark.parametrize("given", ["", " ", "a" * 129, "a b", "a\n", "a\r\nX-Evil: 1", '"', "é", "a/b", "../x", "${x}"])
def test_any_other_request_id_is_replaced(given: str) -> None:
    """
    It goes into a log line and into headers, where no surprises are wanted.
    """
    made = request_id_of(CIMultiDict({"X-Request-ID": given}))

    assert made != given
    assert len(made) == 32


def test_every_request_without_an_id_gets_its_own() -> None:
    """
    Two requests are never mixed up.
    """
    assert request_id_of(CIMultiDict()) != request_id_of(CIMultiDict())


NAMES = st.sampled_from(
    ("X-A", "x-b", "Connection", "TE", "X-Ramjet-X", "Accept", "X-Request-Id", "Host", "Set-Cookie")
)


@given(st.lists(st.tuples(NAMES, st.sampled_from(("1", "x-b", "close, x-a", "")))))
def test_whatever_is_left_out_the_rest_is_unchanged(given: list[tuple[str, str]]) -> None:
    """
    Nothing is added to an answer, nothing reordered, no value touched.
    """
    kept, rest = answered(*given), iter(given)

    assert all(pair in rest for pair in kept.items())
    for name in ("Accept", "Set-Cookie", "Host"):
        assert kept.getall(name, []) == [value for given_name, value in given if given_name == name]
