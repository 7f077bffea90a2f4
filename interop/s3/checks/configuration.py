"""What is set on buckets and objects: lifecycles, CORS, tags, versions; and what is not supported, and says so."""

import datetime
from typing import Any

from .harness import Service, check, expect, expect_in, refused, refused_as
from .sigv4 import Answer, Request
from .signing import fetch


@check("a lifecycle is set, read and removed")
def lifecycle(service: Service) -> None:
    bucket, client = service.bucket("lifecycle"), service.reader
    missing = ("NoSuchLifecycleConfiguration", 404, "what was never set")
    refused(*missing, client.get_bucket_lifecycle_configuration, Bucket=bucket)
    midnight = datetime.datetime(2035, 1, 1, tzinfo=datetime.timezone.utc)
    rules: list[dict[str, Any]] = [
        {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 30}},
        {"ID": "date", "Status": "Disabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Date": midnight}},
        {
            "ID": "unfinished",
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        },
    ]
    put = service.writer.put_bucket_lifecycle_configuration
    put(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
    for each in service.clients:
        told = each.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
        expect(sorted(told, key=lambda rule: rule["ID"]), sorted(rules, key=lambda rule: rule["ID"]), "the rules")
    put(Bucket=bucket, LifecycleConfiguration={"Rules": rules[:1]})
    told = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    expect(told, rules[:1], "the rules that replaced them")
    service.writer.delete_bucket_lifecycle(Bucket=bucket)
    refused(*missing, client.get_bucket_lifecycle_configuration, Bucket=bucket)


@check("a lifecycle that makes no sense is refused")
def bad_lifecycle(service: Service) -> None:
    bucket, put = service.bucket("bad-lifecycle"), service.writer.put_bucket_lifecycle_configuration
    rule: dict[str, Any] = {"ID": "a", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    noon = datetime.datetime(2035, 1, 1, 12, tzinfo=datetime.timezone.utc)
    cases: dict[str, list[dict[str, Any]]] = {
        "no days": [rule | {"Expiration": {"Days": 0}}],
        "a date that is no midnight": [rule | {"Expiration": {"Date": noon}}],
        "twice the same id": [rule, rule | {"Filter": {"Prefix": "x"}}],
        "a rule that does nothing": [{name: rule[name] for name in ("ID", "Status", "Filter")}],
        "a long id": [rule | {"ID": "i" * 256}],
    }
    for what, rules in cases.items():
        codes = ("InvalidArgument", "InvalidRequest", "MalformedXML")
        refused(codes, 400, what, put, Bucket=bucket, LifecycleConfiguration={"Rules": rules})
    get = service.reader.get_bucket_lifecycle_configuration
    refused("NoSuchLifecycleConfiguration", 404, "what is set", get, Bucket=bucket)


CORS: list[dict[str, Any]] = [
    {
        "AllowedOrigins": ["https://*.example.com"],
        "AllowedMethods": ["GET", "PUT"],
        "AllowedHeaders": ["x-amz-*", "content-type"],
        "ExposeHeaders": ["ETag"],
        "MaxAgeSeconds": 600,
    },
    {"AllowedOrigins": ["*"], "AllowedMethods": ["HEAD"]},
]


@check("CORS rules are set, read and removed")
def cors(service: Service) -> None:
    bucket, missing = service.bucket("cors"), ("NoSuchCORSConfiguration", 404, "what is not set")
    refused(*missing, service.reader.get_bucket_cors, Bucket=bucket)
    service.writer.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": CORS})
    for client in service.clients:
        expect(client.get_bucket_cors(Bucket=bucket)["CORSRules"], CORS, "the rules")
    service.writer.delete_bucket_cors(Bucket=bucket)
    refused(*missing, service.reader.get_bucket_cors, Bucket=bucket)


def preflight(service: Service, bucket: str, origin: str, method: str, headers: str = "") -> Answer:
    """What a browser asks before it lets a page do something."""
    asked = {"origin": origin, "access-control-request-method": method}
    if headers:
        asked["access-control-request-headers"] = headers
    return Request("OPTIONS", service.endpoints[-1], f"/{bucket}/key", {}, asked).send()


def allowed(answer: Answer) -> tuple[int, str | None]:
    return answer.status, answer.headers.get("access-control-allow-origin")


@check("browsers are answered by the CORS rules")
def cors_requests(service: Service) -> None:
    bucket, origin = service.bucket("cors-requests"), "https://app.example.com"
    expect(preflight(service, bucket, origin, "GET").status, 403, "a preflight without rules")
    service.writer.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": CORS})
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"data")
    answer = preflight(service, bucket, origin, "PUT", "Content-Type, x-amz-meta-a")
    expect(allowed(answer), (200, origin), f"a preflight: {answer}")
    methods = set(answer.headers.get("access-control-allow-methods", "").replace(" ", "").split(","))
    expect(methods >= {"GET", "PUT"}, True, f"the methods are in {methods}")
    headers = answer.headers.get("access-control-allow-headers", "").lower().replace(" ", "").split(",")
    expect({"content-type", "x-amz-meta-a"} <= set(headers), True, f"the headers are in {headers}")
    expect(answer.headers.get("access-control-max-age"), "600", "for how long")
    for what, bad in (
        ("another origin", preflight(service, bucket, "https://example.org", "PUT")),
        ("another method", preflight(service, bucket, origin, "DELETE")),
        ("another header", preflight(service, bucket, origin, "PUT", "authorization")),
    ):
        expect((allowed(bad), bad.code), ((403, None), "AccessForbidden"), f"a preflight of {what}")
    expect(allowed(preflight(service, bucket, "https://example.org", "HEAD"))[0], 200, "an origin that is any")
    url = service.reader.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "key"})
    got = fetch(url, origin=origin)
    expect((*allowed(got), got.body), (200, origin, b"data"), "a get with an origin")
    expect(got.headers.get("access-control-expose-headers"), "ETag", "what a page may read")
    expect(allowed(fetch(url, origin="https://example.org")), (200, None), "a get with another origin")


