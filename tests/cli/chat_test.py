"""Conversations at a terminal (through a pty) and from a pipe; a small model with a template."""

import fcntl
import json
import os
import re
import select
import signal
import stat
import struct
import termios
import time
import unittest

from support import (
    BINARY,
    INVALID_MODEL,
    OK,
    STORIES,
    ChatHome,
    fork_at_terminal,
    kvasir,
)

PROMPT = r">>> $"
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


class Terminal:
    """`kvasir chat` at a terminal of its own."""

    def __init__(self, *args, env=None):
        environment = dict(os.environ, TERM="xterm", **(env or {}))
        self.pid, self.fd = fork_at_terminal()
        if self.pid == 0:
            os.execve(BINARY, [BINARY, "chat", *map(str, args)], environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.code = None

    def read(self, until=PROMPT, timeout=60):
        """What is shown until a pattern is; without terminal control sequences."""
        out, end = b"", time.monotonic() + timeout
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    out += os.read(self.fd, 65536)
                except OSError:  # it has ended
                    end = 0
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", out.decode(errors="replace"))
            if until and re.search(until, text) and (end == 0 or not self.has_more()):
                return text
        if until:
            raise AssertionError(f"no {until!r} in {out!r}")
        return out.decode(errors="replace")

    def has_more(self):
        return bool(select.select([self.fd], [], [], 0.2)[0])

    def send(self, text):
        data = text.encode()
        while data:
            data = data[os.write(self.fd, data[:512]) :]

    def ask(self, text, until=PROMPT):
        """Types a line; what is shown until the next prompt."""
        self.send(text + "\r")
        return self.read(until)

    def close(self):
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def leave(self):
        self.send("/bye\r")
        self.read(until=None, timeout=1)
        return self.close()


class Chat(ChatHome):
    template = TEMPLATE

    def piped(self, text, *flags, env=None):
        return kvasir("chat", *self.flags, "-n", 4, *flags, stdin=text, env=env or self.env)

    def saved_messages(self, text, *flags):
        """The texts of the user in a conversation that ends by saving itself."""
        done = self.piped(text + "/save it\n", *flags)
        self.assertEqual(done.returncode, OK, done.stderr)
        saved = json.loads((self.chats / "it.json").read_text())
        return [m["content"] for m in saved["messages"] if m["role"] == "user"]

    def terminal(self, *flags, n=4):
        terminal = Terminal(*self.flags, "-n", n, *flags, env=self.env)
        terminal.read()
        return terminal

    def said_at(self, terminal):
        """Saves the conversation of a terminal and leaves; the texts of the user."""
        terminal.ask("/save it")
        self.assertEqual(terminal.leave(), OK)
        saved = json.loads((self.chats / "it.json").read_text())
        return [m["content"] for m in saved["messages"] if m["role"] == "user"]

    def test_without_a_template_chat_says_so(self):
        done = kvasir("chat", "-m", STORIES, stdin="hello\n")
        self.assertEqual(done.returncode, INVALID_MODEL)
        self.assertIn(b"template", done.stderr)

    def test_lines_blocks_and_line_ends(self):
        text = 'one\r\n   \n\n"""\ntwo\nthree\n"""\n"""four"""\n"""five\nsix"""\n'
        self.assertEqual(self.saved_messages(text), ["one", "two\nthree", "four", "five\nsix"])

    def test_half_a_block_is_not_sent(self):
        done = self.piped('"""\nhalf a message\n')
        self.assertEqual((done.returncode, done.stdout), (OK, b""))
        self.assertIn(b"not sent", done.stderr)

    def test_saved_conversations_are_private_and_listed(self):
        done = self.piped("hi\n/save  s1 \n/load\n/load s1\n/help\n")
        path = self.chats / "s1.json"
        self.assertIn(str(path).encode(), done.stderr)
        self.assertIn(b"  s1\n", done.stderr)
        self.assertIn(b"loaded 2 messages of s1", done.stderr)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.chats.stat().st_mode), 0o700)
        for name in ("../x", ".x", "a/b", "x" * 65):
            self.assertIn(b"name: got", self.piped(f"hi\n/save {name}\n").stderr)
        self.assertIn(b"empty", self.piped("/save s2\n", "--system", "be nice").stderr)
        self.assertFalse((self.chats / "s2.json").exists())
        done = self.piped("hi\n/save s3\n", env={"HOME": "", "XDG_DATA_HOME": ""})
        self.assertIn(b"$HOME", done.stderr)

    def test_what_is_no_saved_conversation_is_refused_by_name(self):
        self.chats.mkdir(parents=True)
        message = {"role": "user", "content": "x"}
        bad = {
            "version": {"schema_version": 2, "messages": [message]},
            "none": {"messages": [message]},
            "empty": {"schema_version": 1, "messages": []},
            "role": {"schema_version": 1, "messages": [dict(message, role="wizard")]},
            "content": {"schema_version": 1, "messages": [dict(message, content=["x"])]},
            "number": {"schema_version": 1, "messages": [1]},
            "list": [message],
        }
        for name, content in bad.items():
            (self.chats / f"{name}.json").write_text(json.dumps(content))
        (self.chats / "text.json").write_text("hello")
        os.mkfifo(self.chats / "fifo.json")
        for name in (*bad, "text", "fifo", "missing"):
            done = self.piped(f"/load {name}\n")
            self.assertIn(f"{name}.json: ".encode(), done.stderr)
            self.assertNotIn(b"loaded", done.stderr)

    def test_no_number_of_interrupts_loses_a_conversation(self):
        terminal = self.terminal()
        for n_presses in (1, 2, 5):
            for delay in (0.0, 0.01, 0.1):
                terminal.send("Tell me\r")
                time.sleep(delay)
                for _ in range(n_presses):
                    os.kill(terminal.pid, signal.SIGINT)
                    time.sleep(delay)
                terminal.read()
                self.assertIn("used", terminal.ask("And then?"), (n_presses, delay))
        self.assertEqual(terminal.leave(), OK)

    def test_interrupts_stop_an_answer_that_would_not_end(self):
        terminal = self.terminal("-c", 100000, "--ignore-eos", n=-1)
        terminal.send("Once\r")
        time.sleep(0.5)
        terminal.send("\x03")
        terminal.read(r"stopped[^>]*>>> $")
        self.assertEqual(terminal.leave(), OK)

    def test_ctrl_c_at_the_prompt_drops_the_line(self):
        terminal = self.terminal()
        terminal.send("half a li")
        terminal.read("half a li")
        terminal.send("\x03")
        self.assertIn("/bye to leave", terminal.read())
        terminal.ask("whole")
        self.assertEqual(self.said_at(terminal), ["whole"])

    def test_ctrl_c_and_ctrl_d_in_a_block(self):
        terminal = self.terminal()
        terminal.ask('"""', until=r"\.\.\. $")
        terminal.ask("half", until=r"\.\.\. $")
        terminal.send("\x03")
        self.assertIn("dropped", terminal.read())
        terminal.ask("whole")
        terminal.ask("/save it")
        terminal.ask('"""', until=r"\.\.\. $")
        terminal.ask("half", until=r"\.\.\. $")
        terminal.send("\x04")
        self.assertIn("not sent", terminal.read("not sent"))
        self.assertEqual(terminal.close(), OK)

    def test_keys_edit_the_line_and_bring_back_earlier_ones(self):
        terminal = self.terminal()
        terminal.ask("abd\x1b[Dc")
        terminal.ask("h\u00e9\u4f60\x7fi")
        terminal.send("\x1b[A\x1b[A")
        terminal.read("abcd")
        terminal.send("!\r")
        terminal.read()
        self.assertEqual(self.said_at(terminal), ["abcd", "h\u00e9i", "abcd!"])

    def test_pasted_lines_are_one_message_but_commands_stay_lines(self):
        terminal = self.terminal("-c", 4000)
        terminal.send("line a\rline b\r\rline c\r")
        terminal.read(r"used[^>]*>>> $")
        terminal.send("/cache\r/help\r")
        terminal.read(r"Conversations are saved[^>]*>>> $")
        self.assertEqual(self.said_at(terminal), ["line a\nline b\n\nline c"])

    def test_long_lines_are_whole(self):
        terminal = self.terminal("-c", 20000, n=1)
        line = "word " * 1200 + "end"
        terminal.send(line + "\r")
        terminal.read(r"used[^>]*>>> $")
        self.assertEqual(self.said_at(terminal), [line])

    def test_a_stop_and_a_resize_leave_the_terminal_usable(self):
        terminal = self.terminal()
        terminal.send("ab")
        terminal.read("ab")
        os.kill(terminal.pid, signal.SIGSTOP)
        os.waitpid(terminal.pid, os.WUNTRACED)
        fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.read("ab")
        terminal.ask("cd")
        self.assertEqual(self.said_at(terminal), ["abcd"])


if __name__ == "__main__":
    unittest.main()
