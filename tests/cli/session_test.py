"""kvasir chat --session: conversations that go on where they ended, and are never lost."""

import json
import os
import stat
import subprocess
import unittest

from support import BINARY, ERROR, OK, USAGE, ChatHome, kvasir, stories_with_template

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
STORY = " ".join(["Once upon a time there was a little dog who liked to run."] * 12)


class Sessions(ChatHome):
    template = TEMPLATE

    def setUp(self):
        super().setUp()
        self.env["XDG_CACHE_HOME"] = str(self.home / "cache")
        self.flags += ("-n", 4, "--page-tokens", 32)

    def chat(self, text, *flags):
        load = ("--kv-load", "always")
        return kvasir("chat", *self.flags, *load, *flags, stdin=text, env=self.env)

    def saved(self, name="trip"):
        return json.loads((self.chats / f"{name}.json").read_text())

    def said(self, name="trip"):
        return [m["content"] for m in self.saved(name)["messages"] if m["role"] == "user"]

    def test_a_session_goes_on_in_the_next_process(self):
        first = self.chat(STORY + "\nAnd then?\n", "--session", "trip")
        self.assertEqual(first.returncode, OK, first.stderr)
        self.assertIn(b"session trip: new", first.stderr)
        path = self.chats / "trip.json"
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        second = self.chat("Who?\n", "--session", "trip")
        self.assertEqual(second.returncode, OK, second.stderr)
        self.assertIn(b"session trip: 4 messages", second.stderr)
        self.assertIn(b"user: And then?", second.stderr)
        self.assertRegex(second.stderr.decode(), r"[1-9][0-9]* from cache")
        self.assertEqual(self.said(), [STORY, "And then?", "Who?"])
        whole = self.chat(STORY + "\nAnd then?\nWho?\n/save whole\n")
        self.assertEqual(whole.returncode, OK)
        self.assertEqual(self.saved()["messages"], self.saved("whole")["messages"])

    def test_every_answer_is_saved_at_once(self):
        process = subprocess.Popen(
            [BINARY, "chat", *map(str, self.flags), "--session", "trip"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, **self.env),
        )
        process.stdin.write(b"Hello\n")
        process.stdin.flush()
        while b"answer" not in process.stderr.readline():  # the line of figures
            pass
        process.stdin.write(b"/help\n")  # read once the turn is over
        process.stdin.flush()
        while b"Conversations are saved" not in process.stderr.readline():
            pass
        process.kill()
        process.communicate()
        self.assertEqual(self.said(), ["Hello"])

    def test_bad_names_are_refused_before_the_model_is_loaded(self):
        for name in ("../x", "a/b", ".x", "", "x" * 65, "a b", "a\nb"):
            done = kvasir("chat", "-m", "no such model", "--session", name, env=self.env)
            self.assertEqual(done.returncode, USAGE, name)
            self.assertIn(b"got '", done.stderr)
        self.assertFalse(self.chats.exists())

    def test_a_damaged_session_is_left_as_it_is(self):
        self.chats.mkdir(parents=True)
        path = self.chats / "trip.json"
        for content in ("", "hello", "[]", '{"schema_version": 2, "messages": []}', "[" * 999):
            path.write_text(content)
            done = self.chat("hi\n", "--session", "trip")
            self.assertEqual(done.returncode, USAGE, done.stderr)
            self.assertIn(b"trip.json: ", done.stderr)
            self.assertEqual(path.read_text(), content)
        path.unlink()
        os.mkfifo(path)
        self.assertEqual(self.chat("hi\n", "--session", "trip").returncode, ERROR)

    def test_sessions_of_before_have_no_model_and_load(self):
        self.chats.mkdir(parents=True)
        old = {"schema_version": 1, "messages": [{"role": "user", "content": "hi"}]}
        (self.chats / "trip.json").write_text(json.dumps(old))
        done = self.chat("so\n", "--session", "trip")
        self.assertEqual(done.returncode, OK)
        self.assertNotIn(b"note", done.stderr)
        self.assertEqual(self.said(), ["hi", "so"])

    def test_another_model_goes_on_and_says_so(self):
        self.chat("hi\n", "--session", "trip")
        saved = self.saved()
        saved["model"] = "Another \x1b[31mModel"
        (self.chats / "trip.json").write_text(json.dumps(saved))
        done = self.chat("so\n", "--session", "trip")
        self.assertEqual(done.returncode, OK)
        self.assertIn(b"was held with Another \\x1b[31mModel", done.stderr)
        self.assertEqual(self.said(), ["hi", "so"])

    def test_a_template_that_refuses_the_session_loses_nothing(self):
        self.chat("hi\n", "--session", "trip", "--system", "Be nice")
        before = self.saved()
        strict = "{{ raise_exception('no system') if messages[0].role == 'system' }}"
        self.model.write_bytes(stories_with_template(strict))
        done = self.chat("so\n", "--session", "trip")
        self.assertNotEqual(done.returncode, OK)
        self.assertIn(b"no system", done.stderr)
        self.assertEqual(self.saved(), before)

    def test_the_system_message_is_the_one_it_began_with(self):
        self.chat("hi\n", "--session", "trip", "--system", "Be nice")
        before = self.saved()
        done = self.chat("so\n", "--session", "trip", "--system", "Be rude")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"--system", done.stderr)
        self.assertEqual(self.saved(), before)
        for flags in ((), ("--system", "Be nice")):
            self.assertEqual(self.chat("so\n", "--session", "trip", *flags).returncode, OK)
        self.assertEqual(self.said(), ["hi", "so", "so"])

    def test_load_takes_the_session_along(self):
        self.chat("one\n", "--session", "a")
        self.chat("two\n", "--session", "b")
        done = self.chat("/load b\nthree\n", "--session", "a")
        self.assertIn(b"session is now b", done.stderr)
        self.assertEqual((self.said("a"), self.said("b")), (["one"], ["two", "three"]))

    def test_two_processes_do_not_lose_each_others_turns(self):
        self.chat("one\n", "--session", "trip")
        process = subprocess.Popen(
            [BINARY, "chat", *map(str, self.flags), "--session", "trip"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=dict(os.environ, **self.env),
        )
        while b"session trip: 2 messages" not in process.stderr.readline():
            pass
        self.chat("theirs\n", "--session", "trip")
        _, err = process.communicate(b"mine\n/save mine\n", timeout=60)
        self.assertIn(b"another process has changed it", err)
        self.assertEqual(process.returncode, OK)  # it is saved, under another name
        self.assertEqual(self.said(), ["one", "theirs"])
        self.assertEqual(self.said("mine"), ["one", "mine"])

    def test_what_cannot_be_saved_is_said_and_shows_in_the_exit_code(self):
        (self.home / "kvasir").write_text("no directory")
        done = self.chat("hi\n", "--session", "trip")
        self.assertEqual(done.returncode, ERROR)
        self.assertIn(b"kvasir: ", done.stderr)


if __name__ == "__main__":
    unittest.main()
