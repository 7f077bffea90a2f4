"""The checksums of S3, computed here, so that no service is asked whether it is right.

CRC32C and CRC-64/NVME are not in the standard library of Python; a table of 256 entries does for what is sent here.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable


def reflected_table(polynomial: int) -> list[int]:
    """What each byte adds to a CRC whose bits are in reversed order."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (polynomial if byte & 1 else 0)
        table.append(byte)
    return table


def table_crc(polynomial: int, bits: int) -> Callable[[bytes], bytes]:
    table, ones = reflected_table(polynomial), (1 << bits) - 1

    def crc(data: bytes) -> bytes:
        value = ones
        for byte in data:
            value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
        return (value ^ ones).to_bytes(bits // 8, "big")

    return crc


def crc32(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")


def sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def etag(data: bytes) -> str:
    """The tag of an object that was put as a whole."""
    return f'"{md5(data).hex()}"'


def etag_of_parts(parts: list[bytes]) -> str:
    """The tag of an object that was put in parts."""
    return f'"{md5(b"".join(map(md5, parts))).hex()}-{len(parts)}"'


def encoded(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


ALGORITHMS: dict[str, Callable[[bytes], bytes]] = {
    "CRC32": crc32,
    "CRC32C": table_crc(0x82F63B78, 32),
    "CRC64NVME": table_crc(0x9A6C9329AC4BC9B5, 64),
    "SHA1": sha1,
    "SHA256": sha256,
}
# Those whose checksum of an object in parts is made of the checksums of its parts.
COMPOSITE = ("CRC32", "CRC32C", "SHA1", "SHA256")
# Those that can say it of the whole object.
FULL_OBJECT = ("CRC32", "CRC32C", "CRC64NVME")
