"""What the checks share: the list of files, their text, and how offences are reported."""

import os
import re
import subprocess
import sys

CPP = (".cc", ".h", ".cpp")
SKIPPED_DIRS = {".git", ".cache", "build", "node_modules", "__pycache__"}


def repo_root():
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def list_files(root):
    """Paths below `root`, with slashes, sorted: what git tracks or would take; else every file."""
    try:
        out = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
        names = [name for name in out.decode("utf-8", "replace").split("\0") if name]
        if names and os.path.exists(os.path.join(root, ".git")):
            return sorted(name for name in names if os.path.isfile(os.path.join(root, name)))
    except (OSError, subprocess.CalledProcessError):
        pass
    found = []
    for folder, dirs, files in os.walk(root):
        dirs[:] = [name for name in dirs if name not in SKIPPED_DIRS]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in files]
    return sorted(name.replace(os.sep, "/") for name in found)


def read_bytes(root, path):
    with open(os.path.join(root, path), "rb") as source:
        return source.read()


def read_text(root, path):
    return read_bytes(root, path).decode("utf-8", "replace")


_CODE = re.compile(
    r'R"([^()\\ ]{0,16})\(.*?\)\1"'      # raw strings
    r'|"(?:\\.|[^"\\\n])*"'              # strings
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*'"  # characters, but not 1'000
    r"|//[^\n]*|/\*.*?\*/", re.S)


def strip_comments_and_strings(text):
    """C++ with comments and literals blanked, line numbers kept."""
    return _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


def main(name, find_offences):
    """Prints `path:line: what` for each offence; exit code 1 when there are any."""
    offences = find_offences(sys.argv[1] if len(sys.argv) > 1 else repo_root())
    for offence in offences:
        print(offence)
    print("%s: %s" % (name, "%d offences" % len(offences) if offences else "clean"))
    sys.exit(1 if offences else 0)
