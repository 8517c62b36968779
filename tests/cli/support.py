"""What the command-line tests share: running the binary and reading its answers."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
STORIES = DATA / "stories260k" / "stories260K.gguf"
BINARY = os.environ.get("KVASIR_BIN", str(ROOT / "build" / "release" / "bin" / "kvasir"))

OK, ERROR, USAGE, INVALID_MODEL, DOES_NOT_FIT, INTERRUPTED = 0, 1, 2, 3, 4, 130


def kvasir(*args, stdin=None, timeout=300, env=None):
    """Runs `kvasir args...` with `stdin` (text or bytes; none: empty); the completed process."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    environment = dict(os.environ, **(env or {}))
    return subprocess.run(
        [BINARY, *map(str, args)],
        input=stdin or b"",
        capture_output=True,
        timeout=timeout,
        env=environment,
    )


def kvasir_json(*args, **kwargs):
    done = kvasir(*args, **kwargs)
    assert done.returncode == 0, (done.returncode, done.stderr.decode(errors="replace")[-2000:])
    return json.loads(done.stdout)
