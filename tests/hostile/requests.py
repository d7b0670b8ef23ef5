"""Requests that no page sends: headers, bodies and bytes that must be refused, never fail."""

HOSTS = [
    "", " ", "[", "]", "[::1", "[]", "[::1]x", "[fe80::1%25eth0]", "a]b[", "::1", "127.0.0.1:",
    "127.0.0.1:port", "127.0.0.1:999999", "127.0.0.1:-1", "127.0.0.1/x", "127.0.0.1?x",
    "127.0.0.1#x", "user@127.0.0.1", "evil.example@localhost", "localhost\\evil.example",
    "localhost evil.example", "localhost,evil.example", "localhost.", "127.1", "0x7f000001",
    "2130706433", "127.0.0.1.nip.io",
    "\N{LATIN SMALL LETTER E WITH ACUTE}", "l\xf6calhost", "%31%32%37.0.0.1", "a" * 5000,
]  # fmt: skip

ORIGINS = [
    "", " ", "[", "http://[", "http://]", "http://[::1", "http://", "http:///", "null", "://", "//",
    "http://127.0.0.1:8765:1", "http://127.0.0.1:8765/", "http://127.0.0.1:8765@evil.example",
    "http://evil.example@127.0.0.1:8765", "file://127.0.0.1:8765", "http://127.0.0.1:8765 x",
    "http://127.0.0.1:port", "http://\xf6", "javascript:alert(1)", "a" * 5000,
]  # fmt: skip

# values that a field of any type may be set to
VALUES = [
    None, True, False, 0, -1, 1.5, 1e308, 10**30, -(10**30), "", " ", "\0", "lrp", "\ud800", "0",
    "a" * 30_000, [], {}, [[]], [None], [{}], ["lrp"], [0], [1e9], {"lrp": 1}, [0] * 5000,
    "../../etc/passwd", "x.png",
]  # fmt: skip

# the fields of each route, those of all routes under the first
FIELDS = {
    "predict": ["model", "text", "image", "target", "against", "truncate"],
    "explain": ["method"],
    "erase": ["removed"],
    "curve": ["curve"],
    "attention": ["layer", "head"],
    "compare": ["methods"],
    "html": ["methods"],
}

ROUTES = [*FIELDS, "layers"]

BODIES = [
    b"", b"{", b"[", b"null", b"true", b"3", b'"text"', b"[]", b"{}", b"NaN", b"\xff\xfe", b"\0",
    b'{"model": "sentiment"', b'{"model": NaN, "text": Infinity}', b"[" * 50_000, b'{"a":' * 50_000,
    b"9" * 5000, b'{"model": "\\ud800", "text": "x"}', b'\xef\xbb\xbf{"model": "sentiment"}',
    b'{"model": "sentiment", "model": 3, "text": "x"}',
]  # fmt: skip

# bytes on the wire that are not HTTP, or only almost
WIRE = [
    b"\r\n\r\n", b"\0\0\0\0\r\n\r\n", b"hello\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n", b"GET  / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nno colon\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\n: empty\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"POST /api/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    b"POST /api/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n"
    b"content-length: 2\r\n\r\n",
    b"POST /api/predict HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    b"content-type: application/json\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a browser that was told https
]  # fmt: skip
