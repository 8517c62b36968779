"""What the command-line tests share: running the binary and reading its answers."""

import atexit
import json
import os
import pathlib
import pty
import shutil
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
STORIES = DATA / "stories260k" / "stories260K.gguf"
BINARY = os.environ.get("KVASIR_BIN", str(ROOT / "build" / "release" / "bin" / "kvasir"))

OK, ERROR, USAGE, INVALID_MODEL, DOES_NOT_FIT, INTERRUPTED = 0, 1, 2, 3, 4, 130


# Prompts are kept in the user's cache directory: here in one of our own.
CACHE_HOME = tempfile.mkdtemp(prefix="kvasir-test-")
atexit.register(shutil.rmtree, CACHE_HOME, ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = CACHE_HOME


def fork_at_terminal():
    """pty.fork(); where the machine has no pseudo-terminals the test is skipped."""
    try:
        return pty.fork()
    except OSError as error:
        raise unittest.SkipTest(f"no pseudo-terminal to be had here: {error}") from error


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


def stories_with_template(template):
    """The stories model with a chat template as its first key; what follows keeps its alignment."""
    model = STORIES.read_bytes()
    key, alignment, string_type = b"tokenizer.chat_template", 32, 8
    text = template.encode()
    n_bytes = 8 + len(key) + 4 + 8 + len(text) + len("{##}")
    text += b"{#" + b" " * (-n_bytes % alignment) + b"#}"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", string_type, len(text)) + text
    n_keys = struct.unpack_from("<Q", model, 16)[0]
    return model[:16] + struct.pack("<Q", n_keys + 1) + entry + model[24:]


class ChatHome(unittest.TestCase):
    """A home of its own with the stories model, which has `template` there."""

    template = ""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.home = pathlib.Path(directory.name)
        self.model = self.home / "chat.gguf"
        self.model.write_bytes(stories_with_template(self.template))
        self.env = {"XDG_DATA_HOME": str(self.home), "HOME": str(self.home)}
        self.chats = self.home / "kvasir" / "chats"
        self.flags = ("-m", self.model, "-t", 1, "--temp", 0)
