"""A web server on this machine that breaks off, ignores ranges or fails, as it is asked to."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager


class Behaviour:
    """``files`` by path; each answer takes the next number of ``cut`` as the bytes after which it breaks off."""

    def __init__(self, files):
        self.files, self.cut, self.ranges, self.status, self.asked = files, [], True, None, []


@contextmanager
def serve(files):
    behaviour = Behaviour(files)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            behaviour.asked.append(wanted)
            content = behaviour.files.get(self.path)
            if behaviour.status or content is None:
                self.send_error(behaviour.status or 404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and behaviour.ranges else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: behaviour.cut.pop(0) if behaviour.cut else None])

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", behaviour
    finally:
        server.shutdown()
        server.server_close()
