"""Standard streams that fail, and Ctrl-C outside a conversation."""

import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

from support import (
    BINARY,
    ERROR,
    INTERRUPTED,
    OK,
    STORIES,
    USAGE,
    fork_at_terminal,
    stories_with_template,
)

M = ("-m", str(STORIES))
RUN = ("run", *M, "--raw", "-n", "4", "--temp", "0", "-p", "Once")


def shell(redirections, *args):
    """Runs the binary with a shell's redirections; the completed process."""
    command = f'exec "$0" "$@" {redirections}'
    return subprocess.run(
        ["sh", "-c", command, BINARY, *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )


class Streams(unittest.TestCase):
    def test_what_stderr_can_not_take_is_lost_and_nothing_else(self):
        expected = shell("", *RUN)
        self.assertEqual(expected.returncode, OK)
        for redirection in ("2>&-", "2>/dev/full"):
            done = shell(redirection, *RUN)
            self.assertEqual((done.returncode, done.stdout), (OK, expected.stdout), redirection)
            self.assertEqual(shell(redirection, "run", "--nope").returncode, USAGE, redirection)
            self.assertEqual(shell(redirection, "run", "-m", "no/such", "x").returncode, ERROR)

    def test_a_closed_stderr_pipe_is_no_error(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [BINARY, *RUN], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=writer
        )
        os.close(writer)
        self.assertEqual(done.returncode, OK)

    def test_a_failing_stdout_is_an_error_with_its_reason(self):
        for args in (
            RUN,
            (*RUN, "--json"),
            ("inspect", STORIES),
            ("doctor", *M),
            ("trace", *M),
            ("--help",),
            ("run", "--help"),
            ("--version",),
        ):
            done = shell(">/dev/full", *args)
            self.assertEqual(done.returncode, ERROR, args)
            self.assertIn(b"stdout: cannot write; No space left on device", done.stderr)
            done = shell(">&-", *args)
            self.assertEqual(done.returncode, ERROR, args)
            self.assertIn(b"stdout: cannot write", done.stderr)

    def test_streams_closed_at_the_start_stay_unused(self):
        self.assertEqual(shell("<&- >&- 2>&-", *RUN).returncode, ERROR)
        done = shell("<&-", "tokenize", *M)
        self.assertEqual(done.returncode, ERROR)
        self.assertIn(b"stdin: cannot read; Bad file descriptor", done.stderr)
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(stories_with_template("{{ messages[-1].content }}"))
            file.flush()
            done = shell("<&-", "chat", "-m", file.name)
        self.assertEqual(done.returncode, ERROR)
        self.assertIn(b"stdin: cannot read; Bad file descriptor", done.stderr)


class Interrupts(unittest.TestCase):
    def interrupt(self, *args, after=1.0, stdin=subprocess.DEVNULL):
        """Sends one SIGINT; the process and its stdout."""
        process = subprocess.Popen(
            [BINARY, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=stdin
        )
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, (args, err))
        return out

    def test_bench_delivers_the_rows_that_are_done(self):
        out = self.interrupt("bench", *M, "-t", 1, "-p", 1, "-n", 500, "-r", 1000, "--json")
        self.assertEqual([row["test"] for row in json.loads(out)], ["pp1"])
        long = ("--lengths", "2,500", "-r", 1000, "--json")
        out = self.interrupt("bench", *M, "-t", 1, "--no-kv-cache", *long)
        self.assertEqual([row["n_tokens"] for row in json.loads(out)["rows"]], [2])
        self.assertEqual(self.interrupt("bench", *M, "-t", 1, "-p", 0, "-n", 500, "-r", 1000), b"")

    def test_eval_delivers_the_chunks_that_are_done(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("Once upon a time there was a little girl named Lily. " * 40000)
            file.flush()
            out = self.interrupt(
                "eval", "ppl", *M, "-t", 1, "-b", 16, "-f", file.name, "--json", after=4.0
            )
        report = json.loads(out)
        self.assertGreater(report["n_chunks"], 0)
        self.assertEqual(report["n_scored"], report["n_chunks"] * 255)

    def test_waiting_for_input_is_given_up(self):
        reader, writer = os.pipe()
        for args in (
            ("tokenize", *M),
            ("run", *M, "--raw", "-f", "-"),
            ("eval", "ppl", *M, "-f", "-"),
        ):
            self.interrupt(*args, stdin=reader)
        os.close(reader)
        os.close(writer)
        with tempfile.TemporaryDirectory() as directory:
            fifo = os.path.join(directory, "fifo")
            os.mkfifo(fifo)
            self.interrupt("run", *M, "--raw", "-f", fifo)

    def test_a_second_interrupt_ends_what_the_first_can_not(self):
        ids = ",".join(["5"] * 200)
        process = subprocess.Popen(
            [BINARY, "eval", "logits", *M, "--ids", ids, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self.assertTrue(select.select([process.stdout], [], [], 60)[0])  # now the pipe fills up
        process.send_signal(signal.SIGINT)
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), INTERRUPTED)
        process.stdout.close()

    def test_a_second_interrupt_ends_a_pass_of_bench(self):
        """One pass over many tokens takes long: the first interrupt waits for its end."""
        long = ("-c", 65536, "-b", 65536, "-p", 65536, "-n", 0, "-r", 1)
        process = subprocess.Popen(
            [BINARY, "bench", *map(str, (*M, "-t", 1, *long))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (INTERRUPTED, b""))

    def test_a_conversation_from_a_pipe_ends(self):
        reader, writer = os.pipe()
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(stories_with_template("{{ messages[-1].content }}"))
            file.flush()
            self.interrupt("chat", "-m", file.name, stdin=reader)
        os.close(reader)
        os.close(writer)

    def test_progress_is_no_wider_than_the_terminal(self):
        pid, fd = fork_at_terminal()
        if pid == 0:
            bench = ("bench", *M, "-t", "1", "-p", "0", "-n", "500", "-d", "0,8", "-r", "400")
            os.execve(BINARY, [BINARY, *bench], dict(os.environ, TERM="xterm"))
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
        out = b""
        while b"bench" not in out:
            out += os.read(fd, 4096)
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
        os.close(fd)
        for line in out.split(b"\r\x1b[K"):
            self.assertLess(len(line), 20, out)

    def test_one_end_of_file_at_a_terminal_is_enough(self):
        pid, fd = fork_at_terminal()
        if pid == 0:
            os.execv(BINARY, [BINARY, "tokenize", *M])
        time.sleep(0.5)
        os.write(fd, b"Once\n\x04")
        out, end = b"", time.monotonic() + 30
        while b"]" not in out and time.monotonic() < end:
            if select.select([fd], [], [], 0.2)[0]:
                out += os.read(fd, 4096)
        self.assertIn(b"]", out)
        status = os.waitpid(pid, 0)[1]
        os.close(fd)  # earlier, it would be SIGHUP for a process that has only just answered
        self.assertEqual(os.waitstatus_to_exitcode(status), OK)


if __name__ == "__main__":
    unittest.main()
