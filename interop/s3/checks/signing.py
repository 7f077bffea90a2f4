"""Who may ask, and how they show it: presigned URLs, the style of the address, and the errors of bad signatures."""

import datetime
import email.message
import urllib.error
import urllib.request
from typing import Any

from .harness import Service, body_of, check, expect, expect_in, refused, virtual_endpoint
from .sigv4 import Answer, Credentials, Request, presigned, signed

HOUR = datetime.timedelta(hours=1)


def fetch(url: str, method: str = "GET", data: bytes | None = None, **headers: str) -> Answer:
    """Uses a URL as somebody without credentials does."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data=data, method=method, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Answer(answer.status, lower(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, lower(error.headers), error.read())


def lower(headers: email.message.Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@check("presigned URLs get, head, put and delete, through every endpoint")
def presign(service: Service) -> None:
    bucket = service.bucket("presign")
    for number, client in enumerate(service.clients):
        place = {"Bucket": bucket, "Key": f"a b/+%\u00fc{number}"}
        data = f"data {number}".encode()
        url = client.generate_presigned_url("put_object", Params=place, ExpiresIn=300)
        answer = fetch(url, "PUT", data, content_type="")
        expect(answer.status, 200, f"a presigned put: {answer}")
        expect(body_of(service.any(number + 1), bucket, place["Key"]), data, "what was put")
        get = client.generate_presigned_url("get_object", Params=place, ExpiresIn=300)
        expect((fetch(get).status, fetch(get).body), (200, data), "a presigned get")
        chosen = place | {"ResponseContentType": "text/css", "ResponseContentDisposition": "inline"}
        answer = fetch(client.generate_presigned_url("get_object", Params=chosen))
        told = (answer.headers.get("content-type"), answer.headers.get("content-disposition"))
        expect(told, ("text/css", "inline"), "the headers that the URL chose")
        head = client.generate_presigned_url("head_object", Params=place)
        expect(fetch(head, "HEAD").status, 200, "a presigned head")
        remove = client.generate_presigned_url("delete_object", Params=place)
        expect(fetch(remove, "DELETE").status, 204, "a presigned delete")
        expect((fetch(get).status, fetch(get).code), (404, "NoSuchKey"), "a presigned get of nothing")


@check("a presigned put demands the headers that were signed")
def presigned_headers(service: Service) -> None:
    bucket = service.bucket("presign-headers")
    params: dict[str, Any] = {"Bucket": bucket, "Key": "key", "ContentType": "text/css", "Metadata": {"a": "b"}}
    url = service.writer.generate_presigned_url("put_object", Params=params)
    answer = fetch(url, "PUT", b"x", content_type="text/css", x_amz_meta_a="b")
    expect(answer.status, 200, f"with the right headers: {answer}")
    head = service.reader.head_object(Bucket=bucket, Key="key")
    expect((head["ContentType"], head["Metadata"]), ("text/css", {"a": "b"}), "what was put")
    answer = fetch(url, "PUT", b"x", content_type="text/html", x_amz_meta_a="b")
    expect((answer.status, answer.code), (403, "SignatureDoesNotMatch"), "with another header")


@check("a presigned URL that expired, was changed, or lasts too long is refused")
def presigned_wrong(service: Service) -> None:
    bucket = service.bucket("presign-wrong")
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"secret")
    service.writer.put_object(Bucket=bucket, Key="other", Body=b"secret")
    get = Request("GET", service.endpoints[-1], f"/{bucket}/key")
    now = datetime.datetime.now(datetime.timezone.utc)
    fresh = presigned(get, service.credentials, 300)
    expect(fresh.send().body, b"secret", "a fresh one")
    old = presigned(get, service.credentials, 300, now - HOUR).send()
    expect((old.status, old.code), (403, "AccessDenied"), "one that expired")
    early = presigned(get, service.credentials, 300, now + HOUR).send()
    expect_in((early.status, early.code), ((403, "AccessDenied"), (403, "RequestTimeTooSkewed")), "one of the future")
    week = presigned(get, service.credentials, 7 * 86_400 + 1).send()
    expect((week.status, week.code), (400, "AuthorizationQueryParametersError"), "one for more than a week")
    fresh.path = f"/{bucket}/other"
    moved = fresh.send()
    expect((moved.status, moved.code), (403, "SignatureDoesNotMatch"), "one for another key")
    fresh.path, fresh.query["X-Amz-Expires"] = f"/{bucket}/key", "400"
    longer = fresh.send()
    expect((longer.status, longer.code), (403, "SignatureDoesNotMatch"), "one that was prolonged")


@check("buckets in the name of the host are found")
def virtual_hosts(service: Service) -> None:
    bucket = service.bucket("virtual")
    clients = [service.client(virtual_endpoint(endpoint), style="virtual") for endpoint in service.endpoints]
    for number, client in enumerate(clients):
        key, data = f"a b/+\u00fc{number}", f"data {number}".encode()
        client.put_object(Bucket=bucket, Key=key, Body=data)
        expect(body_of(service.any(number + 1), bucket, key), data, "what was put by host, got by path")
        expect(body_of(clients[number - 1], bucket, key), data, "what was put by host, got by host")
        expect(key in [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket)["Contents"]], True, "listed")
        answer = fetch(client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}))
        expect(answer.body, data, "a presigned URL with the bucket in the host")
    name = service.bucket_name("by-host")
    service.buckets.append(name)
    clients[0].create_bucket(Bucket=name)
    clients[-1].head_bucket(Bucket=name)
    clients[-1].delete_bucket(Bucket=name)


@check("a wrong secret and an unknown key are told apart")
def bad_credentials(service: Service) -> None:
    bucket, good = service.bucket("credentials"), service.credentials
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"data")
    wrong = Credentials(good.access_key, good.secret_key[::-1], good.region)
    unknown = Credentials(f"{good.access_key[:-4]}ZZZZ", good.secret_key, good.region)
    for who, code in ((wrong, "SignatureDoesNotMatch"), (unknown, "InvalidAccessKeyId")):
        for endpoint in service.endpoints:
            client = service.client(endpoint, who)
            refused(code, 403, "get", client.get_object, Bucket=bucket, Key="key")
            refused(code, 403, "put", client.put_object, Bucket=bucket, Key="key", Body=b"changed")
            refused(code, 403, "list buckets", client.list_buckets)
    expect(body_of(service.reader, bucket, "key"), b"data", "what is there")


@check("nobody is let in without a signature")
def anonymous(service: Service) -> None:
    bucket = service.bucket("anonymous")
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"data")
    for method, path in (("GET", "/key"), ("PUT", "/key"), ("DELETE", "/key"), ("GET", ""), ("DELETE", "")):
        answer = Request(method, service.endpoints[-1], f"/{bucket}{path}", {}, {}, b"").send()
        expect((answer.status, answer.code), (403, "AccessDenied"), f"{method} of {path or 'the bucket'}")
    expect(body_of(service.reader, bucket, "key"), b"data", "what is there")


@check("a clock that is wrong by an hour is refused")
def skewed(service: Service) -> None:
    bucket = service.bucket("skewed")
    now = datetime.datetime.now(datetime.timezone.utc)
    for when in (now - HOUR, now + HOUR):
        request, _ = signed(Request("GET", service.endpoints[-1], f"/{bucket}"), service.credentials, when)
        answer = request.send()
        expect((answer.status, answer.code), (403, "RequestTimeTooSkewed"), f"a request of {when:%H:%M}")


@check("a body that is not the one that was signed is refused")
def swapped_body(service: Service) -> None:
    bucket = service.bucket("swapped")
    request, _ = signed(Request("PUT", service.endpoints[0], f"/{bucket}/key", body=b"good"), service.credentials)
    request.body = b"evil"
    answer = request.send()
    expect((answer.status, answer.code), (400, "XAmzContentSHA256Mismatch"), "the swapped body")
    refused("404", 404, "what was refused", service.reader.head_object, Bucket=bucket, Key="key")


@check("a body need not be signed, and a header that was added is not believed")
def unsigned_payload(service: Service) -> None:
    bucket = service.bucket("unsigned")
    put = Request("PUT", service.endpoints[0], f"/{bucket}/key", body=b"data")
    request, _ = signed(put, service.credentials, payload="UNSIGNED-PAYLOAD")
    expect(request.send().status, 200, "an unsigned body")
    expect(body_of(service.reader, bucket, "key"), b"data", "what was put")
    request.headers["x-amz-meta-added"] = "by somebody else"
    answer = request.send()
    expect((answer.status, answer.code), (403, "AccessDenied"), "a header of S3 that was not signed")


@check("a key without permissions gets nothing, and one that may read cannot write")
def permissions(service: Service) -> None:
    # Only whoever runs the service can make such keys.
    stranger = service.client(service.endpoints[-1], service.named_credentials("S3_STRANGER"))
    visitor = service.client(service.endpoints[-1], service.named_credentials("S3_READER"))
    bucket = service.bucket("permissions")
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"data")
    place = {"Bucket": bucket, "Key": "key"}
    expect(body_of(visitor, bucket, "key"), b"data", "what may be read")
    expect(visitor.list_objects_v2(Bucket=bucket)["KeyCount"], 1, "what may be listed")
    for who in (stranger, visitor):
        refused("AccessDenied", 403, "put", who.put_object, **place, Body=b"x")
        refused("AccessDenied", 403, "delete", who.delete_object, **place)
        refused("AccessDenied", 403, "multipart", who.create_multipart_upload, **place)
        refused("AccessDenied", 403, "remove", who.delete_bucket, Bucket=bucket)
        refused("AccessDenied", 403, "configure", who.delete_bucket_cors, Bucket=bucket)
        copy = {"Bucket": bucket, "Key": "copy", "CopySource": place}
        refused("AccessDenied", 403, "copy", who.copy_object, **copy)
    refused("AccessDenied", 403, "get", stranger.get_object, **place)
    refused("AccessDenied", 403, "head", stranger.head_object, **place)
    refused("AccessDenied", 403, "list", stranger.list_objects_v2, Bucket=bucket)
    expect([entry["Name"] for entry in stranger.list_buckets()["Buckets"]], [], "buckets that a stranger sees")
    expect(body_of(service.writer, bucket, "key"), b"data", "what is there")