def tags(service: Service, bucket: str, key: str) -> dict[str, str]:
    told = service.reader.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]
    return {tag["Key"]: tag["Value"] for tag in told}


def tag_set(wanted: dict[str, str]) -> dict[str, Any]:
    return {"TagSet": [{"Key": name, "Value": value} for name, value in wanted.items()]}


@check("objects are tagged: with a put, later, in copies and in parts")
def tagging(service: Service) -> None:
    bucket, client = service.bucket("tags"), service.writer
    client.put_object(Bucket=bucket, Key="key", Body=b"x", Tagging="a=b&with%20space=c%2Bd")
    expect(tags(service, bucket, "key"), {"a": "b", "with space": "c+d"}, "tags of a put")
    expect(service.reader.get_object(Bucket=bucket, Key="key").get("TagCount"), 2, "the count of tags")
    modified = service.reader.head_object(Bucket=bucket, Key="key")["LastModified"]
    client.put_object_tagging(Bucket=bucket, Key="key", Tagging=tag_set({"new": "\u00fc", "empty": ""}))
    expect(tags(service, bucket, "key"), {"new": "\u00fc", "empty": ""}, "tags that replaced them")
    head = service.reader.head_object(Bucket=bucket, Key="key")
    expect(head["LastModified"], modified, "tags do not modify an object")
    source: dict[str, Any] = {"Bucket": bucket, "CopySource": {"Bucket": bucket, "Key": "key"}}
    client.copy_object(**source, Key="copy")
    expect(tags(service, bucket, "copy"), {"new": "\u00fc", "empty": ""}, "tags of a copy")
    client.copy_object(**source, Key="other", TaggingDirective="REPLACE", Tagging="z=1")
    expect(tags(service, bucket, "other"), {"z": "1"}, "new tags of a copy")
    client.delete_object_tagging(Bucket=bucket, Key="key")
    expect(tags(service, bucket, "key"), {}, "tags after they were removed")
    upload = client.create_multipart_upload(Bucket=bucket, Key="parts", Tagging="p=q")["UploadId"]
    place: dict[str, Any] = {"Bucket": bucket, "Key": "parts", "UploadId": upload}
    part = {"PartNumber": 1, "ETag": client.upload_part(**place, PartNumber=1, Body=b"x")["ETag"]}
    client.complete_multipart_upload(**place, MultipartUpload={"Parts": [part]})
    expect(tags(service, bucket, "parts"), {"p": "q"}, "tags of an object in parts")
    client.put_object(Bucket=bucket, Key="other", Body=b"y")
    expect(tags(service, bucket, "other"), {}, "tags after a put without")


@check("tags that are too many, too long or doubled are refused")
def bad_tags(service: Service) -> None:
    bucket, put = service.bucket("bad-tags"), service.writer.put_object_tagging
    service.writer.put_object(Bucket=bucket, Key="key", Body=b"x")
    put(Bucket=bucket, Key="key", Tagging=tag_set({f"k{number}": "v" for number in range(10)}))
    cases: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "eleven": (("BadRequest", "InvalidTag"), tag_set({f"k{number}": "v" for number in range(11)})),
        "a long key": (("InvalidTag",), tag_set({"k" * 129: "v"})),
        "a long value": (("InvalidTag",), tag_set({"k": "v" * 257})),
        "twice the same": (("InvalidTag",), {"TagSet": [{"Key": "k", "Value": "1"}, {"Key": "k", "Value": "2"}]}),
    }
    for what, (codes, tagging_set) in cases.items():
        refused(codes, 400, what, put, Bucket=bucket, Key="key", Tagging=tagging_set)
    expect(len(tags(service, bucket, "key")), 10, "tags after the refusals")
    refused("NoSuchKey", 404, "tags for nothing", put, Bucket=bucket, Key="missing", Tagging=tag_set({"a": "b"}))
    refused("NoSuchKey", 404, "tags of nothing", service.reader.get_object_tagging, Bucket=bucket, Key="missing")


