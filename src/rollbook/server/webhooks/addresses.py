"""Addresses that a webhook may call. A tenant chooses the URL and the server calls it from inside its network. So a
name is resolved once, every address is checked, and exactly these addresses are called."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
Resolve: TypeAlias = "Callable[[str, int], list[str]]"
"""The addresses of a name and a port."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_resolvers = ThreadPoolExecutor(8, thread_name_prefix="webhook-names")
"""Threads of their own: a slow name server must not delay other work."""


class AddressRefused(Exception):
    """The text may be shown: it names no address that was not in the URL."""


def checked_url(url: str, *, to_private: bool) -> SplitResult:
    """Raises AddressRefused with the reason. A name is not resolved here, because it may change later."""
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError as error:
        raise AddressRefused("is not a URL") from error
    if split.scheme not in ("http", "https") or not split.hostname:
        raise AddressRefused("has to be an address such as https://ci.example.com/hook")
    if split.username is not None or split.password is not None:
        raise AddressRefused("holds a name or a password; the signature is how we are known")
    if split.fragment or port == 0 or not url.isascii() or any(ord(each) <= 32 for each in url):
        raise AddressRefused("has a fragment, a port 0, a space or a letter beyond ASCII")
    literal = _literal(split.hostname)
    if literal is not None and not to_private and not is_public(literal):
        raise AddressRefused(_PRIVATE)
    return split


def resolve(host: str, port: int) -> list[str]:
    """Every address of a name, in the order in which to try them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def addresses_of(
    host: str, port: int, *, to_private: bool, resolve: Resolve = resolve
) -> list[str]:
    """All addresses of the URL, asked for once: whoever calls must use these and not ask again, because the name may
    have another answer by then. One that is not allowed is enough to refuse all."""
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.run_in_executor(_resolvers, lambda: resolve(host, port))
    except (OSError, UnicodeError) as error:
        raise AddressRefused("has a name that cannot be resolved") from error
    parsed = [ipaddress.ip_address(each.partition("%")[0]) for each in addresses]
    if not to_private and not all(map(is_public, parsed)):
        raise AddressRefused(_PRIVATE)
    return addresses


def is_public(address: Address) -> bool:
    """Also checks IPv4 addresses that are written inside IPv6 addresses."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.is_site_local:  # deprecated, and still routed inside some networks
            return False
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is None and address.teredo is not None:
            inner = address.teredo[1]
        if inner is not None:
            return is_public(inner)
    special = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not special


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


_PRIVATE = (
    "leads to an address that is not public; whoever runs the server can allow that "
    "with --set webhooks_to_private=true"
)
