// kvasir eval: perplexity and logits, the reference figures of everything else.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "command.h"
#include "eval/perplexity.h"

namespace kvasir::cli {
namespace {

constexpr int kChunkTokens = 512;  // llama.cpp's

struct PplFlags {
  ModelFlags model;
  std::string file;
  int n_chunks = -1;
  bool json = false;
};

Status perplexity(const PplFlags& flags) {
  if (flags.n_chunks == 0 || flags.n_chunks < -1) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--chunks: got {}, want 1 or more, or -1 for all", flags.n_chunks)};
  }
  KVASIR_ASSIGN_OR_RETURN(engine::EngineOptions options, flags.model.engine_options());
  if (options.n_ctx == 0) options.n_ctx = kChunkTokens;
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_input(flags.file));
  KVASIR_ASSIGN_OR_RETURN(const auto engine, ModelFlags::load(options));
  ProgressBar bar("perplexity");
  const auto progress = [&](int done, int total, double so_far) {
    bar.update(static_cast<double>(done) / total,
               fmt::format("{}/{} chunks, {:.4f}", done, total, so_far));
  };
  KVASIR_ASSIGN_OR_RETURN(
      const eval::PerplexityReport report,
      eval::perplexity(*engine, text, {options.n_ctx, flags.n_chunks}, progress, &interrupted()));
  if (flags.json) {
    print(dump({{"schema_version", 1},
                {"perplexity", report.perplexity},
                {"standard_error", report.standard_error},
                {"nll_mean", report.nll_mean},
                {"n_ctx", options.n_ctx},
                {"n_chunks", report.n_chunks},
                {"n_scored", report.n_scored},
                {"n_tokens_text", report.n_tokens_text},
                {"chunk_nll", report.chunk_nll},
                {"seconds", report.seconds}}) +
          "\n");
  } else {
    print(fmt::format("perplexity {:.4f} +- {:.4f} ({} chunks of {} tokens, {} scored)\n",
                      report.perplexity, report.standard_error, report.n_chunks, options.n_ctx,
                      report.n_scored));
  }
  return {};
}

struct LogitsFlags {
  ModelFlags model;
  std::string ids, positions;
  bool json = false;
};

Status logits(const LogitsFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, parse_ids(flags.ids));
  KVASIR_ASSIGN_OR_RETURN(const auto engine, flags.model.load());
  std::vector<int> positions(ids.size());
  if (!flags.positions.empty()) {
    KVASIR_ASSIGN_OR_RETURN(
        positions, parse_numbers("--positions", flags.positions, 0, "positions such as 0,17"));
  } else {
    std::iota(positions.begin(), positions.end(), 0);
  }
  KVASIR_ASSIGN_OR_RETURN(const auto rows,
                          eval::logits_at(*engine, ids, positions, &interrupted()));
  std::vector<TokenId> argmax;
  for (const auto& row : rows) {
    argmax.push_back(static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  if (flags.json) {
    print(dump({{"positions", positions}, {"logits", rows}, {"argmax", argmax}}) + "\n");
    return {};
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    print(fmt::format("position {}: argmax {} (logit {:.6g})\n", positions[i], argmax[i],
                      rows[i][static_cast<std::size_t>(argmax[i])]));
  }
  return {};
}

}  // namespace

void add_eval(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* sub = app.add_subcommand("eval", "perplexity and logits");
  sub->require_subcommand(1);

  auto ppl_flags = std::make_shared<PplFlags>();
  CLI::App* ppl = sub->add_subcommand("ppl", "perplexity of a text, by llama.cpp's convention");
  ppl_flags->model.add(*ppl, ModelFlags::Set::kEngine);
  ppl->get_option("--ctx-size")->description(fmt::format("tokens of a chunk; 0: {}", kChunkTokens));
  ppl->add_option("-f,--file", ppl_flags->file, "the text; - : standard input")->required();
  ppl->add_option("--chunks", ppl_flags->n_chunks, "whole chunks at most; -1: all");
  ppl->add_flag("--json", ppl_flags->json, "one JSON object");
  ppl->footer(
      "Examples:\n"
      "  kvasir eval ppl -f text.txt                       chunks of 512 tokens\n"
      "  kvasir eval ppl -f text.txt -c 1024 --chunks 20\n"
      "  kvasir eval ppl -f text.txt --kv-type bf16        what a KV type costs\n"
      "Ctrl-C ends it with the figures of the chunks that are done; a second one ends it at "
      "once.\n");

  auto logits_flags = std::make_shared<LogitsFlags>();
  CLI::App* logits_app = sub->add_subcommand("logits", "logits after given token ids");
  logits_flags->model.add(*logits_app, ModelFlags::Set::kEngine);
  logits_app->add_option("--ids", logits_flags->ids, "token ids: 1,2,3")->required();
  logits_app->add_option("--positions", logits_flags->positions, "rows wanted: 0,17; default: all");
  logits_app->add_flag("--json", logits_flags->json, "one JSON object");
  logits_app->footer(
      "Examples:\n"
      "  kvasir eval logits --ids 1,2,3                    the likeliest after each\n"
      "  kvasir eval logits --ids 1,2,3 --positions 2 --json\n");
  sub->footer(
      "Examples:\n"
      "  kvasir eval ppl -f text.txt\n"
      "  kvasir eval logits --ids 1,2,3\n");

  commands.push_back({sub, [=] {
                        const Status status =
                            ppl->parsed() ? perplexity(*ppl_flags) : logits(*logits_flags);
                        return status ? done_or_interrupted() : report(status.error());
                      }});
}

}  // namespace kvasir::cli
