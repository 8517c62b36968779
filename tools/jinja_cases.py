"""The sources, variables and conversations that make_jinja_cases.py runs through Jinja2.

Wide because every line is a row of a table of cases.
"""

SHARED = {
    "s": "Hello, World",
    "u": "h\u00e9llo \u4f60\u597d \U0001f600!",
    "padded": "  two words\n",
    "empty": "",
    "n": 7,
    "neg": -3,
    "f": 2.5,
    "yes": True,
    "no": False,
    "nil": None,
    "list": [3, 1, 2],
    "words": ["banana", "Apple", "cherry"],
    "nested": [[1, 2], [3, [4]]],
    "d": {"a": 1, "b": "two", "c": [1, 2.0, None, True]},
    "users": [
        {"name": "Ann", "age": 31, "on": True, "tags": {"k": "x"}},
        {"name": "bob", "age": 25, "on": False, "tags": {"k": "y"}},
        {"name": "Cy", "age": 31, "on": True, "tags": {}},
    ],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."},
        {"role": "user", "content": [{"type": "text", "text": "Bye"}]},
    ],
}


def show(*expressions):
    return ["{{ " + e + " }}" for e in expressions]


CASES = {
    "output": [
        "plain text", "", "\n", "a\n", "a\n\n", "a\r\nb\rc\r\n",
        *show("1", "1.0", "1e3", "1.5e-7", "1e16", "1e22", "123456789.125", "0.1 + 0.2", "-0.0",
              "1_000", "true", "True", "false", "none", "None", "nil", "missing", "'x'",
              "1, 2", "(1,)", "()", "[]", "{}", "[1, 'a', none, 2.5, true]", "d", "nested",
              "{'a': 'it\\'s', \"b\": 'say \"hi\"'}", "['it\\'s', 'a\"b\\'c']", "[u]",
              "['\\n\\t\\\\\\x01\\u200b']", "users[0]", "[missing]", "\"double\"", "'a' 'b'"),
    ],
    "string escapes": show(
        r"'\n|\t|\\|\'|\"|\r|\x41|\u00e9|\101|\d|\/'", r"'\U0001F600'", r"'a\
b'", r"'\a\b\f\v\0'|length", r"'{{ x }}'", r"'%}'", r"'}}'", r"'{%'", "'caf\u00e9'"),
    "arithmetic": show(
        "1 + 2 * 3", "(1 + 2) * 3", "7 / 2", "8 / 2", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3",
        "7 % -3", "7.5 // 2", "-7.5 % 2", "2 ** 10", "2 ** -1", "2 ** 3 ** 2", "-2 ** 2", "2.0 ** 3",
        "+n", "-n", "--n", "1 - 2 - 3", "8 / 4 / 2", "1 + true", "n + f", "n * f", "'ab' * 3",
        "3 * 'ab'", "'ab' * 0", "'ab' * -1", "[1] * 3", "(1, 2) * 2", "[1] + [2]", "(1,) + (2,)",
        "'a' + 'b' ~ 1", "1 ~ 2 + 3", "'a' ~ none ~ true ~ 1.0", "missing ~ 'x'", "1 + 2 ~ 3",
        "10 % 4 * 2", "1.0 // 0.3", "5 % 2.5", "1e308 * 10", "-n|abs", "(-n)|abs", "1 if n else 2",
        "'a' * 2 + 'b'", "n - -n", "2 * 3 % 4", "not n + 1", "1 +2", "9007199254740993 + 1"),
    "arithmetic errors": show(
        "1 / 0", "1 // 0", "1 % 0", "1.0 / 0", "1 + 'a'", "'a' + 1", "'a' - 'b'", "[] + ()",
        "nil + 1", "missing + 1", "1 + missing", "missing + 'x'", "-'a'", "'a' * 'b'", "d + d",
        "1.5 * 'a'", "-missing", "'a' / 2"),
    "comparison": show(
        "1 < 2", "2 <= 2", "1 == 1.0", "true == 1", "1 == '1'", "'a' < 'b'", "'a' < 'B'",
        "[1, 2] < [1, 3]", "(1, 2) == (1, 2)", "[1] == (1,)", "[1, 2] == [1, 2]", "{'a': 1} == {'a': 1.0}",
        "1 < 2 < 3", "1 < 3 < 2", "1 == 1 == 1", "none == none", "none == false", "missing == missing",
        "missing == none", "1 != 2", "not 1 == 2", "n > 5 and n < 10", "n in [7, 8]", "8 not in [7]",
        "'ell' in s", "'x' not in s", "'' in s", "'a' in d", "'z' in d", "1 in (1, 2)", "1 in missing",
        "not 'a' in d", "'a' in 'abc' == true", "1 is eq 1 == true", "3 > 2 > 1", "1.5 >= 1"),
    "comparison errors": show("1 < 'a'", "none < 1", "missing < 1", "1 in 5", "1 in 'abc'", "[1] < (1,)",
                              "1 in none", "[] in {}", "{} < {}"),
    "logic": show(
        "1 and 2", "0 and 2", "0 or 'x'", "'' or [] or 'last'", "not 0", "not not 'a'", "true and not false",
        "1 or 1/0", "0 and 1/0", "none or missing or 'd'", "not missing", "1 if true", "1 if false",
        "1 if false else 2", "'a' if 0 else 'b' if 0 else 'c'", "(1 if yes else 2) + 3",
        "1 if missing else 'no'", "yes and no or yes", "not yes or yes", "[] and 1", "d and 'full'"),
    "subscripts": show(
        "list[0]", "list[-1]", "list[5]", "list[-5]", "s[0]", "s[-1]", "s[99]", "u[6]", "d['a']", "d.a",
        "d['zz']", "d.zz", "d[nil]", "nested[1][1][0]", "nested.1.0", "users[0].name", "users[1]['tags'].k",
        "list.foo", "s.foo", "n.foo", "none.foo", "none['foo']", "d.c[1]", "(1, 2)[1]", "{'x': 1}.x",
        "[1, 2][0]", "'abc'[1]", "{1: 'a'}[1]", "{1: 'a'}[true]", "{(1, 2): 'p'}[(1, 2)]",
        "d['items'] is callable", "d.items is defined", "list['0']", "d[['a']]", "messages[0].content[0]",
        "{'items': 5}['items']", "{'keys': 5}.keys is callable"),
    "subscript errors": show("missing.foo", "missing['foo']", "missing[0]", "d.zz.y", "d['zz']['y']",
                             "list[5].x", "missing()", "s()", "n.foo.bar", "{[1]: 2}", "none()",
                             "s.foo()", "d.zz()"),
    "internals": show("s.__class__", "d.__class__", "list.__len__", "''.__class__.__mro__ is defined",
                      "s.format.__globals__", "range.__name__", "d.update", "list.append",
                      "(1).__class__", "namespace().__class__"),
    "internals errors": show("''.__class__.__mro__", "list.append(1)", "d.update({'z': 1})", "d.pop('a')",
                             "d.clear()", "list.pop()", "s.__class__.__base__", "d.setdefault('q', 1)"),
    "slices": show(
        "list[1:]", "list[:1]", "list[::-1]", "list[::2]", "list[-2:]", "list[:-1]", "list[5:]", "list[1:2]",
        "list[2:0:-1]", "list[:]", "s[1:4]", "s[::-1]", "s[-5:]", "u[1:8]", "u[::-1]", "s[4:1]", "s[::3]",
        "(1, 2, 3)[1:]", "messages[1:]|length", "messages[::-1][0].role", "list[none:none]", "list[true:]",
        "s[:-100]", "s[-100:2]", "list[::-2]", "list[10:0:-1]", "range(10)[2:8:3]|list", "''[::-1]",
        "list[::99999999999]", "list[-1::-9223372036854775807]"),
    "slice errors": show("list[::0]", "missing[1:]", "d[1:]", "n[:1]", "list['a':]", "list[1.5:]"),
    "string methods": show(
        "padded.strip()", "padded.lstrip()", "padded.rstrip()", "'xxaxx'.strip('x')", "'xyaxy'.lstrip('yx')",
        "'a.b,'.rstrip(',.')", "s.upper()", "s.lower()", "u.upper()", "'stra\u00dfe'.upper()", "'\u00c9A'.lower()",
        "'they\\'re bill\\'s'.title()", "'hello WORLD'.capitalize()", "'\u00e9A'.capitalize()", "'aB'.swapcase()",
        "'a b  c'.split()", "'a b  c'.split(' ')", "' a b '.split()", "'a,b,c'.split(',')", "'a,b,c'.split(',', 1)",
        "'a--b--c'.split('--')[-1]", "'a,b,c'.rsplit(',', 1)", "'  a b c '.rsplit(none, 1)", "' a b c '.split(none, 1)",
        "'abc'.split('b', maxsplit=0)", "'abc'.rsplit('b')", "''.split()", "''.split(',')", "'a\\nb\\r\\nc\\n'.splitlines()",
        "'a\\nb\\n'.splitlines(true)", "s.startswith('Hell')", "s.startswith('ell')", "s.startswith('ell', 1)",
        "s.startswith(('x', 'H'))", "s.endswith('ld')", "s.endswith(('q', 'd'))", "s.endswith('lo', 0, 5)", "s.startswith('')",
        "s.replace('l', 'L')", "s.replace('l', 'L', 2)", "s.replace('', '-')", "s.replace('zz', '')", "'aaa'.replace('aa', 'b')",
        "s.find('o')", "s.find('o', 5)", "s.find('z')", "s.rfind('o')", "s.index('W')", "u.find('\u597d')", "s.count('l')",
        "s.count('')", "s.count('l', 4)", "', '.join(words)", "''.join([])", "'-'.join('abc')", "'-'.join(d)",
        "'x'.join(words[:1])", "'prefix-a'.removeprefix('prefix-')", "'a.txt'.removesuffix('.txt')", "'abc'.removeprefix('z')",
        "'k=v=w'.partition('=')", "'k=v=w'.rpartition('=')", "'kv'.partition('=')", "'kv'.rpartition('=')", "'12'.isdigit()",
        "'1a'.isdigit()", "''.isdigit()", "'ab'.isalpha()", "'a1'.isalnum()", "' \\t'.isspace()", "'AB'.isupper()",
        "'aB'.islower()", "'a'.islower()", "'7'.zfill(3)", "'-7'.zfill(4)", "'a'.ljust(3) ~ '|'", "'a'.rjust(3, '.')",
        "'ab'.center(5) ~ '|'", "'a'.center(4, '*')", "'\u00a0x\u3000'.strip()", "'a\\x1cb'.split()", "s.strip(none)",
        "'a b c'.split(' ')[::-1]", "'</think>x</think>y'.split('</think>')[-1].lstrip('\\n')", "s.split(', ')|last"),
    "string method errors": show("s.split('')", "s.strip(1)", "s.index('zz')", "'-'.join([1, 2])", "s.startswith(1)",
                                 "s.startswith(['H'])", "s.replace('a')", "s.upper(1)", "s.nope()", "s.join(missing)",
                                 "s.partition('')", "s.strip(missing)", "s.find(1)"),
    "formatting": show(
        "'%s and %s' % ('a', 1)", "'%d' % 3.7", "'%5d|%-5d|%05d' % (1, 2, 3)", "'%.2f' % 3.14159", "'%s' % none", "'%r' % 'a'",
        "'%%'|format", "'%s' % [1]", "'%(a)s-%(b)s' % d", "'%x %X %o' % (255, 255, 8)", "'%+d' % 5", "'%e' % 12345.678", "'%5s|' % 'a'",
        "'%-5s|' % 'a'", "'%.2s' % 'abc'", "'%s %s'|format('a', 'b')", "'%(x)s'|format(x=1)", "'%c' % 65", "'%g' % 0.0001", "'%08.3f' % -3.14159",
        "'%*d' % (4, 7)", "'{} {}'.format(1, 'a')", "'{1} {0}'.format(1, 2)", "'{a}'.format(a=5)", "'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')",
        "'{:05d}'.format(42)", "'{:.3f}'.format(2.0)", "'{{}}'.format()", "'{!r}'.format('a')", "'{:,}'.format(1234567)", "'{:x}'.format(255)", "'{:*^9}'.format('mid')",
        "'{:+d}'.format(3)", "'{:5}|'.format(3)", "'{:.2%}'.format(0.125)", "'{}'.format(none)", "'{:#x}'.format(255)", "'{:8.2f}|'.format(-1.5)"),
    "formatting errors": show("'%s %s' % 'a'", "'%d' % 'a'", "'%s' % (1, 2)", "'%q' % 1", "'%' % 1", "'{}'.format()", "'{a}'.format()", "'{'.format(1)",
                              "'}'.format(1)", "'{:d}'.format('a')", "'%(zz)s' % d", "'%s' % missing.x", "'%(a)s' % 1"),
    "dict methods": show(
        "d.keys()|list", "d.values()|list", "d.items()|list", "d.get('a')", "d.get('z')", "d.get('z', 5)", "d.get('z', default=5) if false else 1",
        "d.keys()", "d.values()", "d.items()", "d.keys()|length", "d|items|list", "missing|items|list", "d.copy() == d", "dict(a=1, b=2)",
        "dict(d, a=9).a", "dict([('x', 1)])", "dict()", "d.items()|first", "{'a': 1, 'a': 2}", "{'b': 1}", "d|list", "d|length",
        "list.index(1)", "list.count(3)", "words.index('Apple')", "{'x': {'y': [1]}}.x.y[0]", "{1: 2, 2.5: 3, none: 4, true: 5}"),
    "dict errors": show("d.get()", "list.index(99)", "dict(1)", "n|items|list", "d.get([1])", "dict([1])"),
    "filters on strings": show(
        "padded|trim", "'xax'|trim('x')", "s|upper", "s|lower", "'hello world-foo (bar) x'|title", "'aB cD'|capitalize", "s|replace('o', '0')",
        "s|replace('o', '0', 1)", "12|replace(1, 3)", "s|length", "u|length", "s|count", "5|string + 'x'", "none|string", "[1]|string", "'<a href=\"x\">&\\'</a>'|e",
        "'<'|escape", "'<b>'|safe", "'a\\nb\\n\\nc'|indent", "'a\\nb'|indent(2, true)", "'a\\n\\nb'|indent(2, blank=true)", "'a\\nb'|indent('> ')",
        "'a\\n'|indent", "''|indent(first=true)", "'one two  three_3'|wordcount", "s|reverse", "s|first", "s|last", "''|first", "s|list", "'b,a'|sort|join",
        "'ab'|center(6) ~ '|'", "missing|upper", "missing|trim", "nil|trim", "n|upper", "'a-b c'|title", "s|trim|lower|replace('hello', 'bye')|upper", "'<'|safe + '<' + '>'|e", "'<' + '&'|safe", "'<'|safe ~ '<'", "'<'|e|e"),
    "filters on numbers": show(
        "'42'|int", "' -7 '|int", "'3.9'|int", "'x'|int", "'x'|int(5)", "'ff'|int(base=16)", "'0x1F'|int(base=16)", "'0b11'|int(0, 2)", "3.9|int", "-3.9|int", "none|int", "true|int",
        "'1_000'|int", "'2.5'|float", "'x'|float", "'1e3'|float", "none|float(1.5)", "3|float", "(-5)|abs", "-5.5|abs", "2.5|round", "3.5|round", "2.675|round(2)", "42|round", "42.7|round",
        "42.4|round(method='ceil')", "42.7|round(0, 'floor')", "1234.567|round(-2)", "2.345|round(1, 'ceil')", "1250|round(-2)", "(7 / 2)|round|int", "'inf'|float", "'nan'|float", "'12abc'|int(-1)",
        "'-0'|int", "''|int(9)", "'+5'|int"),
    "filters on sequences": show(
        "list|join", "list|join(', ')", "users|join('+', attribute='name')", "list|first", "list|last", "[]|first", "[]|last", "list|length", "list|sort", "words|sort", "words|sort(case_sensitive=true)",
        "list|sort(reverse=true)", "users|sort(attribute='age')|map(attribute='name')|join(',')", "users|sort(attribute='age', reverse=true)|map(attribute='name')|join(',')",
        "users|sort(attribute='age,name')|map(attribute='name')|list", "list|reverse|list", "list|max", "list|min", "words|max", "words|min", "users|max(attribute='age')", "[]|max", "list|sum", "users|sum(attribute='age')",
        "list|sum(start=10)", "[1, 1, 2, 'a', 'A']|unique|list", "users|unique(attribute='age')|map(attribute='name')|list", "users|map(attribute='tags.k')|list", "users|map(attribute='tags.k', default='-')|list",
        "words|map('upper')|list", "words|map('replace', 'a', '4')|list", "list|map('string')|join", "nested|map('first')|list", "nested|map(attribute=0)|list", "users|map(attribute='tags')|map(attribute='k')|list",
        "list|select('odd')|list", "list|reject('odd')|list", "[0, 1, '', 'a', none]|select|list", "[0, 1, '']|reject|list", "list|select('>', 1)|list", "list|select('in', [1, 2])|list", "users|selectattr('on')|map(attribute='name')|list",
        "users|rejectattr('on')|map(attribute='name')|list", "users|selectattr('age', 'equalto', 31)|list|length", "users|selectattr('tags.k', 'defined')|list|length", "users|rejectattr('age', 'gt', 30)|map(attribute='name')|first",
        "messages|selectattr('role', '==', 'user')|map(attribute='content')|list", "[1, 2, 3, 4, 5]|batch(2)|list", "[1, 2, 3]|batch(2, 'x')|list", "d|dictsort", "{'b': 1, 'A': 2}|dictsort", "{'b': 1, 'A': 2}|dictsort(true)", "{'b': 1, 'a': 2}|dictsort(by='value')",
        "{'b': 1, 'a': 2}|dictsort(reverse=true)", "(1, 2)|list", "range(4)|list", "missing|list", "missing|length", "missing|join", "missing|sort", "nil|default('x')", "missing|default('x')", "missing|d", "''|default('x', true)", "false|d('x', boolean=true)", "0|default(5)",
        "[3, 1]|sort|first", "'cab'|sort", "[true, false]|sort", "list|map('abs')|sum", "nested|sum(start=[])", "[[2], [1]]|sort", "[1.5, 1]|min", "d|map('upper')|join", "list|select('divisibleby', 2)|list", "nil|select|list", "nil|map('upper')|list", "0|selectattr('a')|list"),
    "generators": ["{% if list|select('>', 99) %}yes{% else %}no{% endif %}", "{% for x in list|map('string') %}{{ x }}{% endfor %}",
                   "{{ (list|map('string'))[0] }}", "{% set g = list|select %}{{ g is iterable }} {{ g is sequence }}"],
    "filter errors": show("list|nope", "nil|join", "5|join", "nil|list", "5|length", "[1, 'a']|sort", "'a'|abs", "'x'|round", "list|map('nope')|list", "list|select('nope')|list", "users|selectattr|list",
                          "list|round", "list|batch|list", "s|replace('a')", "nil|reverse", "5|first", "missing|abs", "missing|int", "list|sum(start='a')", "['a']|sum", "users|map(attribute='tags.k.z')|list", "s|indent(2, 3, 4, 5)", "d|dictsort(by='x')",
                          "1.5|round(method='x')", "missing|dictsort", "[[], {}]|unique|list"),
    "tojson": show(
        "d|tojson", "[]|tojson", "{}|tojson", "u|tojson", "'<&>\\'\"\\\\/\\n\\t\\x01\\x7f'|tojson", "1.0|tojson", "none|tojson", "true|tojson", "1e22|tojson", "d|tojson(indent=2)", "[1, [2, {}], []]|tojson(indent=4)", "d|tojson(indent=0)", "{'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true)",
        "d|tojson(separators=(',', ':'))", "u|tojson(ensure_ascii=true)", "(1, 2)|tojson", "{1: 2, none: 3, true: 4, 1.5: 5}|tojson", "nested|tojson(indent='\\t')", "d|tojson(indent=2, separators=(', ', ' = '))", "users|tojson", "'x'|float|tojson", "'nan'|float|tojson", "'-inf'|float|tojson", "messages|tojson(indent=1)"),
    "tojson errors": show("missing|tojson", "[missing]|tojson", "range(3)|tojson", "namespace()|tojson", "{(1, 2): 3}|tojson", "list|map('string')|tojson", "d.keys()|tojson", "d|tojson(nope=1)"),
    "tests": show(
        "s is defined", "missing is defined", "missing is not defined", "missing is undefined", "nil is none", "nil is not none", "s is string", "n is string", "n is number", "f is number", "yes is number", "n is integer", "yes is integer", "f is integer",
        "f is float", "n is float", "yes is boolean", "n is boolean", "d is mapping", "list is mapping", "list is iterable", "s is iterable", "n is iterable", "list is sequence", "s is sequence", "d is sequence", "n is sequence", "missing is iterable", "missing is sequence", "(1,) is sequence",
        "range(2) is sequence", "d.items() is sequence", "yes is true", "1 is true", "no is false", "nil is false", "3 is odd", "4 is even", "-3 is odd", "n is eq 7", "n is eq(7)", "n is ne 8", "n is lt 8", "n is gt 8", "n is ge 7", "n is le 6", "n is equalto 7", "1 is in [1]", "1 is not in [1]",
        "nil is sameas none", "1 is sameas true", "n is divisibleby 7", "n is divisibleby(2)", "range is callable", "s is callable", "'abc' is lower", "'ABC' is upper", "'1' is lower", "s is defined and n is defined", "s is defined or x", "not s is defined", "d.zz is defined", "d.a is defined", "s is string and s|length > 3",
        "'a' if s is defined else 'b'", "n is number if yes", "'upper' is filter", "'nope' is filter", "'odd' is test", "users[0].tags.k is defined", "none is defined", "nil is mapping", "n is greaterthan 3", "s is not mapping", "1 + 1 is eq 2", "n is not divisibleby 2"),
    "test errors": show("missing.x is defined", "s is nope", "s is odd", "missing is odd", "'a' is lt 1", "n is divisibleby 0", "n is eq", "1 is in 5", "n is divisibleby", "s is defined is string"),
    "conditionals": [
        "{% if yes %}a{% endif %}", "{% if no %}a{% endif %}", "{% if no %}a{% else %}b{% endif %}", "{% if no %}a{% elif yes %}b{% else %}c{% endif %}", "{% if no %}a{% elif no %}b{% else %}c{% endif %}",
        "{% if missing %}a{% else %}b{% endif %}", "{% if [] %}a{% else %}b{% endif %}", "{% if list and d %}a{% endif %}", "{% if 0.0 %}a{% else %}b{% endif %}", "{% if namespace() %}a{% endif %}", "{% if yes %}{% if no %}x{% else %}y{% endif %}{% endif %}",
        "{% if not messages %}none{% elif messages[0]['role'] == 'system' %}sys{% endif %}", "{% if range(0) %}a{% else %}b{% endif %}"],
    "loops": [
        "{% for x in list %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}empty{% endfor %}", "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
        "{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in list %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
        "{% for c in 'ab\u4f60' %}[{{ c }}]{% endfor %}", "{% for x in list if x > 1 %}{{ x }}/{{ loop.length }} {% else %}none{% endfor %}", "{% for x in list if x > 9 %}{{ x }}{% else %}none{% endfor %}", "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
        "{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in list %}{% for y in 'ab' %}{{ x }}{{ y }}{{ loop.index }} {% endfor %}{{ loop.index }}|{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}",
        "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}-{{ b }} {% endfor %}", "{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in range(5, 0, -2) %}{{ x }}{% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
        "{% for x in list %}{{ loop.cycle('odd', 'even') }} {% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}", "{% for x in list|sort %}{{ x }}{% endfor %}", "{% for x in list[::-1] %}{{ x }}{% endfor %}", "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% endfor %}",
        "{% for x in list %}{% set y = x %}{% endfor %}{{ y }}", "{% set y = 0 %}{% for x in list %}{% set y = y + x %}{{ y }} {% endfor %}{{ y }}", "{% for x in list %}{{ x }}{% endfor %}{{ x }}", "{% for loop_ in list %}{{ loop_ }}{% endfor %}", "{% for x in list %}{% for x in 'ab' %}{{ x }}{% endfor %}{{ x }}{% endfor %}",
        "{% for x in range(3) %}{{ loop.depth }}{% for y in range(1) %}{{ loop.depth }}{% endfor %}{% endfor %}", "{% for x in list %}{% if loop.last %}{{ x }}{% endif %}{% endfor %}", "{% for k, v in users[0]|items %}{{ k }}{% endfor %}", "{% for x in list -%}  {{ x }}  {%- endfor %}", "{% for x in list %}{% if loop.first %}{% continue %}{% elif loop.last %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "{% for x in list %}{{ loop }}{% endfor %}", "{% for x in [[1, 2]] %}{{ x[0] }}{% endfor %}", "{% for x in d.values() %}{{ x }};{% endfor %}", "{% for x in list %}{% else %}b{% endfor %}"],
    "loop errors": [
        "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% break %}", "{% for x in list %}{{ loop.nope.x }}{% endfor %}", "{% for x in range(10**12) %}{% endfor %}", "{% for 1 in list %}{% endfor %}",
        "{% for none in list %}{% endfor %}", "{% for x list %}{% endfor %}", "{% for x in list %}", "{% for x in %}{% endfor %}", "{% for x in list %}{% endif %}", "{% macro m() %}{% continue %}{% endmacro %}", "{% for ns.a in list %}{% endfor %}", "{{ range(0, 9, 0) }}", "{{ range('a') }}", "{{ range() }}"],
    "set": [
        "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x = 1, 2 %}{{ x }}", "{% set x %}a{{ n }}b{% endset %}{{ x }}|{{ x|length }}", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | trim | replace('b', 'c') %} abc {% endset %}[{{ x }}]", "{% set n = n + 1 %}{{ n }}",
        "{% if yes %}{% set x = 1 %}{% endif %}{{ x }}", "{% if no %}{% set x = 1 %}{% endif %}{{ x }}", "{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}", "{% set ns = namespace() %}{% for x in list %}{% set ns.last = x %}{% endfor %}{{ ns.last }}",
        "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}", "{% set ns = namespace(d) %}{{ ns.a }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }}", "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns['n'] }}",
        "{% set x = [] %}{% set x = x + [1] %}{{ x }}", "{% set a = 1 == 1 %}{{ a }}", "{% set x = 'a' if no else 'b' %}{{ x }}", "{% set messages = messages[1:] %}{{ messages[0].role }}", "{% set (a, b) = (1, 2) %}{{ a + b }}", "{% set ns = namespace(x=1) %}{% set ns.y, z = 5, 6 %}{{ ns.y }}{{ z }}",
        "{% set x %}{% for i in list %}{{ i }}{% endfor %}{% endset %}{{ x }}", "{% set x %}{% endset %}[{{ x }}]", "{% set x %}{% set y = 2 %}{{ y }}{% endset %}{{ x }}{{ y }}", "{% set a, b = 'xy' %}{{ a }}-{{ b }}", "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me is defined }}", "{% for x in [1, 2] %}{% set y %}{{ x }}{% if x == 1 %}{% continue %}{% endif %}{% endset %}{{ y }}{% endfor %}"],
    "set errors": ["{% set 1 = 2 %}", "{% set x %}", "{% set x = %}", "{% set d.a = 5 %}", "{% set missing.a = 5 %}", "{% set a, b = 1 %}", "{% set a, b = [1] %}", "{% set true = 1 %}", "{% set x = 1", "{% set n.x = 1 %}", "{% set x.y.z = 1 %}", "{% set x | nope %}a{% endset %}"],
    "macros": [
        "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }} {{ m() }}", "{% macro m() %}x{% endmacro %}{{ m() ~ 'y' }}{{ m()|upper }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(7) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
        "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ m(1) }}{{ y }}", "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
        "{% macro m(x) %}{{ caller() }}[{{ x }}]{% endmacro %}{% call m(1) %}body{{ n }}{% endcall %}", "{% macro m() %}{{ caller('A', 2) }}{% endmacro %}{% call(u, v) m() %}{{ u }}{{ v }}{% endcall %}", "{% macro m() %}{{ n }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(none) }}",
        "{% macro m(x) %}{% for i in x %}{{ loop.index }}{{ i }}{% endfor %}{% endmacro %}{% for y in [[5], [6, 7]] %}{{ m(y) }}|{% endfor %}", "{% macro m() -%} a {%- endmacro %}{{ m() }}", "{% macro m(x='d') %}{{ x }}{% endmacro %}{{ m(missing) }}{{ m(none) }}",
        "{% macro m(a) %}{{ a.b }}{% endmacro %}{{ m({'b': 1}) }}", "{% macro m() %}{% if caller is defined %}c{% endif %}{% endmacro %}{% call m() %}x{% endcall %}", "{% for i in [1, 2] %}{% macro q() %}{{ i }}{% endmacro %}{{ q() }}{% endfor %}",
        "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}"],
    "macro errors": ["{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(z=1) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a %}{% endmacro %}", "{% macro m() %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m() %}{{ a.b }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
                     "{% call 5 %}{% endcall %}", "{% call m() %}{% endcall %}", "{% macro 5() %}{% endmacro %}"],
    "blocks": [
        "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aa{% endfilter %}", "{% with a=1, b=2 %}{{ a + b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% set a = 1 %}{% with a=2, b=a %}{{ a }}{{ b }}{% endwith %}", "{% generation %}out{% endgeneration %}!",
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}", "{% raw %}{{ x }}{% if %}{% endraw %}", "{% raw %}\n a {% endraw %}\nb", "a {%- raw -%}  {{ }}  {%- endraw -%} b", "{# comment #}a{# {{ x }} {% if %} #}", "a{#- c -#} b", "a\n  {# c #}\nb", "{#\nmany\nlines\n#}x", "{# {% raw %} #}y",
        "{%raw%}{{{%endraw%}", "{% filter trim %}  a  {% endfilter %}|"],
    "block errors": ["{% raw %}x", "{# never closed", "{% filter nope %}a{% endfilter %}", "{% filter upper %}", "{% nope %}", "{% endif %}", "{% endfor %}", "{% else %}", "{% generation %}", "{% include 'x' %}" , "{% import 'x' as y %}", "{% extends 'x' %}", "{% do 1 %}", "{% %}", "{%", "{{", "{{ }}", "{{ 1", "{% if %}{% endif %}", "{% if 1 %}",
                     "{% if 1 %}{% else %}{% else %}{% endif %}", "{% if 1 %}{% elif %}{% endif %}", "{% with a %}{% endwith %}"],
    "whitespace": [
        "a {{- 1 -}} b", "a {%- if yes %} b {%- endif %} c", "a\n{% if yes %}\nb\n{% endif %}\nc", "a\n  {% if yes %}\n  b\n  {% endif %}\nc", "a\n  {%+ if yes %}\nb{% endif %}", "a {% if yes +%}\nb{% endif %}", "  {% if yes %}x{% endif %}", "  {{ n }}  \n", "{{ n }}\n\nb", "{% if yes %}\n\nb{% endif %}", "x  {% if yes %}y{% endif %}",
        "{% if yes -%}\n\n  a  \n\n{%- endif %}", "a\n\t {%- if yes %}b{% endif %}", "{% set x = 1 %}\n{% set y = 2 %}\n{{ x }}{{ y }}\n", "a\n  {# c #}  \nb", "  {%- set x = 1 -%}  b", "{{ n -}}\n {{ n }}", "a\n  {{ n }}\nb", "{% for x in list %}\n  {{ x }}\n{% endfor %}\n", "{%- for x in list %}\n{{- x }}\n{%- endfor %}", "\n\n{% if yes %}\n\n{% endif %}\n\n",
        "a\u00a0{%- if yes %}b{% endif %}", "line\r\n{% if yes %}\r\nb\r\n{% endif %}\r\nc\r\n", " {% raw %} {% endraw %} ", "{{n}}{{n}}", "{%if yes%}a{%endif%}", "{{-n-}}", "a{{+n}}", "{% if yes %}a{% endif %}  \n  {% if yes %}b{% endif %}", "a  {#+ c #} b", "a {{ n }}\n{%- if yes %}\n b{% endif -%}\n c", "{{ '{{' }}{{ '}}' }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ {'a': {}}}}", "{ {n} }%}", "{{ \"a\nb\" }}",
        "{%- set ns = namespace(x='') -%}\n{%- for m in messages -%}\n  {%- set ns.x = ns.x ~ m.role[0] -%}\n{%- endfor -%}\n{{ ns.x }}\n"],
    "functions": show("range(3)", "range(1, 3)", "range(0, 6, 2)", "range(3)|list", "range(3)|length", "range(5, 0, -2)|list", "range(-3)|list", "2 in range(3)", "range(3)[1]", "range(100000)|length", "dict(x=1)", "strftime_now('%d %b %Y')", "strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %y %p %I')", "strftime_now('%%')",
                      "strftime_now('')") + ["{% set j = joiner(', ') %}{% for x in list %}{{ j() }}{{ x }}{% endfor %}", "{% set j = joiner() %}{{ j() }}{{ j() }}", "{% set range = 5 %}{{ range }}", ("{{ range }}", {"range": "shadowed"})],
    "function errors": show("range(10 ** 12)", "range(100001)", "raise_exception('no: ' ~ n)", "raise_exception()", "strftime_now()", "dict(1, 2)", "namespace(1)", "cycler()", "lipsum.x.y", "strftime_now(5)", "range(1.5)") + [
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}", "{{ x if false else raise_exception('multi\nline \\'q\\'') }}", "{{ raise_exception(d) }}"],
    "syntax errors": show("1 +", "a b", "(1", "[1", "{'a'}", "{'a': }", "a.", "a[", "a[]", "|upper", "a|", "a is", "'abc", "1 2", "a..b", "$", "a ? b", "not", "1 if", "f(a=1, 2)", "f(", "f(,)", "@x", "a = 1", "[1,,2]", ")", "]", "{%", "a!b", "'\\x4'", "1 if 2 else", "lambda x: x", "a[1:2:3:4]", "[)", "`x`"),
    "precedence": show("1 + 2 == 3 and 4 > 3", "not 1 in [2]", "1 ~ 2 == '12'", "1 + 2 ~ 3 * 4", "2 * 3 ** 2", "-1 ** 2", "(1 if yes else 2) ~ 'x'", "1 if yes else 2 ~ 'x'", "'a' in 'abc' and 'b' in 'abc'", "n|string ~ 'x'|upper", "'x' ~ 'y'|upper", "-n|string", "1 - 1 or 5", "1 < 2 and 2 < 3 or 0",
                       "n is odd and f is float", "n == 7 is true", "not n is odd", "1 + n|float", "list[0] + list[1] * list[2]", "s|length > 3 and s|upper == 'HELLO, WORLD'", "s|length + 1", "'%s' % 1 + 'a'", "('a' ~ 'b')|upper", "a if a is defined else 'none'", "-list[0]", "2 ** 2 * 3", "1 or 0 and 0", "n % 4 == 3", "(n)", "((n))|string"),
}

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place, \"now\".",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City & country"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}

