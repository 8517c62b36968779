// Chat prompts: marking input, running the template, and tokens that only the template can forge.
#include "text/chat.h"

#include <algorithm>
#include <set>

#include "text/trie.h"

namespace kvasir::text {

namespace {

constexpr std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

constexpr int kNestingMax = 128;

bool is_known_role(const std::string& role) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user",   "assistant",
                                         "tool",   "function",  "ipython"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

Result<Value> mark(const Value& value, bool is_role, int nesting) {
  if (nesting > kNestingMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "chat: messages or tools nested too deeply; want at "
                 "most " +
                     std::to_string(kNestingMax) + " levels"};
  }
  if (const MarkedString* string = value.as_string()) {
    std::string text = string->str();
    const bool from_input = !is_role || !is_known_role(text);
    return Value(MarkedString(std::move(text), from_input));
  }
  if (const List* list = value.as_list()) {
    List marked;
    for (const Value& item : *list) {
      KVASIR_ASSIGN_OR_RETURN(Value copy, mark(item, false, nesting + 1));
      marked.push_back(std::move(copy));
    }
    return Value(std::move(marked));
  }
  if (const Dict* dict = value.as_dict()) {
    Dict marked;
    for (const auto& [key, item] : *dict) {
      KVASIR_ASSIGN_OR_RETURN(Value copy, mark(item, key == "role", nesting + 1));
      marked.emplace_back(key, std::move(copy));
    }
    return Value(std::move(marked));
  }
  return value;
}

/// The prompt's text and which bytes of it come from input.
struct MarkedPrompt {
  struct Run {
    std::size_t end = 0;
    bool from_input = false;
  };
  std::string text;
  std::vector<Run> runs;

  explicit MarkedPrompt(const std::vector<PromptPiece>& pieces) {
    for (const PromptPiece& piece : pieces) {
      if (piece.text.empty()) continue;
      text += piece.text;
      if (!runs.empty() && runs.back().from_input == piece.from_input) {
        runs.back().end = text.size();
      } else {
        runs.push_back({text.size(), piece.from_input});
      }
    }
  }

  /// True if some byte of [begin, end) comes from input.
  bool has_input(std::size_t begin, std::size_t end) const {
    auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                                [](std::size_t pos, const Run& r) { return pos < r.end; });
    for (; run != runs.end(); ++run) {
      if (run->from_input) return true;
      if (run->end >= end) return false;
    }
    return false;
  }
};

/// A special token in the template's own words.
struct Special {
  std::size_t begin = 0;
  std::size_t end = 0;
  TokenId id = -1;
};

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

Result<Value> mark_input(const Value& value) { return mark(value, false, 0); }

