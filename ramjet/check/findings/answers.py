"""Whether a replica answers: nobody listens, its health page says no, a key is wanted, no models are listed."""

from __future__ import annotations

from collections.abc import Iterator

from ramjet.check.findings.values import Finding, Found, Ours
from ramjet.engines.facts import Answer

UNAUTHORISED = (401, 403)
_ABSENT = (404, 405, 501)
_SLOW_SHARE = 0.5
"""Of the time that a probe may take: a health page that needs more of it when idle will need all of it when busy."""


def answers(seen: Found, ours: Ours) -> Iterator[Finding]:
    """What is wrong with the way in."""
    if not seen.reached:
        yield _unreachable(seen, ours)
        return
    refused = next((each for each in (seen.listing, seen.health) if each.status in UNAUTHORISED), None)
    if refused is not None:
        yield Finding(
            id="key_refused",
            severity="fault",
            text=f"It answers {refused.status} for {refused.path}: it asks for a key, or does not take the one it was given.",
            figures={"path": refused.path, "status": refused.status},
            remedy="give its key as replicas.api_key; on a health page that asks for none of its own, see health.path",
        )
    if not seen.health.good and seen.health.status not in UNAUTHORISED:
        yield _ill(seen.health)
    elif seen.health.took_s is not None and seen.health.took_s > _SLOW_SHARE * ours.health_timeout_s:
        yield Finding(
            id="health_slow",
            severity="warning",
            text=f"Its health page took {seen.health.took_s:.1f} s, and a probe may take {ours.health_timeout_s:g} s: when it "
            "is busy, probes will fail.",
            figures={"took_s": round(seen.health.took_s, 3), "timeout_s": ours.health_timeout_s},
            remedy="raise health.timeout_s, or take a page that costs the engine less as health.path",
        )
    if not seen.models and seen.listing.status not in UNAUTHORISED:
        yield _unlisted(seen.listing)


def _unreachable(seen: Found, ours: Ours) -> Finding:
    why = seen.health.error or seen.listing.error or "no answer"
    remedy = {
        "connection refused": f"nobody listens at {seen.url}: start the engine, or correct replicas.url",
        "cannot be reached": f"see that {seen.url} is its address, and that name, route and firewall let this machine there",
    }.get(why, f"see the engine's log: it takes connections at {seen.url} and answers nothing of use")
    return Finding(
        id="unreachable",
        severity="fault",
        text=f"It cannot be asked for {ours.health_path}: {why}.",
        figures={"url": seen.url, "error": why},
        remedy=remedy,
    )


def _ill(health: Answer) -> Finding:
    if health.status is None:
        text = f"Its health page {health.path} gives no answer: {health.error}."
        remedy = "see the engine's log, or set health.path to a page that it answers"
    elif health.status in _ABSENT:
        text = f"Its health page {health.path} answers {health.status}: there is no such page."
        remedy = "set health.path to a page that it has; engines mostly have /health, and any has /v1/models"
    elif health.status == 503:
        text = f"Its health page {health.path} answers 503: it is still loading, or says that it is ill."
        remedy = "wait until it has loaded; if it stays so, see the engine's log"
    else:
        text = f"Its health page {health.path} answers {health.status}, and only a 2xx is good."
        remedy = "see the engine's log, or set health.path to a page that answers 200; redirects are not followed"
    return Finding(
        id="health_failing",
        severity="fault",
        text=f"{text} Ramjet would send it nothing.",
        figures={"path": health.path, "status": health.status, "error": health.error},
        remedy=remedy,
    )


def _unlisted(listing: Answer) -> Finding:
    if listing.good:
        said = "and names none"
    elif listing.status is not None:
        said = f"which answers {listing.status}"
    else:
        said = f"which gives no answer: {listing.error}"
    return Finding(
        id="models_unlisted",
        severity="note",
        text=f"It lists no models on {listing.path}, {said}: Ramjet takes it to serve any model that a request names.",
        figures={"path": listing.path, "status": listing.status, "error": listing.error},
        remedy="if the replicas serve different models, let each of them list its own",
    )