_CALL = {"role": "assistant", "content": "",
         "tool_calls": [{"id": "call_0001", "type": "function",
                         "function": {"name": "get_weather",
                                      "arguments": {"city": "Z\u00fcrich", "days": [1, 2]}}}]}
_CALL_WITHOUT_CONTENT = {**_CALL, "content": None}
_RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call_0001",
           "content": "{\"temp\": 21.5}"}
_USER = {"role": "user", "content": "What is the weather in Z\u00fcrich?"}
_SYSTEM = {"role": "system", "content": "  You are terse.\n"}
_HI = {"role": "user", "content": "Hi there\n"}
_HELLO = {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHello!"}
_MORE = {"role": "user", "content": "  1 < 2 && 'x' \"y\" \\ <|im_end|>"}

CONVERSATIONS = {
    "user": {"messages": [_HI], "add_generation_prompt": True},
    "user without prompt": {"messages": [_HI], "add_generation_prompt": False},
    "system": {"messages": [_SYSTEM, _HI], "add_generation_prompt": True},
    "multi turn": {"messages": [_HI, _HELLO, _MORE], "add_generation_prompt": True},
    "multi turn with system": {"messages": [_SYSTEM, _HI, _HELLO, _MORE, _HELLO],
                               "add_generation_prompt": False},
    "thinking off": {"messages": [_HI, _HELLO, _MORE], "add_generation_prompt": True,
                     "enable_thinking": False},
    "thinking on": {"messages": [_SYSTEM, _MORE], "add_generation_prompt": True,
                    "enable_thinking": True},
    "content parts": {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "ok?"}]}],
        "add_generation_prompt": True},
    "tools": {"messages": [_SYSTEM, _USER], "tools": [_WEATHER], "add_generation_prompt": True},
    "tools without system": {"messages": [_USER], "tools": [_WEATHER, _WEATHER],
                             "add_generation_prompt": True},
    "tool result": {"messages": [_SYSTEM, _USER, _CALL, _RESULT], "tools": [_WEATHER],
                    "add_generation_prompt": True},
    "tool result, no content": {"messages": [_USER, _CALL_WITHOUT_CONTENT, _RESULT],
                                "tools": [_WEATHER], "add_generation_prompt": True},
    "after a tool": {"messages": [_USER, _CALL, _RESULT,
                                  {"role": "assistant", "content": "21.5 C."}, _HI],
                     "tools": [_WEATHER], "add_generation_prompt": True},
    "two users": {"messages": [_HI, _HI], "add_generation_prompt": True},
    "unknown role": {"messages": [{"role": "critic", "content": "no"}],
                     "add_generation_prompt": True},
    "no messages": {"messages": [], "add_generation_prompt": True},
    "developer": {"messages": [{"role": "developer", "content": "Speak \u4e2d\u6587."}, _HI],
                  "add_generation_prompt": True, "reasoning_effort": "low"},
}