class ChatFormatter::Impl {
 public:
  Impl(ChatTemplate chat_template, const Tokenizer& tokenizer)
      : template_(std::move(chat_template)), tokenizer_(tokenizer) {
    std::vector<Trie::Item> control;
    std::vector<Trie::Item> user_defined;
    std::vector<std::string> names;  // the tries copy them
    names.reserve(static_cast<std::size_t>(tokenizer.vocab_size()));
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      std::string name = tokenizer.piece(id, ParseSpecial::kYes);
      const bool is_control = tokenizer.is_control(id);
      if (name.empty() || (!is_control && tokenizer.special_token(name) != id)) continue;
      // Tokens that are never parsed from plain text (control, unknown) are ours to find.
      const bool is_plain =
          tokenizer.encode(name, AddSpecial::kNo, ParseSpecial::kNo) == std::vector<TokenId>{id};
      names.push_back(std::move(name));
      (is_plain && !is_control ? user_defined : control).push_back({names.back(), id});
    }
    control_ = Trie(control);
    user_defined_ = Trie(user_defined);
    if (const auto bos = tokenizer.bos()) {
      bos_text_ = tokenizer.piece(*bos, ParseSpecial::kYes);
    }
    if (const auto eos = tokenizer.eos()) {
      eos_text_ = tokenizer.piece(*eos, ParseSpecial::kYes);
    }
  }

  std::map<std::string, Value> globals(const ChatRequest& request) const {
    std::map<std::string, Value> globals = {
        {"bos_token", bos_text_},       {"eos_token", eos_text_},
        {"documents", nullptr},         {"add_generation_prompt", request.add_generation_prompt},
        {"messages", request.messages}, {"tools", request.tools},
        {"__now", request.now_seconds},
    };
    for (const auto& [name, value] : request.extra) globals[name] = value;
    return globals;
  }

  std::vector<TokenId> encode(const MarkedPrompt& prompt) const {
    std::set<TokenId> structural;
    const std::vector<Special> specials = find_specials(prompt, &structural);
    std::vector<TokenId> ids;
    const bool has_bos =
        !specials.empty() && specials[0].begin == 0 && specials[0].id == tokenizer_.bos();
    if (tokenizer_.add_bos() && tokenizer_.bos() && !has_bos) ids.push_back(*tokenizer_.bos());
    std::size_t begin = 0;
    for (const Special& special : specials) {
      encode_plain(prompt, begin, special.begin, structural, &ids);
      ids.push_back(special.id);
      begin = special.end;
      if (strips_after(special.id)) {
        while (begin < prompt.text.size() && is_ascii_space(prompt.text[begin])) ++begin;
      }
    }
    encode_plain(prompt, begin, prompt.text.size(), structural, &ids);
    return ids;
  }

  const ChatTemplate& chat_template() const { return template_; }

 private:
  /// Control tokens that the template wrote; `structural` gets the user-defined ones it wrote.
  std::vector<Special> find_specials(const MarkedPrompt& prompt,
                                     std::set<TokenId>* structural) const {
    std::vector<Special> specials;
    std::size_t pos = 0;
    for (const MarkedPrompt::Run& run : prompt.runs) {
      if (run.from_input) {
        pos = run.end;
        continue;
      }
      const std::string_view own = std::string_view(prompt.text).substr(0, run.end);
      while (pos < run.end) {
        if (!user_defined_.empty()) {
          const Trie::Match plain = user_defined_.longest_match(own, pos);
          if (plain.id >= 0) structural->insert(plain.id);
        }
        const Trie::Match match =
            control_.empty() ? Trie::Match{} : control_.longest_match(own, pos);
        if (match.id < 0) {
          ++pos;
          continue;
        }
        specials.push_back({pos, pos + match.size, match.id});
        pos += match.size;
      }
    }
    return specials;
  }

  /// Bytes [begin, end) as plain text. The tokenizer finds user-defined tokens in plain text, which
  /// is right for most ("\n\n", "<b>") but not for those that the template ends a turn with: where
  /// input spells one of them, the text is cut inside it.
  void encode_plain(const MarkedPrompt& prompt, std::size_t begin, std::size_t end,
                    const std::set<TokenId>& structural, std::vector<TokenId>* ids) const {
    if (begin >= end) return;
    const std::string_view text = std::string_view(prompt.text).substr(0, end);
    const auto append = [&](std::size_t to) {
      const std::vector<TokenId> part =
          tokenizer_.encode(text.substr(begin, to - begin), AddSpecial::kNo, ParseSpecial::kNo);
      ids->insert(ids->end(), part.begin(), part.end());
      begin = to;
    };
    for (std::size_t pos = begin; pos < end && !user_defined_.empty();) {
      const Trie::Match match = user_defined_.longest_match(text, pos);
      if (match.id < 0) {
        ++pos;
        continue;
      }
      const bool is_forged = match.size > 1 && prompt.has_input(pos, pos + match.size) &&
                             (tokenizer_.is_eog(match.id) || structural.contains(match.id));
      if (is_forged) append(pos + 1);
      pos += is_forged ? 1 : match.size;
    }
    append(end);
  }

  /// Whether the tokenizer drops white space after this special token, as Phi-3's does.
  bool strips_after(TokenId id) const {
    const std::string name = tokenizer_.piece(id, ParseSpecial::kYes);
    return tokenizer_.encode(name + " ", AddSpecial::kNo, ParseSpecial::kYes).size() == 1;
  }

  ChatTemplate template_;
  const Tokenizer& tokenizer_;
  Trie control_;       // tokens that plain text never becomes
  Trie user_defined_;  // tokens that the tokenizer finds in plain text as well
  std::string bos_text_;
  std::string eos_text_;
};

ChatFormatter::ChatFormatter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatFormatter::~ChatFormatter() = default;
ChatFormatter::ChatFormatter(ChatFormatter&&) noexcept = default;
ChatFormatter& ChatFormatter::operator=(ChatFormatter&&) noexcept = default;

Result<ChatFormatter> ChatFormatter::load(const gguf::File& file, const Tokenizer& tokenizer) {
  KVASIR_ASSIGN_OR_RETURN(const auto source, file.get_string("tokenizer.chat_template"));
  if (source && !source->empty()) return create(*source, tokenizer);
  if (tokenizer.special_token("<|im_start|>") && tokenizer.special_token("<|im_end|>")) {
    return create(kChatMl, tokenizer);
  }
  return Error{ErrorCode::kUnsupported,
               "chat: the model has no chat template; got no key 'tokenizer.chat_template' and no "
               "token '<|im_start|>', want one of them, or a plain prompt (--raw)"};
}

Result<ChatFormatter> ChatFormatter::create(std::string_view source, const Tokenizer& tokenizer,
                                            const TemplateLimits& limits) {
  KVASIR_ASSIGN_OR_RETURN(ChatTemplate chat_template, ChatTemplate::compile(source, limits));
  return ChatFormatter(std::make_unique<Impl>(std::move(chat_template), tokenizer));
}

Result<RenderedPrompt> ChatFormatter::render(const ChatRequest& request) const {
  KVASIR_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces,
                          impl_->chat_template().render(impl_->globals(request)));
  MarkedPrompt prompt(pieces);
  std::vector<TokenId> ids = impl_->encode(prompt);
  return RenderedPrompt{std::move(prompt.text), std::move(ids)};
}

std::vector<TokenId> ChatFormatter::encode(const std::vector<PromptPiece>& pieces) const {
  return impl_->encode(MarkedPrompt(pieces));
}

}  // namespace kvasir::text
