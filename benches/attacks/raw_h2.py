"""HTTP/2 by hand, for the attacks here: no more than indexed requests over plain connections need. Standard library only."""
import socket, struct


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def integer(value, bits, first):
    most = (1 << bits) - 1
    if value < most:
        return bytes((first | value,))
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + [value])


def string(text):
    return integer(len(text), 7, 0) + text


def indexed(index):
    return integer(index, 7, 0x80)


def remembered(name, value):
    """A literal field that goes into the dynamic table."""
    return b"\x40" + string(name) + string(value)


def forgotten(name, value):
    """A literal field that does not."""
    return b"\x00" + string(name) + string(value)


GET, HTTP, SLASH = indexed(2), indexed(6), indexed(4)


class Connection:
    """A connection whose settings are sent and whose windows are never in the way. It sends from `source`."""

    def __init__(self, port, source="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", port), 5, (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(">HI", 4, 2**31 - 1)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + frame(8, 0, 0, struct.pack(">I", 2**31 - 65536)))
        self.stream, self.sent, self.answered, self.rest = -1, 0, 0, b""

    def request(self, block):
        """The frame of one more request."""
        self.stream += 2
        return frame(1, 5, self.stream, block)

    def send(self, data):
        self.socket.sendall(data)
        self.sent += len(data)

    def read(self):
        """Reads what is there and counts the streams that ended; False if the connection did."""
        self.socket.settimeout(0.0001)
        try:
            data = self.socket.recv(1 << 18)
        except (TimeoutError, BlockingIOError):
            return True
        except OSError:
            return False
        finally:
            self.socket.settimeout(5)
        if not data:
            return False
        data, at = self.rest + data, 0
        while len(data) - at >= 9:
            length = int.from_bytes(data[at:at + 3], "big")
            if len(data) - at < 9 + length:
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind in (0, 1) and flags & 1 or kind == 3:
                self.answered += 1
            if kind == 4 and not flags & 1:
                self.socket.sendall(frame(4, 1, 0))
            if kind == 7:
                return False
            at += 9 + length
        self.rest = data[at:]
        return True
