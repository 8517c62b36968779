// kvasir trace: follows one prompt and one token through the eight hops of docs/tour.md, with the
// numbers of this very run.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/units.h"
#include "cache/codec/row_codec.h"
#include "command.h"
#include "engine/sampler.h"
#include "engine/session.h"
#include "prompting.h"

namespace kvasir::cli {
namespace {

struct TraceFlags {
  ModelFlags model;
  std::string prompt = "The cat";
  bool json = false;
};

/// One hop: what happened, in words and as data.
struct Hop {
  const char* name;
  const char* symbol;  ///< where it is in the house; docs/tour.md names the same
  std::string text;
  nlohmann::json data;
};

std::string json_quoted(const std::string& text) { return dump(nlohmann::json(text)); }

std::vector<TokenId> best_tokens(std::span<const float> logits, std::size_t n) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  n = std::min(n, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                    [&](TokenId a, TokenId b) {
                      return logits[static_cast<std::size_t>(a)] >
                             logits[static_cast<std::size_t>(b)];
                    });
  order.resize(n);
  return order;
}

Result<std::vector<Hop>> trace(const TraceFlags& flags, engine::Engine& engine) {
  std::vector<Hop> hops;
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const SteadyClock clock;
  hops.push_back({"door",
                  "apps/kvasir : add_trace",
                  fmt::format("prompt {} ({} B)", json_quoted(flags.prompt), flags.prompt.size()),
                  {{"prompt", flags.prompt}, {"bytes", flags.prompt.size()}}});

  double start = clock.now_seconds();
  const text::RenderedPrompt prompt = raw_prompt(tokenizer, flags.prompt);
  const double encode_us = 1e6 * (clock.now_seconds() - start);
  std::string pieces;
  for (const TokenId id : prompt.ids) {
    pieces += fmt::format(" {}={}", id, json_quoted(tokenizer.piece(id, text::ParseSpecial::kYes)));
  }
  hops.push_back({"words to ids",
                  "text : Tokenizer::encode",
                  fmt::format("{} ids in {:.0f} us:{}", prompt.ids.size(), encode_us, pieces),
                  {{"ids", prompt.ids}, {"us", encode_us}}});

  engine::Session session(engine);
  hops.push_back({"recall",
                  "engine : Session::prompt",
                  fmt::format("0 of {} tokens known: a new session", prompt.ids.size()),
                  {{"reused_tokens", 0}}});

  const cache::MemorySummary before = engine.memory_summary();
  KVASIR_ASSIGN_OR_RETURN(const engine::PromptReport report, session.prompt(prompt.ids));
  const cache::MemorySummary after = engine.memory_summary();
  std::uint64_t n_pages = 0;
  for (const auto& group : after.groups) n_pages += group.n_pages_used;
  hops.push_back({"admit",
                  "cache : Sequence::append",
                  fmt::format("{} page(s) of {} tokens taken, {} allocated (before: {}), {} filled",
                              n_pages, after.groups.empty() ? 0 : after.groups[0].page_tokens,
                              format_bytes(after.allocated), format_bytes(before.allocated),
                              format_bytes(after.filled)),
                  {{"pages", n_pages}, {"allocated", after.allocated}, {"filled", after.filled}}});

  const double multiply_adds = engine.model().multiply_adds(session.n_tokens()) * report.n_computed;
  hops.push_back({"compute",
                  "model : Model::forward",
                  fmt::format("{} tokens in {:.2f} ms, about {:.3g} multiply-adds, {} layers",
                              report.n_computed, 1e3 * report.seconds, multiply_adds,
                              engine.model().config().n_layers),
                  {{"tokens", report.n_computed},
                   {"ms", 1e3 * report.seconds},
                   {"multiply_adds", multiply_adds}}});

  const cache::PagedKvView view = session.view(0);
  std::vector<float> row(static_cast<std::size_t>(view.head_dim));
  cache::read_k(view, session.n_tokens() - 1, 0, row.data());
  hops.push_back(
      {"write",
       "cache : write_kv",
       fmt::format("token {} lies in page {}, slot {}; K of layer 0, head 0 begins {:.4f} {:.4f} "
                   "{:.4f} ({})",
                   session.n_tokens() - 1,
                   (session.n_tokens() - 1) / (view.strips_per_page * cache::kStripTokens),
                   (session.n_tokens() - 1) % (view.strips_per_page * cache::kStripTokens), row[0],
                   row[1], row[2], cache::codec_name(view.rows.k.codec)),
       {{"k", std::vector<float>(row.begin(), row.begin() + 3)}}});

  std::string best;
  nlohmann::json best_json = nlohmann::json::array();
  for (const TokenId id : best_tokens(session.logits(), 3)) {
    const float logit = session.logits()[static_cast<std::size_t>(id)];
    const std::string piece =
        id < tokenizer.vocab_size() ? tokenizer.piece(id, text::ParseSpecial::kYes) : "";
    best += fmt::format(" {}={} ({:.2f})", id, json_quoted(piece), logit);
    best_json.push_back({{"id", id}, {"piece", piece}, {"logit", logit}});
  }
  engine::SamplingParams greedy;
  greedy.temperature = 0;
  const TokenId chosen = *engine::Sampler(greedy).sample(session.logits(), session.tokens());
  hops.push_back({"attend and choose",
                  "attention : attend, engine : Sampler",
                  fmt::format("best logits{}", best),
                  {{"best", best_json}, {"chosen", chosen}}});

  text::StreamDecoder decoder(tokenizer);
  std::string text = chosen < tokenizer.vocab_size() ? decoder.push(chosen) : "";
  text += decoder.finish();
  session.clear();
  const cache::MemorySummary settled = engine.memory_summary();
  hops.push_back({"reply and settle",
                  "text : StreamDecoder, cache : ~Sequence",
                  fmt::format("{} goes out; KV {} allocated again", json_quoted(text),
                              format_bytes(settled.allocated)),
                  {{"text", text}, {"allocated", settled.allocated}}});
  return hops;
}

}  // namespace

void add_trace(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* sub = app.add_subcommand("trace", "follow one prompt through the house (docs/tour.md)");
  flags->model.add(*sub, ModelFlags::Set::kEngine);
  sub->add_option("prompt", flags->prompt, "the text to follow");
  sub->add_flag("--json", flags->json, "an array of hops");
  sub->footer("Examples:\n  kvasir trace \"The cat\"\n  kvasir trace --json \"The cat\"\n");
  commands.push_back(
      {sub, [flags] {
         const auto engine = flags->model.load();
         if (!engine) return report(engine.error());
         const auto hops = trace(*flags, **engine);
         if (!hops) return report(hops.error());
         nlohmann::json all = nlohmann::json::array();
         int number = 0;
         for (const Hop& hop : *hops) {
           ++number;
           all.push_back(
               {{"hop", number}, {"name", hop.name}, {"symbol", hop.symbol}, {"data", hop.data}});
           if (!flags->json) print(fmt::format("{} {:<18} {}\n", number, hop.name, hop.text));
         }
         if (flags->json) print(dump(all) + "\n");
         return Exit::kOk;
       }});
}

}  // namespace kvasir::cli
