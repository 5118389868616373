"""A token allows one thing until one moment, and only the server's secret makes one."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.server.blobs.signing import Grant, TokenRefused, UrlSigner

SECRET = b"s" * 32
NOW = 1_800_000_000
grants = st.builds(
    Grant,
    method=st.sampled_from(["GET", "PUT"]),
    key=st.text(string.ascii_letters + "/.-_", min_size=1, max_size=60),
    expires_at=st.integers(NOW + 1, NOW + 10_000),
    content_type=st.none() | st.text(max_size=30),
    most=st.none() | st.integers(0, 2**53),
    filename=st.none() | st.text(max_size=40),
    upload=st.none() | st.text(string.hexdigits, max_size=32),
    part=st.none() | st.integers(1, 10_000),
)


def signer(secret: bytes = SECRET, now: float = NOW) -> UrlSigner:
    return UrlSigner(secret, lambda: now)


def refusal(token: str, method: str = "GET", *, by: UrlSigner | None = None) -> str:
    with pytest.raises(TokenRefused) as refused:
        (by or signer()).opened(token, method)
    return refused.value.code


GRANT = Grant("GET", "episodes/a/b/video.mp4", NOW + 60, "video/mp4")


@given(grants)
def test_a_token_gives_back_what_was_granted(grant: Grant) -> None:
    token = signer().token(grant)
    assert signer().opened(token, grant.method) == grant
    assert set(token) <= set(string.ascii_letters + string.digits + "-_.")


@given(grants, st.integers(0), st.sampled_from(string.ascii_letters + string.digits + "-_.=é"))
def test_a_token_with_any_other_character_anywhere_is_refused(
    grant: Grant, place: int, character: str
) -> None:
    token = signer().token(grant)
    place %= len(token)
    changed = token[:place] + character + token[place + 1 :]
    if changed != token:
        assert refusal(changed, grant.method) == "signature_invalid"


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token[:-1],
        lambda token: token + "A",
        lambda token: token + "=",
        lambda token: token + ".",
        lambda token: token + "/",
        lambda token: token.replace(".", "", 1),
        lambda token: token.partition(".")[0],
        lambda token: token.partition(".")[0] + ".",
        lambda token: "." + token,
        lambda token: "",
        lambda token: "A" * 100_000,
    ],
)
def test_a_token_that_was_cut_or_extended_is_refused(change: object) -> None:
    assert callable(change)
    assert refusal(change(signer().token(GRANT))) == "signature_invalid"


def test_the_signature_of_one_grant_is_worth_nothing_on_another() -> None:
    mine = signer().token(GRANT)
    other = signer().token(Grant("GET", "episodes/z/b/video.mp4", NOW + 60, "video/mp4"))
    swapped = other.partition(".")[0] + "." + mine.partition(".")[2]
    assert refusal(swapped) == "signature_invalid"


def test_a_token_of_another_server_is_refused() -> None:
    assert refusal(signer(b"x" * 32).token(GRANT)) == "signature_invalid"


def test_a_token_ends_at_its_moment_by_the_clock_of_the_server() -> None:
    token = signer().token(GRANT)
    assert signer(now=NOW + 59.9).opened(token, "GET") == GRANT
    assert refusal(token, by=signer(now=NOW + 60)) == "url_expired"
    assert refusal(token, by=signer(now=NOW + 10**9)) == "url_expired"


def test_a_token_is_for_one_method_and_reading_includes_looking() -> None:
    get = signer().token(GRANT)
    put = signer().token(Grant("PUT", "a/b", NOW + 60, "video/mp4"))
    assert signer().opened(get, "HEAD") == GRANT
    for token, method in ((get, "PUT"), (get, "DELETE"), (put, "GET"), (put, "HEAD")):
        assert refusal(token, method) == "method_mismatch"


def test_a_url_is_one_segment_below_blobs() -> None:
    url = signer().url("https://rollbook.example/base/", GRANT)
    assert url == f"https://rollbook.example/base/blobs/{signer().token(GRANT)}"
