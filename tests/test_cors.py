"""What pages of the web are told."""

import pytest

from antiphon.transport.cors import Cors, loopback

PAGE = "https://page.example"


def test_no_page_no_word() -> None:
    assert Cors("*").headers(None) == {}


def test_everybody() -> None:
    said = Cors("*").headers(PAGE)
    assert said["Access-Control-Allow-Origin"] == "*"
    exposed = said["Access-Control-Expose-Headers"].split(", ")
    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-requests"} <= set(exposed)
    assert "Access-Control-Allow-Credentials" not in said


def test_some() -> None:
    cors = Cors("https://other.example, https://page.example/")
    assert cors.headers(PAGE)["Access-Control-Allow-Origin"] == PAGE
    assert cors.headers(PAGE)["Vary"] == "Origin"
    assert cors.headers("https://evil.example") == {"Vary": "Origin"}
    assert cors.headers("https://page.example.evil.example") == {"Vary": "Origin"}
    assert cors.preflight("https://evil.example", "authorization") == {}


@pytest.mark.parametrize("origin", [PAGE, "null"])
def test_none(origin: str) -> None:
    assert "Access-Control-Allow-Origin" not in Cors("").headers(origin)


def test_a_preflight_grants_the_headers_of_openais_clients_and_no_others() -> None:
    wanted = "authorization, Content-Type,openai-organization,x-stainless-os,x-evil"
    said = Cors("*").preflight(PAGE, wanted)
    assert said["Access-Control-Allow-Headers"] == (
        "authorization, content-type, openai-organization, x-stainless-os"
    )
    assert "POST" in said["Access-Control-Allow-Methods"]
    assert "authorization" in Cors("*").preflight(PAGE, "")["Access-Control-Allow-Headers"]


@pytest.mark.parametrize(
    ("origin", "may"),
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.1", True),
        ("https://page.example", False),
        ("null", False),
    ],
)
def test_without_a_key_all_means_pages_of_this_machine(origin: str, may: bool):
    cors = Cors("*", local=lambda: True)
    assert cors.allows(origin) is may
    assert ("Access-Control-Allow-Origin" in cors.headers(origin)) is may
    assert Cors("*, https://page.example", local=lambda: True).allows("https://page.example")


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        *(("localhost", True), ("127.0.0.1:8080", True), ("[::1]:8080", True), ("app.localhost:1", True)),
        *(("evil.example:8080", False), ("192.168.1.2", False), ("[::1", False), ("", False)),
    ],
)
def test_a_host_of_this_machine(host: str, ours: bool):
    assert loopback(f"//{host}") is ours
