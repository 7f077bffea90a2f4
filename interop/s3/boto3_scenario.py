#!/usr/bin/env python3
"""What AWS's own client for Python sees of an S3 service: every operation, and every way to get it wrong.

    S3_ENDPOINTS="http://127.0.0.1:8403 http://127.0.0.1:8503" AWS_ACCESS_KEY_ID=.. AWS_SECRET_ACCESS_KEY=.. \
        interop/s3/boto3_scenario.py [--check PATTERN]

`interop/s3/run` starts a cluster and calls this with all that it needs. The checks are in `checks`, a module for each
part of S3. What one endpoint was told is asked of another. What is expected is what AWS does; where it has more than
one way, each of them is. S3_STRANGER_ACCESS_KEY_ID and S3_READER_ACCESS_KEY_ID (with their _SECRET_ACCESS_KEY) are
keys without permissions and with that to read all buckets; without them the check of permissions is skipped.
"""

import argparse
import importlib
import sys

from checks import harness

MODULES = ("buckets", "objects", "listing", "multipart", "checksums", "conditional", "signing", "configuration")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", default="", metavar="PATTERN", help="only checks whose module or name has this")
    arguments = parser.parse_args()
    for module in MODULES:
        importlib.import_module(f"checks.{module}")
    # A module that needs another one has registered it first; the order here is the one to read.
    harness.CHECKS.sort(key=lambda entry: MODULES.index(entry[0]))
    return harness.run_all(arguments.check, "boto3")


if __name__ == "__main__":
    sys.exit(main())