@check("what has no versions has one, called null")
def versions(service: Service) -> None:
    bucket, client = service.bucket("versions"), service.reader
    expect("Status" in client.get_bucket_versioning(Bucket=bucket), False, "versioning has a status")
    for key in ("a/1", "a/2", "b"):
        service.writer.put_object(Bucket=bucket, Key=key, Body=b"x")
        service.writer.put_object(Bucket=bucket, Key=key, Body=b"new")
    listed = client.list_object_versions(Bucket=bucket)
    told = [(entry["Key"], entry["VersionId"], entry["IsLatest"], entry["Size"]) for entry in listed["Versions"]]
    expect(told, [(key, "null", True, 3) for key in ("a/1", "a/2", "b")], "the versions")
    expect(listed.get("DeleteMarkers"), None, "delete markers")
    folded = client.list_object_versions(Bucket=bucket, Delimiter="/")
    expect([entry["Prefix"] for entry in folded["CommonPrefixes"]], ["a/"], "folded versions")
    pages = client.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": 1})
    keys = [entry["Key"] for page in pages for entry in page.get("Versions", [])]
    expect(keys, ["a/1", "a/2", "b"], "versions in pages of one")
    got = client.get_object(Bucket=bucket, Key="b", VersionId="null")["Body"].read()
    expect(got, b"new", "the version called null")
    other: dict[str, str] = {"Bucket": bucket, "Key": "b", "VersionId": "other"}
    refused_as({"InvalidArgument": 400, "NoSuchVersion": 404}, "another version", client.get_object, **other)
    client.delete_object(Bucket=bucket, Key="b", VersionId="null")
    doomed = {"Objects": [{"Key": "a/1", "VersionId": "null"}]}
    told_deleted = client.delete_objects(Bucket=bucket, Delete=doomed)
    expect([entry["Key"] for entry in told_deleted.get("Deleted", [])], ["a/1"], "deleted by version")
    rest = [entry["Key"] for entry in service.writer.list_object_versions(Bucket=bucket)["Versions"]]
    expect(rest, ["a/2"], "what is left")


@check("the private ACL and the standard class are what there is")
def defaults(service: Service) -> None:
    bucket, client = service.bucket("defaults"), service.writer
    client.put_object(Bucket=bucket, Key="key", Body=b"x", ACL="private", StorageClass="STANDARD")
    client.put_object_acl(Bucket=bucket, Key="key", ACL="private")
    told = service.reader.list_objects_v2(Bucket=bucket)["Contents"][0]["StorageClass"]
    expect(told, "STANDARD", "the class")
    expect_in(service.reader.head_object(Bucket=bucket, Key="key").get("StorageClass"), (None, "STANDARD"), "in head")


@check("what is not supported says so, and is not half done")
def unsupported(service: Service) -> None:
    bucket, client = service.bucket("unsupported"), service.writer
    client.put_object(Bucket=bucket, Key="key", Body=b"x")
    place: dict[str, Any] = {"Bucket": bucket, "Key": "key"}
    new: dict[str, Any] = {"Bucket": bucket, "Key": "new", "Body": b"x"}
    customer = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
    website = {"IndexDocument": {"Suffix": "index.html"}}
    locked = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": datetime.datetime(2035, 1, 1)}
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "versioning": (
            client.put_bucket_versioning,
            {"Bucket": bucket, "VersioningConfiguration": {"Status": "Enabled"}},
        ),
        "a policy": (client.put_bucket_policy, {"Bucket": bucket, "Policy": "{}"}),
        "a website": (client.put_bucket_website, {"Bucket": bucket, "WebsiteConfiguration": website}),
        "an ACL of an object": (client.put_object_acl, place | {"ACL": "public-read"}),
        "an ACL of a bucket": (client.put_bucket_acl, {"Bucket": bucket, "ACL": "public-read"}),
        "a put with an ACL": (client.put_object, new | {"ACL": "public-read"}),
        "a put with a grant": (client.put_object, new | {"GrantRead": 'uri="http://example.com/"'}),
        "encryption by the service": (client.put_object, new | {"ServerSideEncryption": "aws:kms"}),
        "a lock": (client.put_object, new | locked),
        "a legal hold": (client.put_object, new | {"ObjectLockLegalHoldStatus": "ON"}),
        "selection": (
            client.select_object_content,
            place
            | {
                "Expression": "select 1",
                "ExpressionType": "SQL",
                "InputSerialization": {"CSV": {}},
                "OutputSerialization": {"CSV": {}},
            },
        ),
    }
    problems = []
    for what, (call, arguments) in calls.items():
        try:
            refused("NotImplemented", 501, what, call, **arguments)
        except Exception as error:  # All of them are told, not just the first.
            problems.append(str(error))
    # A key of the customer goes over TLS only, which the client knows.
    if service.endpoints[0].startswith("https"):
        refused("NotImplemented", 501, "encryption by the customer", client.put_object, **new, **customer)
    expect(problems, [], "what is not refused with 501 NotImplemented")
    refused("404", 404, "what was refused", service.reader.head_object, Bucket=bucket, Key="new")
