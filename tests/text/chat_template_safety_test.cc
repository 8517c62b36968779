// What a hostile template or a hostile user can not do: run on, nest, grow, forge.
#include <gtest/gtest.h>

#include "text/chat_template.h"

namespace kvasir::text {
namespace {

Result<std::vector<PromptPiece>> render(const std::string& source,
                                        const std::map<std::string, Value>& globals = {},
                                        const TemplateLimits& limits = {}) {
  auto compiled = ChatTemplate::compile(source, limits);
  if (!compiled) return compiled.error();
  return compiled->render(globals);
}

std::string repeat(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

/// The pieces with input in <angle brackets>.
std::string shown(const Result<std::vector<PromptPiece>>& pieces) {
  if (!pieces) return "error: " + pieces.error().message;
  std::string text;
  for (const PromptPiece& piece : *pieces) {
    text += piece.from_input ? "<" + piece.text + ">" : piece.text;
  }
  return text;
}

Value input(const std::string& text) { return Value(MarkedString(text, true)); }

TEST(ChatTemplateMarks, SurviveEveryOperation) {
  const std::map<std::string, Value> globals = {
      {"x", input(" Ab,cD ")},
      {"l", List{input("p"), Value("q"), input("r")}},
      {"d", Dict{{"k", input("v")}, {"plain", Value("w")}}}};
  const std::pair<const char*, const char*> cases[] = {
      {"[{{ x }}]", "[< Ab,cD >]"},
      {"{{ 'a' + x + 'b' }}", "a< Ab,cD >b"},
      {"{{ 'a' ~ x ~ 1 }}", "a< Ab,cD >1"},
      {"{{ x|trim }}{{ x.strip() }}", "<Ab,cDAb,cD>"},
      {"{{ x|upper }}|{{ x.lower() }}|{{ x|title }}|{{ x|capitalize }}",
       "< AB,CD >|< ab,cd >|< Ab,cd >|< ab,cd >"},
      {"{{ x[1:3] }}{{ x[::-1] }}{{ x[1] }}", "<Ab Dc,bA A>"},
      {"{{ x.replace(',', '+') }}", "< Ab>+<cD >"},
      {"{{ 'a,b'.replace(',', x) }}", "a< Ab,cD >b"},
      {"{{ x.split(',')[0] }}|{{ x.split(',')|join('-') }}", "< Ab>|< Ab>-<cD >"},
      {"{{ l|join(', ') }}", "<p>, q, <r>"},
      {"{{ ', '.join(l) }}", "<p>, q, <r>"},
      {"{{ '%s=%s' % (x, 'y') }}", "< Ab,cD >=y"},
      {"{{ '{}!'.format(x) }}", "< Ab,cD >!"},
      {"{{ '%s'|format(x) }}", "< Ab,cD >"},
      {"{{ x|replace('A', 'B') }}", "< >B<b,cD >"},
      {"{{ x|indent(2, true) }}", "  < Ab,cD >"},
      {"{{ x|e }}{{ x|safe }}{{ x|string }}", "< Ab,cD  Ab,cD  Ab,cD >"},
      {"{{ x|list|first ~ x|last ~ x|reverse }}", "<   Dc,bA >"},
      {"{{ [x, 'y'] }}", "['< Ab,cD >', 'y']"},
      {"{{ d|tojson }}", "{\"<k>\": \"<v>\", \"<plain>\": \"w\"}"},
      {"{{ d }}", "{'<k>': '<v>', '<plain>': 'w'}"},
      {"{% for k, v in d.items() %}{{ k }}:{{ v }};{% endfor %}", "<k>:<v>;<plain>:w;"},
      {"{% set y %}a{{ x }}b{% endset %}{{ y }}{{ y|length }}", "a< Ab,cD >b9"},
      {"{% macro m(t) %}({{ t }}){% endmacro %}{{ m(x) }}", "(< Ab,cD >)"},
      {"{% filter upper %}a{{ x }}{% endfilter %}", "A< AB,CD >"},
      {"{% for c in x|trim %}{{ c }}.{% endfor %}", "<A>.<b>.<,>.<c>.<D>."},
      {"{{ x if x else 'z' }}{{ x or 'z' }}{{ 'z' and x }}", "< Ab,cD  Ab,cD  Ab,cD >"},
      {"{{ x * 2 }}{{ x|trim|center(9) }}", "< Ab,cD  Ab,cD >  <Ab,cD>  "},
      {"{{ l|map('upper')|join }}{{ l|sort|last }}", "<P>Q<Rr>"},
      {"{{ x.partition(',')[2] }}{{ x.rsplit(',', 1)[0] }}{{ x.removeprefix(' ') }}",
       "<cD  AbAb,cD >"},
      {"{{ missing|default(x) }}{{ dict(a=x).a }}{{ namespace(a=x).a }}",
       "< Ab,cD  Ab,cD  Ab,cD >"},
      {"{{ 'Ab,cD' }}{{ x == ' Ab,cD ' }}{{ 'Ab' in x }}", "Ab,cDTrueTrue"},
      {"{{ x|trim == 'Ab,cD' and {'Ab,cD': 'found'}[x|trim] }}", "found"},
  };
  for (const auto& [source, expected] : cases) {
    EXPECT_EQ(shown(render(source, globals)), expected) << source;
  }
}

TEST(ChatTemplateMarks, AdjacentPiecesOfOneSourceAreMerged) {
  const auto pieces = render("a{{ 'b' }}{{ x }}{{ x }}{{ '' }}c", {{"x", input("u")}});
  ASSERT_TRUE(pieces);
  ASSERT_EQ(pieces->size(), 3u);
  EXPECT_EQ((*pieces)[1].text, "uu");
  EXPECT_TRUE((*pieces)[1].from_input);
  EXPECT_FALSE((*pieces)[2].from_input);
}

TEST(ChatTemplateLimits, EndWhatRunsOnOrGrows) {
  const std::string sources[] = {
      "{{ 'a' * 10**9 }}",
      "{{ ('a' * 10**7)|replace('a', 'b' * 10**7) }}",
      "{{ (['a' * 10**6] * 10**6)|join }}",
      "{{ [0] * 10**12 }}",
      "{{ 'x'.join(range(100000)|map('string')) * 100000 }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ 'a'.center(10**9) }}",
      "{{ 'a'|indent(10**9, true) }}",
      "{{ [1, [2]]|tojson(indent=10**9) }}",
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(x) %}{{ g(x) }}{% endmacro %}{% macro g(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
      "{% macro f() %}{{ caller() }}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}"
      "{% call f() %}x{% endcall %}",
      "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}"
      "{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}"
      "{% endfor %}",
      // Nothing deep may come about: taking it apart again would recurse.
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}"
      "{% endfor %}",
      "{% set ns = namespace(x={}) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}"
      "{% endfor %}",
      // Few values, but each of them twice in the next: 2^100 when printed or compared.
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(100) %}"
      "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace(x=(1,)) %}{% for i in range(100) %}{% set ns.x = (ns.x, ns.x) %}"
      "{% endfor %}{{ {ns.x: 1} }}",
      "{{ 'a'|map(" + repeat("'map', ", 5000) + "'upper')|list }}",
      "{{ range(100000)|batch(1, 0)|list|tojson ~ (range(100000)|list|string * 1000) }}",
      "{% for i in range(100000) %}{% set x = ('ab' * 10000).upper() %}{% endfor %}",
      "{% for i in range(100000) %}{% set x = range(100000)|sort %}{% endfor %}",
      "{% for i in range(1000) %}{{ ('a' * 1000000).count('b') }}{% endfor %}",
  };
  for (const std::string& source : sources) {
    const auto pieces = render(source);
    ASSERT_FALSE(pieces) << source.substr(0, 200);
    EXPECT_EQ(pieces.error().code, ErrorCode::kExhausted) << source.substr(0, 200) << "\n"
                                                          << pieces.error().message;
  }
}

TEST(ChatTemplateLimits, AreTheCallers) {
  TemplateLimits limits;
  limits.output_bytes_max = 10;
  EXPECT_TRUE(render("0123456789", {}, limits));
  EXPECT_EQ(render("01234567890", {}, limits).error().code, ErrorCode::kExhausted);
  limits = {};
  limits.n_steps_max = 100;
  EXPECT_TRUE(render("{% for i in range(5) %}{{ i }}{% endfor %}", {}, limits));
  EXPECT_EQ(render("{% for i in range(500) %}{{ i }}{% endfor %}", {}, limits).error().code,
            ErrorCode::kExhausted);
  limits = {};
  limits.source_bytes_max = 3;
  EXPECT_EQ(render("four", {}, limits).error().code, ErrorCode::kInvalidModel);
}

TEST(ChatTemplateLimits, EndNestingWhileParsing) {
  const int n = 100000;
  const std::string sources[] = {
      "{{ " + repeat("(", n) + "1" + repeat(")", n) + " }}",
      "{{ " + repeat("[", n) + repeat("]", n) + " }}",
      "{{ " + repeat("{1:", n) + "1" + repeat("}", n) + " }}",
      "{{ " + repeat("not ", n) + "1 }}",
      "{{ " + repeat("-", n) + "1 }}",
      "{{ 1" + repeat(" + 1", n) + " }}",
      "{{ 1" + repeat(" ** 1", n) + " }}",
      "{{ x" + repeat(".a", n) + " }}",
      "{{ x" + repeat("[0]", n) + " }}",
      "{{ x" + repeat("()", n) + " }}",
      "{{ x" + repeat("|e", n) + " }}",
      "{{ 1" + repeat(" or 1", n) + " }}",
      "{{ 1" + repeat(" if 1 else 1", n) + " }}",
      "{{ " + repeat("f(", n) + repeat(")", n) + " }}",
      repeat("{% if 1 %}", n) + repeat("{% endif %}", n),
      repeat("{% for i in x %}", n) + repeat("{% endfor %}", n),
      repeat("{% set x %}", n) + repeat("{% endset %}", n),
      repeat("{% macro m() %}", n) + repeat("{% endmacro %}", n),
      "{% set " + repeat("(", n) + "a" + repeat(")", n) + " = 1 %}",
  };
  for (const std::string& source : sources) {
    const auto compiled = ChatTemplate::compile(source);
    ASSERT_FALSE(compiled) << source.substr(0, 100);
    EXPECT_EQ(compiled.error().code, ErrorCode::kInvalidModel) << source.substr(0, 100);
  }
  // Long is not deep.
  EXPECT_TRUE(render("{{ ''" + repeat(" ~ 'a'", 10000) + " }}"));
  EXPECT_TRUE(render("{% if 0 %}" + repeat("{% elif 0 %}x", 10000) + "{% endif %}"));
  EXPECT_TRUE(render("{{ [" + repeat("1, ", 10000) + "] }}"));
}

TEST(ChatTemplateLimits, HoldForDeepInput) {
  Value deep("x");
  for (int i = 0; i < 500; ++i) deep = Value(List{deep});
  const auto pieces = render("{{ x }}", {{"x", deep}});
  ASSERT_FALSE(pieces);
  EXPECT_EQ(pieces.error().code, ErrorCode::kExhausted);
}

TEST(ChatTemplateLimits, CyclesThroughNamespacesAreTakenApart) {
  // LeakSanitizer would tell if they were not.
  EXPECT_EQ(shown(render("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}"
                         "{% set a.l = [a, b] %}{% set a.m = a.l|first %}{{ a.b.a.b is defined }}"
                         "{{ a }}")),
            "True<Namespace>");
  EXPECT_EQ(shown(render("{% set ns = namespace() %}{% for i in [ns] %}"
                         "{% macro m() %}{{ i is defined }}{% endmacro %}{% set ns.m = m %}"
                         "{% set ns.l = loop %}{{ ns.m() }}{% endfor %}")),
            "True");
}

TEST(ChatTemplateErrors, SayLineAndColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n  {% if x %}\nb", "line 2, column 6: block 'if' is never closed"},
      {"a\n{{ b + }}", "line 2, column 8: unexpected token"},
      {"{{ 1 +\n   missing.x }}", "line 2, column 11: 'missing' is undefined"},
      {"\n\n{# open", "line 3, column 1: missing end of comment"},
      {"{{ 'abc }}", "line 1, column 4: missing end of string"},
      {"{% nope %}", "line 1, column 4: unknown tag 'nope'"},
      {"{{ x|nope }}", "line 1, column 6: no filter named 'nope'"},
      {"{{ 'a' - 1 }}", "line 1, column 8: unsupported operand type(s) for -"},
      {"{{ (1 }}", "line 1, column 7: unexpected '}'"},
  };
  for (const auto& [source, expected] : cases) {
    const auto pieces = render(source);
    ASSERT_FALSE(pieces) << source;
    EXPECT_NE(pieces.error().message.find(expected), std::string::npos) << source << "\n"
                                                                        << pieces.error().message;
  }
}

TEST(ChatTemplateErrors, AnyBytesAreATemplateOrAnError) {
  // Every prefix and every one-byte change of a template that uses most of the language.
  const std::string source =
      "{%- set ns = namespace(a='x\\u00e9', b=[1, 2.5, {'k': none}]) -%}\n"
      "{% macro m(p, q=1) %}{{ p ~ q|string }}{% endmacro %}{# c #}\n"
      "{% for i, j in d.items() if i is not none %}{{ m(i[::-1], *[j]) }}{% else %}e{% endfor %}\n"
      "{% filter upper %}{{ loop.x if false else 'y' }}{% endfilter %}{% raw %}{{{% endraw %}";
  const std::map<std::string, Value> globals = {{"d", Dict{{"k", input("v")}}}};
  for (std::size_t i = 0; i < source.size(); ++i) {
    (void)render(source.substr(0, i), globals);
    for (const char c : {'\0', '\n', '{', '%', '\'', '(', '\xff', '9', '-'}) {
      std::string changed = source;
      changed[i] = c;
      (void)render(changed, globals);
    }
  }
}

TEST(ChatTemplate, SurvivesInvalidUtf8) {
  const std::map<std::string, Value> globals = {{"x", input("a\xff\xe4\xbd\x80z\xf0\x9f")}};
  EXPECT_EQ(shown(render("{{ x }}", globals)), "<a\xff\xe4\xbd\x80z\xf0\x9f>");
  EXPECT_EQ(shown(render("{{ x|length }}{{ x[::-1]|length }}{{ x|upper|length }}", globals)),
            "666");
  EXPECT_TRUE(render("{{ x|tojson }}{{ [x] }}{{ x.split() }}{{ x|trim }}{{ x|title }}", globals));
}

TEST(ChatTemplate, CanBeRenderedManyTimes) {
  auto compiled = ChatTemplate::compile("{% set x = x + 1 %}{{ x }}");
  ASSERT_TRUE(compiled);
  EXPECT_EQ(shown(compiled->render({{"x", 1}})), "2");
  EXPECT_EQ(shown(compiled->render({{"x", 5}})), "6");
  EXPECT_FALSE(compiled->render({}));
  ChatTemplate moved = *std::move(compiled);
  EXPECT_EQ(shown(moved.render({{"x", 7}})), "8");
}

}  // namespace
}  // namespace kvasir::text
