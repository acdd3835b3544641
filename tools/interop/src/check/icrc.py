"""Checks the ICRC of every RoCEv2 packet of a capture, with nothing but zlib's CRC-32.

Usage: icrc.py FILE.pcap      prints {"packets": N, "bad": [numbers of frames, from 1]}

The ICRC (InfiniBand Architecture, annex A17) is the CRC-32 of Ethernet over: eight bytes of
ones in place of the local route header, the IP and UDP headers, the BTH and what follows up to
the ICRC; with ones for all that changes on the way: traffic class, flow label and hop limit of
IPv6, TOS, TTL and header checksum of IPv4, the UDP checksum, and byte 4 of the BTH.

One exception, by name: of a FLUSH, rdma_rxe covers everything from the BTH on twice.
"""

import json
import struct
import sys
import zlib

FLUSH = 0x1C


def frames(path):
    with open(path, "rb") as capture:
        header = capture.read(24)
        if struct.unpack("<I", header[:4])[0] != 0xA1B2C3D4:
            raise SystemExit(f"{path} is not a pcap file of this byte order")
        while True:
            record = capture.read(16)
            if len(record) < 16:
                return
            yield capture.read(struct.unpack("<I", record[8:12])[0])


def ip_of(frame):
    kind, at = frame[12:14], 14
    while kind == b"\x81\x00":
        kind, at = frame[at + 2 : at + 4], at + 4
    return kind, at


def udp_of(frame):
    """Masked headers, and where the UDP payload starts and ends."""
    kind, at = ip_of(frame)
    if kind == b"\x08\x00" and frame[at + 9] == 17:
        ihl = (frame[at] & 15) * 4
        head = bytearray(frame[at : at + ihl + 8])
        head[1] = head[8] = head[10] = head[11] = 0xFF
        udp = ihl
    elif kind == b"\x86\xdd" and frame[at + 6] == 17:
        head = bytearray(frame[at : at + 48])
        head[0] |= 0x0F
        head[1] = head[2] = head[3] = head[7] = 0xFF
        udp = 40
    else:
        return None
    if head[udp + 2 : udp + 4] != b"\x12\xb7":
        return None
    length = struct.unpack(">H", head[udp + 4 : udp + 6])[0]
    head[udp + 6] = head[udp + 7] = 0xFF
    start = at + udp + 8
    return bytes(head), start, start + length - 8


def is_right(frame, head, start, end):
    if end > len(frame) or end - start < 16:
        return False
    bth = bytearray(frame[start : start + 12])
    bth[4] = 0xFF
    crc = zlib.crc32(b"\xff" * 8 + head + bytes(bth))
    crc = zlib.crc32(frame[start + 12 : end - 4], crc)
    if frame[start] == FLUSH and struct.pack("<I", crc) != frame[end - 4 : end]:
        crc = zlib.crc32(frame[start : end - 4], crc)
    return struct.pack("<I", crc) == frame[end - 4 : end]


def main():
    packets, bad = 0, []
    for number, frame in enumerate(frames(sys.argv[1]), 1):
        found = udp_of(frame) if len(frame) >= 42 else None
        if found is None:
            continue
        packets += 1
        if not is_right(frame, *found):
            bad.append(number)
    print(json.dumps({"packets": packets, "bad": bad}))


main()
