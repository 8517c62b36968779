// The template language against Jinja2: every case's expected text was written by Jinja2 itself
// (tools/make_jinja_cases.py).
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "text/json_value.h"

namespace kvasir::text {
namespace {

Result<std::string> render(const std::string& source, const std::map<std::string, Value>& globals) {
  auto compiled = ChatTemplate::compile(source);
  if (!compiled) return compiled.error();
  auto pieces = compiled->render(globals);
  if (!pieces) return pieces.error();
  std::string text;
  for (const PromptPiece& piece : *pieces) text += piece.text;
  return text;
}

void add(std::map<std::string, Value>& globals, const OrderedJson& variables) {
  for (const auto& [name, value] : variables.items()) globals[name] = to_value(value);
}

/// True if we did what Jinja2 did: same text, same exception, or an error where it had one.
void check(const OrderedJson& expected, const Result<std::string>& got) {
  if (expected.contains("expected")) {
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, expected["expected"].get<std::string>());
  } else if (expected.contains("raised")) {
    ASSERT_FALSE(got) << "rendered as: " << *got;
    EXPECT_EQ(got.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(got.error().message, expected["raised"].get<std::string>());
  } else {
    ASSERT_FALSE(got) << "rendered as: " << *got << "\nJinja2: " << expected["error"];
    EXPECT_EQ(got.error().code, ErrorCode::kInvalidModel) << got.error().message;
    EXPECT_NE(got.error().message.find("line "), std::string::npos) << got.error().message;
  }
}

TEST(ChatTemplate, FeaturesDoWhatJinja2Does) {
  const OrderedJson data = read_json("jinja_cases.json");
  ASSERT_GE(data["cases"].size(), 250u);
  for (const OrderedJson& item : data["cases"]) {
    SCOPED_TRACE(item["group"].get<std::string>() + ": " + item["source"].get<std::string>());
    std::map<std::string, Value> globals;
    add(globals, data["shared"]);
    add(globals, item["variables"]);
    globals["__now"] = to_value(data["now"]);
    check(item, render(item["source"].get<std::string>(), globals));
  }
}

TEST(ChatTemplate, ModelFamiliesRenderWhatJinja2Renders) {
  const OrderedJson data = read_json("chat_template_cases.json");
  ASSERT_GE(data["cases"].size(), 100u);
  for (const OrderedJson& item : data["cases"]) {
    const std::string name = item["template"].get<std::string>();
    const std::string conversation = item["conversation"].get<std::string>();
    SCOPED_TRACE(name + ", " + conversation);
    std::map<std::string, Value> globals = {{"tools", nullptr}, {"documents", nullptr}};
    add(globals, data["specials"]);
    add(globals, data["conversations"][conversation]);
    globals["__now"] = to_value(data["now"]);
    check(item, render(read_text("chat_templates/" + name), globals));
  }
}

}  // namespace
}  // namespace kvasir::text
