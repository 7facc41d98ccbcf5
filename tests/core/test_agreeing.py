"""Several routers that never talk: with one secret they send a first turn to the same replica, where all look alike."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.fingerprint import fingerprint
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.prompt import read
from ramjet.core.router import Router
from ramjet.core.visit import Arrival
from ramjet.lab.production import SHIPPED
from ramjet.secret import seed_of

texts = st.text(st.characters(codec="utf-8"), max_size=80)
fleets = st.lists(st.sampled_from([f"http://10.0.0.{host}:30000" for host in range(1, 40)]), min_size=2, unique=True)


def router_of(urls: list[str], names: str) -> Router:
    fleet = Fleet()
    for number, url in enumerate(urls):
        fleet.add(Replica(f"{names}{number}", url))
    return Router(fleet, SHIPPED)


def placed(router: Router, secret: str, texts: list[str], request_id: str = "") -> str:
    """The URL of the replica that a conversation's first turn goes to."""
    roles = ("system", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    prompt = read(body, "chat")
    arrival = Arrival(
        request_id=request_id,
        endpoint="chat",
        body_bytes=len(body),
        stream=True,
        fingerprint=fingerprint(prompt, seed_of(secret)),
    )
    lease = router.place(router.arrive(arrival, 0.0), 0.0)
    assert lease is not None
    return lease.replica.url


@given(urls=fleets, said=st.lists(texts, min_size=2, max_size=2), secret=texts, data=st.data())
def test_two_routers_with_one_secret_place_a_first_turn_alike(
    urls: list[str], said: list[str], secret: str, data: st.DataObject
) -> None:
    """
    Neither the order of the configuration nor what it calls its replicas matters; where they are does.
    """
    others = data.draw(st.permutations(urls))

    here = placed(router_of(urls, "a"), secret, said, "one")
    there = placed(router_of(others, "replica-"), secret, said, "other")

    assert here == there


def test_another_secret_is_another_deal() -> None:
    """
    It is the secret that they agree by: with another one, every other conversation goes elsewhere.
    """
    urls = [f"http://10.0.0.{host}:30000" for host in range(1, 3)]
    moved = sum(
        placed(router_of(urls, "a"), "one secret", ["", f"task {each}"])
        != placed(router_of(urls, "a"), "another", ["", f"task {each}"])
        for each in range(200)
    )

    assert 60 < moved < 140


def test_what_they_agree_on_is_spread_evenly() -> None:
    """
    Each of four replicas gets its part of 400 conversations, give or take what chance does.
    """
    urls = [f"http://10.0.0.{host}:30000" for host in range(1, 5)]
    where = Counter(placed(router_of(urls, "a"), "secret", ["", f"task {each}"]) for each in range(400))

    assert set(where) == set(urls)
    assert min(where.values()) > 60
