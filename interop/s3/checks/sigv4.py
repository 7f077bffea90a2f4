"""Requests signed by hand.

A client library signs every request well, at the time it is. This module signs as it is told: at another time, with
chunks that were tampered with, with no more headers than wanted. What comes back is the bare answer.
"""

import datetime
import hashlib
import hmac
import http.client
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field

UNSIGNED = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
SECONDS_MAX = 60


@dataclass(frozen=True)
class Credentials:
    """Who signs."""

    access_key: str
    secret_key: str
    region: str

    def scope(self, when: datetime.datetime) -> str:
        return f"{when:%Y%m%d}/{self.region}/s3/aws4_request"

    def sign(self, when: datetime.datetime, text: str) -> str:
        """The signature of a text, with the key of that day."""
        key = f"AWS4{self.secret_key}".encode()
        for part in self.scope(when).split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.digest(key, text.encode(), "sha256").hex()


@dataclass(frozen=True)
class Answer:
    """What the service said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error."""
        try:
            return ElementTree.fromstring(self.body).findtext("Code", "")
        except ElementTree.ParseError:
            return ""

    def __str__(self) -> str:
        return f"{self.status} {self.code or self.body[:200]!r}"


@dataclass
class Request:
    """One request. Its path and its query are as they are before they are encoded."""

    method: str
    endpoint: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def host(self) -> str:
        return self.headers.get("host", urllib.parse.urlsplit(self.endpoint).netloc)

    @property
    def target(self) -> str:
        query = canonical_query(self.query)
        return quoted_path(self.path) + (f"?{query}" if query else "")

    def send(self) -> Answer:
        """Sends it as it is."""
        parts = urllib.parse.urlsplit(self.endpoint)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=SECONDS_MAX)
        headers = {"host": self.host, "content-length": str(len(self.body)), **self.headers}
        try:
            connection.request(self.method, self.target, self.body, headers)
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()


def quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")


def quoted_path(path: str) -> str:
    return urllib.parse.quote(path, safe="/-_.~")


def canonical_query(query: dict[str, str]) -> str:
    return "&".join(f"{quoted(name)}={quoted(value)}" for name, value in sorted(query.items()))


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def stamp(when: datetime.datetime) -> str:
    return f"{when:%Y%m%dT%H%M%SZ}"


def text_to_sign(request: Request, when: datetime.datetime, scope: str, headers: dict[str, str], payload: str) -> str:
    """What is signed of a request."""
    names = sorted(headers)
    canonical = [
        request.method,
        quoted_path(request.path),
        canonical_query(request.query),
        *(f"{name}:{headers[name].strip()}" for name in names),
        "",
        ";".join(names),
        payload,
    ]
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    return "\n".join(["AWS4-HMAC-SHA256", stamp(when), scope, digest])


def signed(
    request: Request,
    credentials: Credentials,
    when: datetime.datetime | None = None,
    payload: str | None = None,
) -> tuple[Request, str]:
    """The request with a signature in its headers, and that signature."""
    when = when or now()
    payload = payload or hashlib.sha256(request.body).hexdigest()
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers |= {"host": request.host, "x-amz-date": stamp(when), "x-amz-content-sha256": payload}
    scope = credentials.scope(when)
    signature = credentials.sign(when, text_to_sign(request, when, scope, headers, payload))
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={';'.join(sorted(headers))}, Signature={signature}"
    )
    headers["authorization"] = authorization
    return Request(request.method, request.endpoint, request.path, request.query, headers, request.body), signature


def presigned(
    request: Request, credentials: Credentials, seconds: int, when: datetime.datetime | None = None
) -> Request:
    """The request with a signature in its query, which is good for so many seconds."""
    when = when or now()
    scope = credentials.scope(when)
    headers = {"host": request.host, **{name.lower(): value for name, value in request.headers.items()}}
    query = request.query | {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": stamp(when),
        "X-Amz-Expires": str(seconds),
        "X-Amz-SignedHeaders": ";".join(sorted(headers)),
    }
    unsigned = Request(request.method, request.endpoint, request.path, query, headers, request.body)
    signature = credentials.sign(when, text_to_sign(unsigned, when, scope, headers, UNSIGNED))
    unsigned.query = query | {"X-Amz-Signature": signature}
    return unsigned


@dataclass
class Chunked:
    """A body in chunks, as `aws-chunked` has it, and how it is signed."""

    chunks: list[bytes]
    is_signed: bool = True
    trailer: tuple[str, str] | None = None
    # What is sent in place of the true signature of a chunk or of the trailer, by its number. Nothing: none is sent.
    forged: dict[int, str] = field(default_factory=dict)

    @property
    def payload(self) -> str:
        """What stands in the place of the digest of the body."""
        kind = "AWS4-HMAC-SHA256-PAYLOAD" if self.is_signed else "UNSIGNED-PAYLOAD"
        return f"STREAMING-{kind}{'-TRAILER' if self.trailer else ''}"

    def put(
        self,
        endpoint: str,
        path: str,
        credentials: Credentials,
        declared: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> Request:
        """A PUT of the body. `declared` is the length that the header claims, if not the true one."""
        length = sum(map(len, self.chunks)) if declared is None else declared
        named = {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(length), **(headers or {})}
        if self.trailer:
            named["x-amz-trailer"] = self.trailer[0]
        when = now()
        request, seed = signed(Request("PUT", endpoint, path, {}, named), credentials, when, self.payload)
        request.body = b"".join(self.framed(credentials, when, seed))
        return request

    def framed(self, credentials: Credentials, when: datetime.datetime, previous: str) -> Iterator[bytes]:
        """The body as it goes over the wire. Every signature covers the one before it."""
        for number, chunk in enumerate([*self.chunks, b""]):
            extension = ""
            if self.is_signed:
                text = [EMPTY_SHA256, hashlib.sha256(chunk).hexdigest()]
                previous = chain(credentials, when, "PAYLOAD", previous, text)
                told = self.forged.get(number, previous)
                extension = f";chunk-signature={told}" if told else ""
            end = b"\r\n" if chunk or not self.trailer else b""
            yield f"{len(chunk):x}{extension}\r\n".encode() + chunk + end
        if self.trailer:
            name, value = self.trailer
            yield f"{name}:{value}\r\n".encode()
            if self.is_signed:
                digest = hashlib.sha256(f"{name}:{value}\n".encode()).hexdigest()
                signature = chain(credentials, when, "TRAILER", previous, [digest])
                signature = self.forged.get(len(self.chunks) + 1, signature)
                yield f"x-amz-trailer-signature:{signature}\r\n".encode() if signature else b""
            yield b"\r\n"


def chain(credentials: Credentials, when: datetime.datetime, kind: str, previous: str, text: list[str]) -> str:
    """The signature that follows the previous one."""
    lines = [f"AWS4-HMAC-SHA256-{kind}", stamp(when), credentials.scope(when), previous, *text]
    return credentials.sign(when, "\n".join(lines))
